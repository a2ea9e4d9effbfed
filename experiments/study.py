"""Train and measure the rows of an experiment with several seeds; each row is a line of JSON.

An experiment is a recipe and rows of options by which the models differ. Weights are chosen on the development part,
figures are those of the test part. RESULTS/NAME.jsonl holds finished rows, OUT/NAME/ROW/SEED the runs, OUT/tables the
texts. A row keeps the sums of its figures over groups of texts, the same for every row, so that differences of rows
have intervals. A stopped command resumes, half-trained runs included.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from corpora import Tables
from factorcell import files
from factorcell.config import Config, UserError, choose
from factorcell.evaluation import text_figures
from factorcell.evaluation.perplexity import summary_row
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.model import precision
from factorcell.model.adapters import weight_adapters
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer
from factorcell.training.fit import fit

HERE = Path(__file__).parent
TRIAL = 0.01  # of the training texts; ten times that share of the others
SEEDS = (0, 1, 2)
PERPLEXITIES = ("perplexity", "perplexity_known")
GROUPS = 100  # of texts, whose sums a row keeps
POLL = 1.0  # seconds between two looks at the trainings
STOPPED = 130  # the exit code of who was stopped

ROWS: Mapping[str, Mapping[str, Any]] = tomllib.loads((HERE / "rows.toml").read_text(encoding="utf-8"))

Row = dict[str, Any]
Options = Mapping[str, Mapping[str, Any]]  # section -> option -> value


class Training(NamedTuple):
    """A row of an experiment, trained from a seed."""

    row: str
    seed: int

    def __str__(self) -> str:
        return f"{self.row} {self.seed}"


@dataclass(frozen=True)
class Measured:
    """Figures of a run, and what every text adds to those that are compared."""

    row: Row
    figures: Figures = field(default_factory=dict)

    def __or__(self, other: "Measured") -> "Measured":
        return Measured({**self.row, **other.row}, {**self.figures, **other.figures})


@dataclass(frozen=True)
class Baseline:
    """A row that is no single run of the recipe: how it is measured, of its options, the texts and a folder of its own.

    What is `exact` has no chance in it. Runs that the row `after` trains, by any seed, are there when this one is made.
    """

    measure: Callable[[Config, Tables, Path], Measured]
    seeded: bool = True
    after: str = ""
    is_deterministic: bool = False


@dataclass(frozen=True)
class Experiment:
    """`rows` of options over the file `recipe`, the `tables` of (data, folder, share), what else to `measure`.

    `runs` is the experiment whose runs are measured, trained where they are not; its own if not given. `baselines` are
    rows that are made in another way. Every row is trained from all `seeds`. What parts of a text add to a figure is
    made `whole` before random texts are grouped: parts of one are not independent.
    """

    name: str
    recipe: str
    rows: Mapping[str, Options]
    tables: Callable[[Path, Path, float], Tables]
    measure: Callable[[Run, Tables], Measured] = lambda run, tables: Measured({})
    runs: str = ""
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    seeds: Sequence[int] = SEEDS
    merge_parts: Callable[[Figures, Tables], Figures] = lambda figures, tables: figures

    def trainings(self, rows: Iterable[str] = (), seeds: Iterable[int] = ()) -> tuple[Training, ...]:
        """Some rows by some seeds; all where none are given."""
        unseeded = {name for name, baseline in self.baselines.items() if not baseline.seeded}  # their seed is 0
        every = itertools.product(seeds or self.seeds, rows or self.rows)
        return tuple(dict.fromkeys(Training(row, 0 if row in unseeded else seed) for seed, row in every))

    def config(self, training: Training, threads: int) -> Config:
        """The options of a row. `UserError` names what the library does not have."""
        sections = tomllib.loads((HERE / self.recipe).read_text(encoding="utf-8"))
        for section, options in self.rows[training.row].items():
            sections[section] = {**sections.get(section, {}), **options}
        training_options = sections["training"]
        training_options |= {"threads": threads, "seed": training.seed}
        if training_options.get("precision") != precision.FLOAT32:
            training_options["precision"] = training_precision()
        return Config.from_dict(sections, where=f"row {training.row}")


@dataclass(frozen=True)
class Job:
    """An experiment, what of it is wanted, where its rows go, and the command line that asked for it."""

    experiment: Experiment
    data: Path
    out: Path
    results: Path
    trainings: tuple[Training, ...]
    threads: int
    jobs: int
    trial: bool
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the results; those of a trial are kept apart."""
        return self._named(self.experiment.name)

    def _named(self, name: str) -> str:
        return name + ("-trial" if self.trial else "")

    @property
    def rows(self) -> Path:
        """The JSON lines."""
        return self.results / f"{self.name}.jsonl"

    def folder(self, training: Training) -> Path:
        """The run folder of a training."""
        return self.out / self._named(self.experiment.runs or self.experiment.name) / training.row / str(training.seed)

    def tables(self) -> Tables:
        """The texts, written at the first call."""
        folder = self.out / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        return self.experiment.tables(self.data, folder, TRIAL if self.trial else 1.0)

    def command_line(self) -> str:
        """The command line as anybody can type it: folders of this machine by what they are."""
        folders = {str(self.data): "DATA", str(self.results): "RESULTS", str(self.out): "OUT"}
        script, *options = self.command
        if Path(script).is_relative_to(HERE.parent):
            script = str(Path(script).relative_to(HERE.parent))
        return shlex.join(("python", script, *(folders.get(option, option) for option in options)))

    def missing(self) -> list[Training]:
        """What is wanted and not finished; a row that was made with other options is an error."""
        done = {Training(row["row"], row["seed"]): row for row in files.read_rows(self.rows)}
        for training in done.keys() & set(self.trainings):
            saved = Config.from_dict(done[training]["config"])
            if comparable_config(saved) != comparable_config(self.experiment.config(training, saved.training.threads)):
                raise UserError(f"{self.rows}: row {training} was made with other options; choose another --results")
        return [training for training in self.trainings if training not in done]

    def ready(self, waiting: Sequence[Training], running: Collection[Training]) -> Training | None:
        """The first of those `waiting` that wants no runs of another one; None if there is none."""
        for training in waiting:
            baseline = self.experiment.baselines.get(training.row)
            if baseline is None or all(other.row != baseline.after for other in (*waiting, *running)):
                return training
        return None


