"""The verbs that explain: texts token by token between contexts, and what hidden units know."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell import files, inputs
from factorcell.commands import options, streams, terminal
from factorcell.config import UserError, choose
from factorcell.data.tables import FORMATS, name_of
from factorcell.evaluation import probing
from factorcell.evaluation.cautions import cautions
from factorcell.evaluation.likelihood_ratios import column_texts, context_text, explain, raised, strength
from factorcell.model.run import Run
from factorcell.reports.wording import drawn_unit, readable

# Background and letters of the 256 colours of a terminal, from weak to strong; the second context is underlined too.
BLUES = ((153, 16), (75, 16), (26, 231))
ORANGES = ((223, 16), (215, 16), (166, 231))

Row = dict[str, Any]


def run_explain(given: argparse.Namespace) -> None:
    """`factorcell explain`."""
    contexts = contexts_between(given.between, options.context(given.context))
    if given.over and not given.words:
        raise UserError("--over is for --words; say how many")
    runs = [_open(folder, given) for folder in (given.run, *given.ensemble)]
    texts = _texts(given, runs[0].config.data.text)
    beside = [_open(folder, given) for folder in given.beside]
    doubts = cautions([*runs, *beside])
    options.tell_rare(runs[0].schema, *contexts.values())
    own = given.run.name + (f" and {len(given.ensemble)} more" if given.ensemble else "")
    rows = explain(runs, texts, contexts, unknown=given.unknown)
    if given.beside:
        rows = [{"model": own, **row} for row in rows]
        for other in beside:
            found = explain([other], texts, contexts, unknown=given.unknown)
            rows += [{"model": other.folder.name, **row} for row in found]
        rows.sort(key=lambda row: texts.index(row["text"]))
    words = _words(runs, texts, contexts, given) if given.words else []
    if given.page:
        from factorcell.reports.explain import explanation

        page = explanation(own, rows, words, len(runs), doubts)
        files.write(given.page, page)
        terminal.say(f"the page: {given.page}")
    if given.json:
        terminal.lines([*rows, *words])
    else:
        _show(rows, words, list(contexts), _colour(given.color))
    terminal.say(*doubts)


def _words(
    runs: Sequence[Run], texts: Sequence[str], contexts: Mapping[str, Mapping[str, str]], given: argparse.Namespace
) -> list[Row]:
    """The words that each of two contexts raises most, most raised by the first one first."""
    if len(contexts) != 2:
        raise UserError(f"--words {given.words} with {len(contexts)} contexts: it takes two")
    places = texts if given.over is None else column_texts(given.over, runs[0].config.data.text)
    found = raised(runs, places, *contexts.values(), unknown=given.unknown, progress=not given.json)
    if not found:
        terminal.say("--words: no word is expected even once in these few places; give more texts with --over TABLE")
    up, down = ([row for row in found if sign * row["ratio"] > 0] for sign in (1, -1))
    return [*up[: given.words], *down[-given.words :]]


def contexts_between(between: Sequence[str], shared: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The contexts of `--between`, each `NAME=VALUE` or several after semicolons, by name; `shared` is in all."""
    contexts = {}
    for text in between:
        own = options.context(re.split(r";\s*(?=[^;=]+=)", text), "--between")
        if both := set(own) & set(shared):
            raise UserError(f"{', '.join(sorted(both))} is given by --between and by --context")
        if context_text(own) in contexts:
            raise UserError(f"--between names {context_text(own)} twice")
        contexts[context_text(own)] = {**shared, **own}
    if len(contexts) < 2:
        raise UserError(f"--between has {', '.join(contexts)} alone; it takes two contexts or more")
    return contexts


def _open(folder: Path, given: argparse.Namespace) -> Run:
    return options.opened(Run.open, folder, given)


def _texts(given: argparse.Namespace, column: str) -> list[str]:
    """The texts of a command, each once: of --text, the `column` of a table, or a file's lines that are not empty."""
    if (given.file is None) == (not given.text):
        raise UserError("give either a FILE of texts, one a line, or --text")
    if given.text:
        return list(dict.fromkeys(given.text))
    if Path(given.file).suffix.lower() in FORMATS:
        return list(dict.fromkeys(column_texts(given.file, column)))
    content = streams.text_in() if given.file == "-" else inputs.text(given.file)
    texts = list(dict.fromkeys(line.strip() for line in content.splitlines() if line.strip()))
    if not texts:
        raise UserError(f"{given.file}: there is no text in it")
    return texts


