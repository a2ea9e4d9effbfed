"""The verbs for texts of several domains: fine-tuning, separate models, mixtures."""

import argparse
from pathlib import Path
from typing import Any

from factorcell.commands import options, terminal
from factorcell.config import Config
from factorcell.model.run import Run
from factorcell.training.finetuning import GENTLE, finetune, gentle
from factorcell.training.fit import facts, summary
from factorcell.training.mixture import mix, open_scorer
from factorcell.training.per_value import separate
from factorcell.training.proximal import ALL, PARTS

Row = dict[str, Any]


def add(verbs: Any) -> None:
    """Add the verbs to those of the command line."""
    told = ", ".join(f"{name} {value}" for name, value in GENTLE.items())
    verb = options.verb(verbs, "finetune", finetune_run, f"train a run further on few texts (by default with {told})")
    verb.add_argument("run", type=Path, metavar="RUN", help="the run folder to begin from")
    verb.add_argument("table", type=Path, metavar="TABLE", help="table of texts")
    verb.add_argument("--dev", type=Path, help="development table (default: 5 %% of the rows are held out)")
    verb.add_argument("--out", required=True, type=Path, help="the new run folder")
    parts = f"{{{','.join((ALL, *PARTS))}}}"
    verb.add_argument("--train", action="append", metavar=parts, help="part that moves (repeatable; default: all)")
    verb.add_argument("--l1", type=float, default=0.0, help="penalty, in nats, on how far each value moves")
    options.unknown(verb)
    verb.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    options.add(verb, ("training",))

    verb = options.verb(verbs, "separate", train_separate, "train an unadapted run for each value of a column")
    options.training_files(verb)
    verb.add_argument("--by", required=True, metavar="COLUMN", help="the column")
    verb.add_argument("--out", required=True, type=Path, help="folder of the run folders")
    verb.add_argument("--resume", action="store_true", help="go on where --out was left")
    options.add(verb)

    verb = options.verb(verbs, "mix", make_mixture, "fit the weights of a linear mixture of runs")
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, of `separate` or of `mix`")
    verb.add_argument("--dev", required=True, type=Path, help="table of texts that the weights are fitted to")
    verb.add_argument("--by", metavar="COLUMN", help="weights of their own for every value of a column")
    verb.add_argument("--out", required=True, type=Path, help="folder of the mixture")
    options.computing(verb)


def finetune_run(given: argparse.Namespace) -> None:
    """`factorcell finetune`."""
    old = Run.open(given.run)
    config = options.config(given, Config(old.config.data, old.config.model, gentle(old.config.training)))
    options.threads(config.training.threads)
    run = finetune(
        old,
        given.table,
        given.dev,
        given.out,
        parts=given.train or [ALL],
        l1=given.l1,
        training=config.training,
        unknown=given.unknown,
        resume=given.resume,
        say=terminal.say,
    )
    terminal.say(f"{run.folder}: {summary(run)}; it was {run.log()[0]['perplexity']:.2f} before")
    terminal.table(facts(run)["finetuned"]["moved"], ("part", "values", "moved"))


def train_separate(given: argparse.Namespace) -> None:
    """`factorcell separate`."""
    config = options.config(given)
    options.threads(config.training.threads)
    separate(given.train, given.dev, config, given.out, by=given.by, resume=given.resume, say=terminal.say)
    terminal.say(f"to score texts, each by the run of its value: factorcell evaluate {given.out} TABLE --by {given.by}")


def make_mixture(given: argparse.Namespace) -> None:
    """`factorcell mix`."""
    models = [open_scorer(path, device=given.device, precision=given.precision) for path in given.runs]
    _, rows = mix(models, given.dev, given.out, by=given.by, unknown=given.unknown)
    if given.json:
        return terminal.lines(rows)
    numbers = [str(number) for number in range(1, len(models) + 1)]
    for number, path in zip(numbers, given.runs, strict=True):
        terminal.show(f"{number}: {path}")
    terminal.show("\nweights")
    terminal.table([_numbered(row, "weights") for row in rows], ("value", "targets", *numbers))
    terminal.show("\nperplexity alone and mixed")
    terminal.table([_numbered(row, "alone") for row in rows], ("value", *numbers, "perplexity"))
    return None


def _numbered(row: Row, key: str) -> Row:
    """The row with what it has for every model under the model's number."""
    return {**row, **{str(number): value for number, value in enumerate(row[key], 1)}}