def comparable_config(config: Config) -> Config:
    """The options by which rows differ: not the precision, the machine's, nor some that no part of the model reads.

    Those are a penalty where no sparse bias has it, and sizes of a context vector that there is not.
    """
    model, training = config.model, replace(config.training, precision=precision.FLOAT32)
    if "sparse" not in model.output_bias:
        training = replace(training, sparse_l1=())
    if not (model.output_bias or weight_adapters(model)):
        model = replace(model, context_size=1, variable_size=1)
    return replace(config, model=model, training=training)


def training_precision() -> str:
    """The precision of all trainings here, but those that are to have float32: what the processor has instructions for.

    What is faster at a busy moment is not to tell rows apart. Which of the two it is tells nothing (LOG, 2026-11-24).
    """
    return precision.BFLOAT16 if precision.is_supported(torch.device("cpu")) else precision.FLOAT32


def parser(text: str) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    result = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--data", type=Path, required=True, help="folder with a folder of Parquet files for each set")
    result.add_argument("--out", type=Path, required=True, help="folder for runs; the same one to go on")
    result.add_argument("--results", type=Path, help="folder for the rows; that of the runs, if not given")
    result.add_argument("--only", nargs="+", metavar="ROW", help="these rows; all, if not given")
    result.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="trainings of each row; all, if not given")
    result.add_argument("--threads", type=int, default=1, help="threads of each training")
    result.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    result.add_argument("--trial", action="store_true", help="a hundredth of the data, to see that all works")
    return result


def main(experiment: Experiment, arguments: argparse.Namespace, command: Sequence[str]) -> int:
    """Train and measure the missing rows; the exit code."""
    try:
        rows = [choose("row", name, experiment.rows) for name in arguments.only or ()]
        trainings = experiment.trainings(rows, arguments.seeds or ())
        where = arguments.data, arguments.out, arguments.results or arguments.out
        job = Job(experiment, *where, trainings, arguments.threads, arguments.jobs, arguments.trial, tuple(command))
        missing = job.missing()
        if not missing:
            return 0  # the texts of all finished tables would take minutes to write
        job.results.mkdir(parents=True, exist_ok=True)
        tables = job.tables()
        if min(job.jobs, len(missing)) > 1:
            return run_in_parallel(job, missing)
        torch.set_num_threads(job.threads)
        for training in missing:
            make_row(job, training, tables)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return STOPPED
    return 0


