"""The command `explain`, which shows for each token of a text how probable it is given each of several contexts."""

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

# Pairs of a background and a foreground colour (numbers of the 256 terminal colours), from weak to strong ratios.
# Tokens that are more probable given the second context are orange and also underlined.
BLUES = ((153, 16), (75, 16), (26, 231))
ORANGES = ((223, 16), (215, 16), (166, 231))

Row = dict[str, Any]


def run_explain(arguments: argparse.Namespace) -> None:
    """Run `factorcell explain`."""
    contexts = contexts_between(arguments.between, options.parse_context(arguments.context))
    ensemble, compared_runs = (
        [options.open_on_device(Run.open, folder, arguments) for folder in folders]
        for folders in ((arguments.run, *arguments.ensemble), arguments.compare_with)
    )
    texts = _read_texts(arguments, ensemble[0].config.data.text)
    run_warnings = find_warnings([*ensemble, *compared_runs])
    options.notify_rare_values(ensemble[0].schema, *contexts.values())
    model_name = arguments.run.name + (f" and {len(arguments.ensemble)} more" if arguments.ensemble else "")
    rows = explain(ensemble, texts, contexts, unknown=arguments.unknown)
    if compared_runs:
        rows = [{"model": model_name, **row} for row in rows]
        for run in compared_runs:
            rows += [
                {"model": run.folder.name, **row} for row in explain([run], texts, contexts, unknown=arguments.unknown)
            ]
        rows.sort(key=lambda row: texts.index(row["text"]))
    if arguments.page:
        from factorcell.reports.explain import explanation_page

        files.write(arguments.page, explanation_page(model_name, rows, len(ensemble), run_warnings))
        terminal.notify(f"report: {arguments.page}")
    if arguments.json:
        terminal.show_json(rows)
    else:
        _show(rows, list(contexts))
    terminal.notify(*run_warnings)


def contexts_between(between: Sequence[str], shared: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the contexts of --between by name; each text has one `NAME=VALUE`, or several separated by semicolons.

    Every context also has the values of `shared`.
    """
    contexts = {}
    for text in between:
        # A semicolon is part of a value unless another NAME= follows it.
        context = options.parse_context(re.split(r";\s*(?=[^;=]+=)", text), "--between")
        name = context_text(context)
        if duplicates := set(context) & set(shared):
            raise UserError(f"--between and --context both have a value for {', '.join(sorted(duplicates))}")
        if name in contexts:
            raise UserError(f"--between: {name} is given twice")
        contexts[name] = {**shared, **context}
    if len(contexts) < 2:
        raise UserError(f"--between: expected two or more contexts, got only {', '.join(contexts)}")
    return contexts


def _read_texts(arguments: argparse.Namespace, column: str) -> list[str]:
    """Return the distinct texts of --text, of the `column` of a table, or of the lines of a file."""
    if (arguments.file is None) == (not arguments.text):
        raise UserError("give either FILE (one text per line, or a table) or --text")
    if arguments.text:
        return list(dict.fromkeys(arguments.text))
    if Path(arguments.file).suffix.lower() in FORMATS:
        return list(dict.fromkeys(read_texts(arguments.file, column)))
    content = (
        streams.decode(sys.stdin.buffer.read()) if arguments.file == "-" else input_files.read_text(arguments.file)
    )
    texts = list(dict.fromkeys(line.strip() for line in content.splitlines() if line.strip()))
    if not texts:
        raise UserError(f"{arguments.file}: the file contains no text")
    return texts


def _show(rows: Sequence[Row], between: Sequence[str]) -> None:
    colour = terminal.has_colours(sys.stdout)
    if len(between) == 2:
        # The legend marks the names of the contexts like tokens with strong ratios of 9 nats.
        first, second = (mark_token(name, sign * 9.0, colour) for name, sign in zip(between, (1, -1), strict=True))
        terminal.show(
            terminal.join("", ["more probable given ", first, ", given ", second, "; ¶ is the end of the text"])
        )
    for row in rows:
        terminal.show("", *([row["model"]] if "model" in row else []))
        if len(between) == 2:
            gap = " " if row["tokenizer"] in ("word", "space") else ""
            marks = [mark_token(readable_token(token["token"]), token["ratio"], colour) for token in row["tokens"]]
            terminal.show(terminal.join(gap, marks))
            terminal.show(
                f"{row['ratio']:+z.2f} nats in total; p({between[0]} | text) = {row['posterior'][between[0]]:.1%}"
            )
            if unknown := [readable_token(token["token"]) for token in row["tokens"] if not token["known"]]:
                terminal.show(f"out of vocabulary: {', '.join(dict.fromkeys(unknown))}")
        else:
            posteriors = [
                {
                    "token": readable_token(token["token"]),
                    **{name: f"{token['posterior'][name]:.1%}" for name in between},
                }
                for token in row["tokens"]
            ]
            terminal.show_table(posteriors, ("token", *between))


def mark_token(text: str, ratio: float, colour: bool) -> str:
    """Return a token with marks for the strength of its log-likelihood ratio.

    The marks are colours (blue for positive ratios, underlined orange for negative ones), or without `colour` up to
    three superscript signs.
    """
    level = strength(ratio)
    if not level:
        return text
    if not colour:
        return text + ("⁺" if level > 0 else "⁻") * abs(level)
    background, foreground = (BLUES if level > 0 else ORANGES)[abs(level) - 1]
    underline = "" if level > 0 else "4;"
    return terminal.coloured(text, f"{underline}48;5;{background};38;5;{foreground}")