def _colour(asked: str) -> bool:
    """Whether to write colours: as asked, or as the terminal and the environment have it."""
    return asked == "always" or (asked == "auto" and terminal.colours(sys.stdout))


def _show(rows: Sequence[Row], words: Sequence[Row], between: Sequence[str], colour: bool) -> None:
    if len(between) == 2:
        first, second = (marked(name, sign * 9.0, colour) for name, sign in zip(between, (1, -1), strict=True))
        terminal.show(terminal.joined("", ["likelier given ", first, ", given ", second, "; ¶ is the end"]))
    for row in rows:
        terminal.show("")
        if "model" in row:
            terminal.show(row["model"])
        if len(between) == 2:
            gap = " " if row["unit"] in ("word", "space") else ""
            marks = [marked(readable(token["token"]), token["ratio"], colour) for token in row["tokens"]]
            terminal.show(terminal.joined(gap, marks))
            terminal.show(f"{row['ratio']:+z.2f} nats in all; {between[0]} has {row['posterior'][between[0]]:.1%}")
            if strange := [readable(token["token"]) for token in row["tokens"] if not token["known"]]:
                terminal.show(f"read as unknown: {', '.join(dict.fromkeys(strange))}")
            continue
        shares = [
            {"token": readable(token["token"]), **{name: f"{token['posterior'][name]:.1%}" for name in between}}
            for token in row["tokens"]
        ]
        terminal.table(shares, ("token", *between))
    if words:
        terminal.show("")
        shares = [
            {"word": readable(word["token"]), "nats": f"{word['ratio']:+z.2f}", "expected": f"{word['count']:.1f}"}
            for word in words
        ]
        terminal.table(shares, ("word", "nats", "expected"))


def marked(text: str, ratio: float, colour: bool) -> str:
    """`text` coloured by its ratio, blue or an underlined orange, or with up to three raised signs behind it."""
    power = strength(ratio)
    if not power:
        return text
    if not colour:
        return text + ("⁺" if power > 0 else "⁻") * abs(power)
    back, front = (BLUES if power > 0 else ORANGES)[abs(power) - 1]
    under = "" if power > 0 else "4;"
    return terminal.coloured(text, f"{under}48;5;{back};38;5;{front}")


def run_units(given: argparse.Namespace) -> None:
    """`factorcell units`."""
    run = _open(given.run, given)
    texts, values = probing.labelled(run, given.table, given.target)
    rows = probing.indicators(
        run, texts, values, every_token=given.every_token, seed=given.seed, progress=not given.json
    )
    value = rows[0]["value"]
    if given.value is not None:
        value = choose(f"value of {given.target}", given.value, [row["value"] for row in rows])
    best = next(row for row in rows if row["value"] == value)
    along = probing.along(run, given.text, best["hidden_unit"]) if given.text else []
    drawn = [{"value": value, "sign": best["sign"], **row} for row in along]
    regression = None
    if given.examples:
        states = probing.final_states(run, texts, progress=not given.json)
        regression = probing.few_examples(
            states, values, examples=given.examples, repeats=given.repeats, seed=given.seed
        )
    if given.page:
        from factorcell.reports.explain import units_page

        when = "after every token" if given.every_token else "after whole texts"
        page = units_page(name_of(given.run), given.target, rows, drawn, regression, when)
        files.write(given.page, page)
        terminal.say(f"the page: {given.page}")
    if given.json:
        return terminal.lines([*rows, *drawn, *([regression] if regression else [])])
    return _show_units(given.target, rows, drawn, regression)


def _show_units(target: str, rows: Sequence[Row], drawn: Sequence[Row], regression: Row | None) -> None:
    shares = [
        {
            target: row["value"],
            "hidden_unit": str(row["hidden_unit"]),
            "is": "high" if row["sign"] > 0 else "low",
            "auc": row["auc"],
            "correlation": None if row["correlation"] is None else f"{row['correlation']:+z.2f}",
            "texts": row["texts"],
        }
        for row in rows
    ]
    terminal.table(shares, (target, "hidden_unit", "is", "auc", "correlation", "texts"))
    for row in drawn:
        terminal.show("", f"{drawn_unit(row)}")
        terminal.table(
            [{"token": readable(token["token"]), "value": f"{token['value']:+z.3f}"} for token in row["tokens"]],
            ("token", "value"),
        )
    if regression:
        terminal.show(
            "",
            f"logistic regression with {regression['examples']} examples of each value: accuracy "
            f"{regression['accuracy']:.4f} ± {regression['deviation']:.4f} on {regression['tested']:,} texts",
        )
