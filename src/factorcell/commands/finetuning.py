"""The verbs for texts of several domains: fine-tuning, separate models, mixtures."""

import argparse
from typing import Any

from factorcell.commands import options, terminal
from factorcell.finite import format_number
from factorcell.model.run import Run, training_facts
from factorcell.training.finetuning import finetune
from factorcell.training.fit import summary
from factorcell.training.mixture import mix, open_scorer
from factorcell.training.per_value import separate
from factorcell.training.proximal import ALL

Row = dict[str, Any]


def run_finetune(given: argparse.Namespace) -> None:
    """`factorcell finetune`."""
    old = Run.open(given.run)
    own = options.specified_options(given)["training"]
    options.set_threads(own.get("threads", old.config.training.threads))
    run = finetune(
        old,
        given.table,
        given.dev,
        given.out,
        parts=given.train or [ALL],
        l1=given.l1,
        training=own,
        unknown=given.unknown,
        resume=given.resume,
        notify=terminal.notify,
    )
    terminal.notify(f"{run.folder}: {summary(run)}; it was {format_number(run.log()[0]['perplexity'], '.2f')} before")
    terminal.show_table(training_facts(run.folder)["finetuned"]["moved"], ("part", "values", "moved"))


def run_separate(given: argparse.Namespace) -> None:
    """`factorcell separate`."""
    said, budget = options.training_request(given)
    separate(
        given.train, given.dev, said, given.out, by=given.by, budget=budget, resume=given.resume, notify=terminal.notify
    )
    terminal.notify(
        f"to score texts, each by the run of its value: factorcell evaluate {given.out} TABLE --by {given.by}"
    )


def run_mix(given: argparse.Namespace) -> None:
    """`factorcell mix`."""
    models = [options.open_on_device(open_scorer, path, given) for path in given.runs]
    _, rows = mix(models, given.dev, given.out, by=given.by, unknown=given.unknown)
    if given.json:
        return terminal.show_json(rows)
    numbers = [str(number) for number in range(1, len(models) + 1)]
    for number, path in zip(numbers, given.runs, strict=True):
        terminal.show(f"{number}: {path}")
    terminal.show("", "weights")
    terminal.show_table([_numbered(row, "weights") for row in rows], ("value", "targets", *numbers))
    terminal.show("", "perplexity alone and mixed")
    terminal.show_table([_numbered(row, "alone") for row in rows], ("value", *numbers, "perplexity"))
    return None


def _numbered(row: Row, key: str) -> Row:
    """The row with what it has for every model under the model's number."""
    return {**row, **{str(number): value for number, value in enumerate(row[key], 1)}}