def make_row(job: Job, training: Training, tables: Tables) -> None:
    """Train one row, or go on with it, measure it, and add it to the results."""
    config, baseline = job.experiment.config(training, job.threads), job.experiment.baselines.get(training.row)
    make = baseline.measure if baseline else partial(train_and_measure, job.experiment)
    measured = make(config, tables, job.folder(training))
    figures = job.experiment.merge_parts(measured.figures, tables)
    result = {
        "experiment": job.name,
        **training._asdict(),
        "command": job.command_line(),
        "commit": current_commit(),
        "machine": processor_name(),
        **measured.row,
        **({"exact": True} if baseline and baseline.is_deterministic else {}),
        "sums": {name: group_sums(sums) for name, sums in figures.items()},
        "config": config.to_dict(),
    }
    files.append_row(job.rows, result)
    shown = (*Training._fields, "minutes", "perplexity", "accuracy")
    print(json.dumps({key: result[key] for key in shown if key in result}), flush=True)


def train_and_measure(experiment: Experiment, config: Config, tables: Tables, folder: Path) -> Measured:
    """A run of the options, trained to its end, and what the experiment measures of it."""
    say = print if sys.stderr.isatty() else None
    run = fit(tables["train"], tables["dev"], config, folder, resume=True, notify=say)
    best = run.best_evaluation()
    assert best is not None  # a training ends with an evaluation
    row = {
        "precision": run.config.training.precision,
        "minutes": run.training_minutes(),
        "parameters": run.model.parameter_count(),
        **files.read_json(run.folder / "training.json"),
        "dev": {key: best[key] for key in (*PERPLEXITIES, "step", "steps")},
    }
    return Measured(row) | measure_perplexity(run, tables["test"]) | experiment.measure(run, tables)


def measure_perplexity(scorer: Scorer, table: Path) -> Measured:
    """Both perplexities of the test."""
    corpus = scorer.prepare(table, unknown="group")
    figures = text_figures.figures_from_nats(nats := scorer.nats(corpus), corpus)
    return Measured(summary_row(nats, corpus), {name: figures[name] for name in PERPLEXITIES})


def group_sums(sums: TextSums) -> Row:
    """Sums over `GROUPS` groups of random texts: the same groups wherever the texts are the same."""
    texts = len(sums.numerator)
    groups = np.random.default_rng(texts).permutation(texts) % min(GROUPS, texts)
    above, below = (np.bincount(groups, weights=part) for part in (sums.numerator, sums.denominator))
    return {"key": sums.key, "above": [float(f"{value:.8g}") for value in above], "below": below.tolist()}


def grouped_figures(row: Row) -> Figures:
    """What groups of texts add to the figures of a row."""
    return {
        name: TextSums(sums["key"], np.array(sums["above"]), np.array(sums["below"]))
        for name, sums in row["sums"].items()
    }


def run_in_parallel(job: Job, missing: Sequence[Training]) -> int:
    """Each in a process of its own, `jobs` at once; one that fails leaves the others alone. The exit code."""
    waiting, running, failed = list(missing), dict[Training, subprocess.Popen[bytes]](), list[Training]()
    with terminate_on_exit(running), tqdm(total=len(missing), desc=job.name, unit="row", dynamic_ncols=True) as bar:
        while waiting or running:
            while len(running) < job.jobs and (training := job.ready(waiting, running)):
                waiting.remove(training)
                running[training] = _started(job, training)
            time.sleep(POLL)
            for training, process in list(running.items()):
                if process.poll() is not None:
                    del running[training]
                    failed += [training] if process.returncode else []
            bar.n = len(missing) - len(waiting) - len(running)
            bar.refresh()
    for training in failed:
        last = _log(job, training).read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1]
        print(f"{training} failed: {last} (all of it in {_log(job, training)})", file=sys.stderr)
    return 1 if failed else 0


def _started(job: Job, training: Training) -> "subprocess.Popen[bytes]":
    """A process that makes one row; what it says goes into a file."""
    command = [sys.executable, *job.command, "--jobs", "1", "--only", training.row, "--seeds", str(training.seed)]
    log = _log(job, training)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        threads = {"OMP_NUM_THREADS": str(job.threads)}
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | threads)


def _log(job: Job, training: Training) -> Path:
    return job.folder(training).with_suffix(".txt")


@contextlib.contextmanager
def terminate_on_exit(running: Mapping[Any, "subprocess.Popen[bytes]"]) -> Iterator[None]:
    """However this process ends, but for a kill, those that are `running` end with it."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


# ---- where a row comes from ----


def current_commit() -> str:
    """The commit of this checkout, with a + where files differ from it; empty where there is none."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def processor_name() -> str:
    """The processor: what fits into a minute of it differs between them by a third and more."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
