"""The command line: each verb parses, calls the library, prints. Exit code 2 and one line for a user's mistake."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell.commands import (
    advice,
    baselines,
    completion,
    demo,
    embeddings,
    explain,
    finetuning,
    generation,
    options,
    replay,
    rescoring,
    specificity,
    terminal,
)
from factorcell.config import MODELS, PAPER_MODELS, UserError
from factorcell.evaluation import classification, results
from factorcell.evaluation.perplexity import TOP
from factorcell.model.run import Run
from factorcell.reports import runs
from factorcell.reports import search as trials
from factorcell.reports.demo import demo_page
from factorcell.training import distributed, search, search_space
from factorcell.training.compare import compare as compare_models
from factorcell.training.fit import fit, summary
from factorcell.training.mixture import open_scorer

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    options.threads(getattr(given, "threads", 0))
    try:
        with distributed.one_voice():
            _alone_unless_training(given)
            given.verb(given)
    except UserError as error:
        print(f"factorcell: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        resume = "; the same command with --resume goes on from the last checkpoint" if hasattr(given, "resume") else ""
        again = getattr(given, "again", resume)
        print(f"\nstopped{again}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="factorcell", description="Language models that adapt to context.")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    verb = options.verb(verbs, "train", train, "train a model on a table of texts")
    options.training_files(verb)
    verb.add_argument("--out", required=True, type=Path, help="the run folder")
    verb.add_argument("--model", choices=list(MODELS), help="a model by its name, instead of --adapt and --output-bias")
    verb.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    options.add(verb)

    verb = options.verb(verbs, "compare", compare, "train the papers' models side by side on the same texts")
    options.training_files(verb)
    verb.add_argument("--test", type=Path, help="table to report on (default: the development set)")
    verb.add_argument("--out", required=True, type=Path, help="folder of the run folders")
    verb.add_argument("--models", nargs="+", choices=list(MODELS), default=list(PAPER_MODELS), help="which of them")
    verb.add_argument("--target", help="context column to classify by Bayes' rule")
    verb.add_argument("--resume", action="store_true", help="go on where --out was left")
    options.add(verb)

    _add_tune(verbs)
    finetuning.add(verbs)
    _add_scoring_verbs(verbs)
    baselines.add(verbs)
    completion.add(verbs)
    replay.add(verbs)
    generation.add(verbs)
    specificity.add(verbs)
    advice.add(verbs)
    rescoring.add(verbs)
    embeddings.add(verbs)
    explain.add(verbs)

    verb = options.verb(verbs, "report", make_report, "one page about one or more runs")
    verb.add_argument("runs", nargs="+", type=Path, help="run folders")
    verb.add_argument("--out", required=True, type=Path, help="the HTML file")

    verb = options.verb(verbs, "demo", make_demo, "place names of the world: train, classify, invent, draw (minutes)")
    verb.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the run folders")
    verb.add_argument("--page", type=Path, default=Path("demo.html"), help="the HTML file")
    verb.add_argument("--epochs", type=float, help="passes over the names, each model (default: within minutes)")
    verb.add_argument("--threads", type=int, default=0, help="threads; 0: all cores")
    return parser


def _add_tune(verbs: Any) -> None:
    verb = options.verb(verbs, "tune", tune, "search for good options: many trials, each a run folder")
    options.training_files(verb)
    verb.add_argument("--out", required=True, type=Path, help="folder of the search; one that exists is gone on with")
    verb.add_argument("--trials", type=int, default=50, help="trials in all, those of earlier commands counted")
    verb.add_argument(
        "--models", "--model", nargs="+", choices=list(MODELS), default=[], help="model classes to choose from"
    )
    verb.add_argument("--target", help="context column to classify the development texts by")
    verb.add_argument("--space", type=Path, help="TOML file of ranges and choices; they replace or join the papers'")
    verb.add_argument("--sampler", choices=search.SAMPLERS, default="random", help="how options are drawn")
    verb.add_argument("--pruner", choices=search.PRUNERS, default="median", help="which trials are given up early")
    verb.add_argument("--storage", metavar="URL", help="database of the study (default: study.journal in --out)")
    verb.add_argument("--study", metavar="NAME", help="name of the study (default: that of the folder)")
    options.add(verb)
    verb.set_defaults(again="; the same command goes on")


def _add_scoring_verbs(verbs: Any) -> None:
    verb = options.verb(
        verbs, "evaluate", evaluate, "perplexity of a table of texts; RUN may be what separate or mix made"
    )
    _scoring(verb)
    verb.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="COLUMN",
        help="also by the values of a column (repeatable)",
    )
    verb.add_argument("--top", action="store_true", help="also how often the 1, 3, 5 most probable tokens are right")
    verb.add_argument(
        "--baseline", type=Path, metavar="RUN", help="unadapted run or n-gram model that gains are measured from"
    )

    verb = options.verb(verbs, "classify", classify, "which context does each text have?")
    _scoring(verb)
    verb.add_argument("--target", help="categorical context column to find")
    verb.add_argument("--values", nargs="+", default=[], help="choose among these values only")
    verb.add_argument(
        "--distractors", nargs="+", default=[], help="other values whose texts count as negatives in the AUC"
    )
    verb.add_argument("--priors", default="uniform", choices=("uniform", "training"), help="prior of the values")
    verb.add_argument("--points", type=Path, help="table of named points (column `name`, then numeric context columns)")
    verb.add_argument("--within", type=float, default=float("inf"), help="leave out texts farther (km) from all points")
    verb.add_argument(
        "--samples",
        type=int,
        default=0,
        help="compare values by a softmax over this many draws, say a tenth of the vocabulary; 0: over all tokens",
    )
    verb.add_argument("--out", type=Path, help="write the probabilities of each text (JSON lines)")

    verb = options.verb(verbs, "score", score, "nats and perplexity of each text")
    _scoring(verb)
    verb.add_argument("--tokens", action="store_true", help="also of each token")


def _scoring(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", type=Path, metavar="RUN", help="run folder")
    verb.add_argument("table", type=Path, metavar="TABLE", help="table of texts")
    options.computing(verb)


def train(given: argparse.Namespace) -> None:
    """`factorcell train`."""
    config = options.config(given)
    options.threads(config.training.threads)
    run = fit(given.train, given.dev, config, given.out, resume=given.resume, say=terminal.say)
    if distributed.place()[0] == 0:
        terminal.say(f"{run.folder}: {summary(run)}")


def compare(given: argparse.Namespace) -> None:
    """`factorcell compare`."""
    config = options.config(given)
    options.threads(config.training.threads)
    rows = compare_models(
        given.train,
        given.dev,
        given.test,
        config,
        given.out,
        models=given.models,
        target=given.target,
        resume=given.resume,
        say=terminal.say,
    )
    terminal.table(rows, ("model", "perplexity", "perplexity_known", "accuracy", "parameters", "minutes"))
    page = given.out / "report.html"
    page.write_text(runs.report_page([given.out / name for name in given.models]), encoding="utf-8")
    terminal.say(f"the page: {page}")


def tune(given: argparse.Namespace) -> None:
    """`factorcell tune`."""
    config = options.config(given)
    options.threads(config.training.threads)
    if given.models and (hasattr(given, "adapt") or hasattr(given, "output_bias")):
        raise UserError("give either --models or --adapt and --output-bias")
    asked = {name for name in vars(given) if name in search_space.SECTIONS}
    rows = search.search(
        given.train,
        given.dev,
        config,
        given.out,
        search.SearchOptions(
            trials=given.trials,
            models=given.models,
            ranges=search_space.ranges(given.space, asked),
            target=given.target,
            sampler=given.sampler,
            pruner=given.pruner,
            storage=given.storage,
            study=given.study,
        ),
        say=terminal.say,
        page=trials.page,
    )
    terminal.table(*trials.table(rows[:10]))
    terminal.say(f"the page: {given.out / 'study.html'}; the best options: {given.out / 'best.toml'}")


def evaluate(given: argparse.Namespace) -> None:
    """`factorcell evaluate`."""
    run = open_scorer(given.run, device=given.device, precision=given.precision)
    baseline = given.baseline and open_scorer(given.baseline, device=given.device, precision=given.precision)
    rows = results.evaluate(run, given.table, by=given.by, baseline=baseline, unknown=given.unknown, top=given.top)
    if given.json:
        return terminal.lines(
            [rows["evaluation"], *(dict(row, by=name) for name in given.by for row in rows["by"][name])]
        )
    whole = rows["evaluation"]
    print(
        f"{whole['texts']:,} texts, {whole['targets']:,} targets ({whole['unknown_share']:.1%} out of vocabulary)\n"
        f"perplexity {whole['perplexity']:.2f} of all targets, "
        f"{whole['perplexity_known']:.2f} without out-of-vocabulary ones"
    )
    if given.top:
        print("next token right" + "".join(f", {whole[f'top_{n}']:.4f} among {n}" for n in TOP))
    for name in given.by:
        print(f"\nby {name}; gain over {baseline.folder if baseline else 'the same model without context'}")
        terminal.table(rows["by"][name], ("value", "count", "targets", "perplexity", "perplexity_without", "gain"))
    return None


def classify(given: argparse.Namespace) -> None:
    """`factorcell classify`."""
    run = Run.open(given.run, device=given.device, precision=given.precision)
    if (given.target is None) == (given.points is None):
        raise UserError("give either --target COLUMN or --points TABLE")
    if given.target:
        result = classification.classify(
            run,
            given.table,
            given.target,
            values=given.values,
            distractors=given.distractors,
            priors=given.priors,
            unknown=given.unknown,
            samples=given.samples,
        )
    else:
        points = results.read_points(given.points)
        result = classification.classify_points(
            run, given.table, points, within=given.within, unknown=given.unknown, samples=given.samples
        )
    metrics = result.metrics()
    results.note(
        run,
        {
            "kind": "classify",
            "table": given.table.name,
            "target": given.target,
            **metrics,
            "confusion": {"labels": list(result.names), "counts": result.confusion().tolist()},
        },
    )
    if given.out:
        results.write_predictions(given.out, result)
    terminal.judged(result, metrics, given.json)


def score(given: argparse.Namespace) -> None:
    """`factorcell score`."""
    rows = Run.open(given.run, device=given.device, precision=given.precision).score(
        given.table, tokens=given.tokens, unknown=given.unknown
    )
    if given.json:
        return terminal.lines(rows)
    for row in rows:
        print(f"{row['row'] + 1}\t{row['nats']:.4f}\t{row['targets']}\t{row['perplexity']:.4f}")
        for token in row.get("tokens", ()):
            print(f"\t{token['token']}\t{token['nats']:.4f}")
    return None


def make_report(given: argparse.Namespace) -> None:
    """`factorcell report`."""
    given.out.write_text(runs.report_page(given.runs), encoding="utf-8")
    terminal.say(f"the page: {given.out}")


def make_demo(given: argparse.Namespace) -> None:
    """`factorcell demo`."""
    results = demo.run_demo(given.out, epochs=given.epochs, say=terminal.say)
    print()
    terminal.table(results["models"], ("name", "perplexity", "accuracy", "parameters", "minutes"))
    print()
    for place in results["names"]:
        print(f"{place['place']:>14}  {', '.join(place['samples'])}")
    given.page.write_text(demo_page(results), encoding="utf-8")
    terminal.say(f"\n{results['minutes']:.1f} minutes in all. Open {given.page} in a browser.")


def _alone_unless_training(given: argparse.Namespace) -> None:
    """`UserError` where several processes would do the same and write over each other."""
    _, size = distributed.place()
    if size > 1 and given.verb is not train:
        raise UserError(f"only `train` runs in {size} processes; start the other verbs without torchrun")
