"""The command `factorcell explain`: texts token by token between contexts."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell import files, input_files
from factorcell.commands import options, streams, terminal
from factorcell.config import UserError
from factorcell.data.tables import FORMATS
from factorcell.evaluation.likelihood_ratios import context_text, explain, read_texts, strength
from factorcell.evaluation.run_warnings import find_warnings
from factorcell.model.run import Run
from factorcell.reports.wording import readable_token

# Background and foreground of the 256 colours of a terminal, from weak to strong; the second context is underlined too.
BLUES = ((153, 16), (75, 16), (26, 231))
ORANGES = ((223, 16), (215, 16), (166, 231))

Row = dict[str, Any]


def run_explain(given: argparse.Namespace) -> None:
    """`factorcell explain`."""
    contexts = contexts_between(given.between, options.parse_context(given.context))
    runs, others = (
        [options.open_on_device(Run.open, folder, given) for folder in folders]
        for folders in ((given.run, *given.ensemble), given.beside)
    )
    texts = _texts(given, runs[0].config.data.text)
    doubts = find_warnings([*runs, *others])
    options.notify_rare_values(runs[0].schema, *contexts.values())
    name = given.run.name + (f" and {len(given.ensemble)} more" if given.ensemble else "")
    rows = explain(runs, texts, contexts, unknown=given.unknown)
    if others:
        rows = [{"model": name, **row} for row in rows]
        for run in others:
            rows += [
                {"model": run.folder.name, **row} for row in explain([run], texts, contexts, unknown=given.unknown)
            ]
        rows.sort(key=lambda row: texts.index(row["text"]))
    if given.page:
        from factorcell.reports.explain import explanation_page

        files.write(given.page, explanation_page(name, rows, len(runs), doubts))
        terminal.notify(f"the page: {given.page}")
    if given.json:
        terminal.show_json(rows)
    else:
        _show(rows, list(contexts))
    terminal.notify(*doubts)


def contexts_between(between: Sequence[str], shared: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the contexts of `--between`, `NAME=VALUE` or several with semicolons, by name; `shared` is in all."""
    contexts = {}
    for text in between:
        own = options.parse_context(re.split(r";\s*(?=[^;=]+=)", text), "--between")
        if both := set(own) & set(shared):
            raise UserError(f"{', '.join(sorted(both))} is given by --between and by --context")
        if context_text(own) in contexts:
            raise UserError(f"--between names {context_text(own)} twice")
        contexts[context_text(own)] = {**shared, **own}
    if len(contexts) < 2:
        raise UserError(f"--between has {', '.join(contexts)} alone; it takes two contexts or more")
    return contexts


def _texts(given: argparse.Namespace, column: str) -> list[str]:
    """Return the texts, each once: of --text, of the `column` of a table, or the lines of a file."""
    if (given.file is None) == (not given.text):
        raise UserError("give either a FILE of texts, one a line, or --text")
    if given.text:
        return list(dict.fromkeys(given.text))
    if Path(given.file).suffix.lower() in FORMATS:
        return list(dict.fromkeys(read_texts(given.file, column)))
    content = streams.decode(sys.stdin.buffer.read()) if given.file == "-" else input_files.read_text(given.file)
    texts = list(dict.fromkeys(line.strip() for line in content.splitlines() if line.strip()))
    if not texts:
        raise UserError(f"{given.file}: there is no text in it")
    return texts


def _show(rows: Sequence[Row], between: Sequence[str]) -> None:
    colour = terminal.has_colours(sys.stdout)
    if len(between) == 2:
        first, second = (mark_token(name, sign * 9.0, colour) for name, sign in zip(between, (1, -1), strict=True))
        terminal.show(terminal.join("", ["likelier given ", first, ", given ", second, "; ¶ is the end"]))
    for row in rows:
        terminal.show("", *([row["model"]] if "model" in row else []))
        if len(between) == 2:
            gap = " " if row["tokenizer"] in ("word", "space") else ""
            marks = [mark_token(readable_token(token["token"]), token["ratio"], colour) for token in row["tokens"]]
            terminal.show(terminal.join(gap, marks))
            terminal.show(f"{row['ratio']:+z.2f} nats in all; {between[0]} has {row['posterior'][between[0]]:.1%}")
            if strange := [readable_token(token["token"]) for token in row["tokens"] if not token["known"]]:
                terminal.show(f"read as unknown: {', '.join(dict.fromkeys(strange))}")
        else:
            shares = [
                {
                    "token": readable_token(token["token"]),
                    **{name: f"{token['posterior'][name]:.1%}" for name in between},
                }
                for token in row["tokens"]
            ]
            terminal.show_table(shares, ("token", *between))


def mark_token(text: str, ratio: float, colour: bool) -> str:
    """Return a text coloured by its ratio, blue or underlined orange, or followed by up to three raised signs."""
    power = strength(ratio)
    if not power:
        return text
    if not colour:
        return text + ("⁺" if power > 0 else "⁻") * abs(power)
    back, front = (BLUES if power > 0 else ORANGES)[abs(power) - 1]
    under = "" if power > 0 else "4;"
    return terminal.coloured(text, f"{under}48;5;{back};38;5;{front}")
