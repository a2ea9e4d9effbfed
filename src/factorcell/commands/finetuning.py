"""The commands `finetune` and `mix`, which train models for several domains and combine them."""

import argparse
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.runs.run import Run, training_facts
from factorcell.training.finetuning import finetune
from factorcell.training.mixture import mix
from factorcell.training.proximal import ALL

Row = dict[str, Any]


def run_finetune(arguments: argparse.Namespace) -> None:
    """Run `factorcell finetune`."""
    base = Run.open(arguments.run)
    specified = options.option_values(arguments)
    options.set_threads(specified.get("threads", base.config.training.threads))
    run = finetune(
        base,
        arguments.table,
        out=arguments.out,
        dev=arguments.dev,
        parts=arguments.train or [ALL],
        l1=arguments.l1,
        unknown=arguments.unknown,
        resume=arguments.resume,
        **specified,
    )
    change_rows = training_facts(run.folder)["finetuned"]["moved"]
    terminal.show_table(change_rows, ("part", "values", "moved"))


def run_mix(arguments: argparse.Namespace) -> None:
    """Run `factorcell mix`."""
    _, rows = mix(
        arguments.runs,
        arguments.dev,
        arguments.out,
        by=arguments.by,
        unknown=arguments.unknown,
        device=arguments.device,
        precision=arguments.precision,
    )
    if arguments.json:
        return terminal.show_json(rows)
    model_columns = [str(number) for number in range(1, len(arguments.runs) + 1)]
    for column, path in zip(model_columns, arguments.runs, strict=True):
        terminal.show(f"{column}: {path}")
    terminal.show("", "weights")
    weight_rows = [_with_model_columns(row, "weights") for row in rows]
    terminal.show_table(weight_rows, ("value", "targets", *model_columns))
    terminal.show("", "perplexity of each model and of the mixture")
    perplexity_rows = [{**_with_model_columns(row, "alone"), "mixture": row["perplexity"]} for row in rows]
    terminal.show_table(perplexity_rows, ("value", *model_columns, "mixture"))
    return None


def _with_model_columns(row: Row, key: str) -> Row:
    """Return `row` with an additional column for each model, named 1, 2 and so on; `row[key]` lists their values."""
    return {**row, **{str(number): value for number, value in enumerate(row[key], 1)}}
