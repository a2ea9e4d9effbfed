"""Train and measure the rows of an experiment with several seeds; each row is a line of JSON.

An experiment is a recipe and rows of options by which the models differ. Weights are chosen on the development part,
figures are those of the test part. RESULTS/NAME.jsonl holds finished rows, OUT/NAME/ROW/SEED the runs, OUT/tables the
texts. A row stores the sums of its figures over groups of texts, which are the same for every row, so differences of
rows have intervals. A stopped command resumes, and so do its unfinished trainings.
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
from factorcell.adapters.adapters import weight_adapters
from factorcell.config import Config
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.perplexity import evaluate_corpus
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.io import files
from factorcell.nn.devices import FLOAT32
from factorcell.nn.output_bias import BLOOM_SIZE, HASH_SIZE
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from factorcell.training.fit import fit
from paper_kinds import BareWordOptions, SizedSoftmaxOptions

EXPERIMENTS_FOLDER = Path(__file__).parent
TRIAL_SHARE = 0.01  # share of the training texts in a trial; ten times that share of the others
SEEDS = (0, 1, 2)
PERPLEXITIES = ("perplexity", "perplexity_known")
GROUPS = 100  # groups of texts whose sums a row stores
POLL_SECONDS = 1.0  # interval between checks of the running trainings
INTERRUPTED = 130  # exit code after SIGINT or SIGTERM

ROWS: Mapping[str, Mapping[str, Any]] = tomllib.loads((EXPERIMENTS_FOLDER / "rows.toml").read_text(encoding="utf-8"))

Row = dict[str, Any]
Options = Mapping[str, Mapping[str, Any]]  # section -> option -> value


class Training(NamedTuple):
    row: str
    seed: int

    def __str__(self) -> str:
        return f"{self.row} {self.seed}"


# Options of saved rows that have become constants or follow from other options, with the values that do not
# distinguish rows; None stands for all values.
REMOVED_OPTIONS: dict[str, tuple[Any, ...] | None] = {
    "decay": ("cosine",),
    "dropout_token": (0.0,),
    "max_context_words": (10_000,),
    "missing": ("expected",),
    "max_prompt_tokens": (100,),
    "min_context_word": (5,),
    "number_size": (64, 16),
    "number_layers": (2,),
    "max_user_texts": (0,),
    "heads": (0, 4),
    "warmup": (0.02, 0.1),
    "clip": (1.0, 5.0),
    "value_prior": (0.0,),
    **dict.fromkeys(("log_every", "save_every", "min_text_count", "max_dev_targets", "base_digest", "base_precision")),
}
DEFAULT_HASH = {"hash_size": HASH_SIZE, "bloom_size": BLOOM_SIZE}


@dataclass(frozen=True)
class Measurement:
    """Figures of a run, and the contribution of every text to those figures that rows are compared by."""

    row: Row
    figures: Figures = field(default_factory=dict)

    def __or__(self, other: "Measurement") -> "Measurement":
        return Measurement({**self.row, **other.row}, {**self.figures, **other.figures})


@dataclass(frozen=True)
class Baseline:
    """A row that is not one run of the recipe; it starts when the trainings of the row `after` are finished."""

    measure: Callable[[Config, Tables, Path], Measurement]
    seeded: bool = True
    after: str = ""
    is_deterministic: bool = False


@dataclass(frozen=True)
class Experiment:
    """Rows of options over the file `recipe`, on the tables that `tables` makes from (data, folder, share).

    `measure` adds figures of a run to its perplexities. `runs` is the experiment whose runs are measured and, if
    necessary, trained; by default its own. `baselines` are rows that are made in another way. Every row has all seeds.
    `merge_parts` sums the figures of parts of a text before texts are grouped, because parts depend on each other.
    `training_table` chooses the training table of a run, for experiments in which it depends on the seed.
    """

    name: str
    recipe: str
    rows: Mapping[str, Options]
    tables: Callable[[Path, Path, float], Tables]
    measure: Callable[[Run, Tables], Measurement] = lambda run, tables: Measurement({})
    runs: str = ""
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    seeds: Sequence[int] = SEEDS
    merge_parts: Callable[[Figures, Tables], Figures] = lambda figures, tables: figures
    training_table: Callable[[Config, Tables], Path] = lambda config, tables: tables["train"]

    def trainings(self, names: Iterable[str] = (), seeds: Iterable[int] = ()) -> tuple[Training, ...]:
        unseeded = {name for name, baseline in self.baselines.items() if not baseline.seeded}  # their seed is 0
        pairs = itertools.product(seeds or self.seeds, names or self.rows)
        return tuple(dict.fromkeys(Training(row, 0 if row in unseeded else seed) for seed, row in pairs))

    def config(self, training: Training, threads: int) -> Config:
        """Return the options of a row. Raises `UserError` for options that the library does not have."""
        sections = tomllib.loads((EXPERIMENTS_FOLDER / self.recipe).read_text(encoding="utf-8"))
        for section, options in self.rows[training.row].items():
            sections[section] = {**sections.get(section, {}), **options}
        training_options = sections["training"]
        training_options |= {"threads": threads, "seed": training.seed}
        return Config.from_dict(sections, where=f"row {training.row}")


@dataclass(frozen=True)
class Job:
    """Trainings of an experiment to make, the folders for their results, and the command line that requested them."""

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
        return self._name_of(self.experiment.name)

    def _name_of(self, name: str) -> str:
        return name + ("-trial" if self.trial else "")

    @property
    def rows(self) -> Path:
        return self.results / f"{self.name}.jsonl"

    def folder(self, training: Training) -> Path:
        return (
            self.out / self._name_of(self.experiment.runs or self.experiment.name) / training.row / str(training.seed)
        )

    def tables(self) -> Tables:
        folder = self.out / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        return self.experiment.tables(self.data, folder, TRIAL_SHARE if self.trial else 1.0)

    def command_line(self) -> str:
        """Return the command line with names in place of the folders of this machine."""
        folders = {str(self.data): "DATA", str(self.results): "RESULTS", str(self.out): "OUT"}
        script, *options = self.command
        if Path(script).is_relative_to(EXPERIMENTS_FOLDER.parent):
            script = str(Path(script).relative_to(EXPERIMENTS_FOLDER.parent))
        return shlex.join(("python", script, *(folders.get(option, option) for option in options)))

    def missing(self) -> list[Training]:
        """Return the trainings that are not finished. Raises `UserError` for rows made with other options."""
        done = {Training(row["row"], row["seed"]): row for row in files.read_rows(self.rows)}
        for training in done.keys() & set(self.trainings):
            saved = Config.from_dict(current_options(done[training]["config"]))
            if comparable_config(saved) != comparable_config(self.experiment.config(training, saved.training.threads)):
                raise UserError(
                    f"{self.rows}: row {training} was made with other options; choose another --results folder"
                )
        return [training for training in self.trainings if training not in done]

    def next_ready(self, waiting: Sequence[Training], running: Collection[Training]) -> Training | None:
        """Return the first waiting training whose row does not need unfinished runs of another row, or None."""
        for training in waiting:
            baseline = self.experiment.baselines.get(training.row)
            if baseline is None or all(other.row != baseline.after for other in (*waiting, *running)):
                return training
        return None


def current_options(sections: Row) -> Row:
    """Return a saved config with the options of today; other values than those of `REMOVED_OPTIONS` stay."""
    current = {section: dict(options) for section, options in sections.items()}
    for options in current.values():
        for name in options.keys() & REMOVED_OPTIONS.keys():
            values = REMOVED_OPTIONS[name]
            if values is None or options[name] in values:
                del options[name]
    data, tokenizer, head, training = (current.get(name, {}) for name in ("data", "tokenizer", "head", "training"))
    if prompts := data.pop("prompt", ()):
        data["context"] = [*data["context"], *(f"{column}:prompt" for column in prompts)]
    if tokenizer.pop("strip_punctuation", False):
        tokenizer["kind"] = BareWordOptions.kind
    if {name: head[name] for name in DEFAULT_HASH if name in head} == DEFAULT_HASH:
        for name in DEFAULT_HASH:
            del head[name]
    elif "hash_size" in head:
        head["kind"] = SizedSoftmaxOptions.kind
    if training.pop("loss", "") == "full":
        training["samples"] = 0
    return current


def comparable_config(config: Config) -> Config:
    """Return a config without options that do not distinguish rows: the precision, and those the model never reads."""
    model, training = config.model, replace(config.training, precision=FLOAT32)
    if "sparse" not in model.output_bias:
        training = replace(training, sparse_l1=())
    if not (model.output_bias or weight_adapters(model)):
        model = replace(model, context_size=1, variable_size=1)
    return replace(config, model=model, training=training)


def parser(text: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument(
        "--data", type=Path, required=True, help="folder of the data sets, each a folder of Parquet files"
    )
    result.add_argument("--out", type=Path, required=True, help="folder of the runs; the same folder resumes them")
    result.add_argument("--results", type=Path, help="folder of the rows (default: the folder of the runs)")
    result.add_argument("--only", nargs="+", metavar="ROW", help="rows to make (default: all)")
    result.add_argument(
        "--seeds", nargs="+", type=int, metavar="SEED", help="seeds of the trainings of each row (default: all)"
    )
    result.add_argument("--threads", type=int, default=1, help="threads of each training")
    result.add_argument("--jobs", type=int, default=2, help="number of trainings at the same time")
    result.add_argument("--trial", action="store_true", help="use a hundredth of the data, as a test")
    return result


def main(experiment: Experiment, arguments: argparse.Namespace, command: Sequence[str]) -> int:
    try:
        rows = [check_choice("row", name, experiment.rows) for name in arguments.only or ()]
        trainings = experiment.trainings(rows, arguments.seeds or ())
        where = arguments.data, arguments.out, arguments.results or arguments.out
        job = Job(experiment, *where, trainings, arguments.threads, arguments.jobs, arguments.trial, tuple(command))
        missing = job.missing()
        if not missing:
            return 0  # without writing the texts, which takes minutes
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
        print("stopped; the same command resumes", file=sys.stderr)
        return INTERRUPTED
    return 0


def make_row(job: Job, training: Training, tables: Tables) -> None:
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
    summary_keys = (*Training._fields, "minutes", "perplexity", "accuracy")
    print(json.dumps({key: result[key] for key in summary_keys if key in result}), flush=True)


def train_and_measure(experiment: Experiment, config: Config, tables: Tables, folder: Path) -> Measurement:
    """Train a run to its end and return its figures and those of the experiment."""
    run = fit(experiment.training_table(config, tables), dev=tables["dev"], out=folder, resume=True, config=config)
    best = run.best_evaluation()
    assert best is not None  # a training ends with an evaluation
    row = {
        "precision": run.config.training.precision,
        "minutes": run.training_minutes(),
        "parameters": run.model.parameter_count(),
        **files.read_json(run.folder / "training.json"),
        "dev": {key: best[key] for key in (*PERPLEXITIES, "step", "steps")},
    }
    return Measurement(row) | measure_perplexity(run, tables["test"]) | experiment.measure(run, tables)


def measure_perplexity(scorer: Scorer, table: Path) -> Measurement:
    corpus = scorer.prepare(table, unknown="group")
    evaluation = evaluate_corpus(scorer, corpus)
    return Measurement(evaluation.row, {name: evaluation.figures[name] for name in PERPLEXITIES})


def group_sums(sums: TextSums) -> Row:
    """Return sums over `GROUPS` random groups of texts; the same texts always have the same groups."""
    texts = len(sums.numerator)
    groups = np.random.default_rng(texts).permutation(texts) % min(GROUPS, texts)
    above, below = (np.bincount(groups, weights=part) for part in (sums.numerator, sums.denominator))
    return {"key": sums.key, "above": [float(f"{value:.8g}") for value in above], "below": below.tolist()}


def grouped_figures(row: Row) -> Figures:
    return {
        name: TextSums(sums["key"], np.array(sums["above"]), np.array(sums["below"]))
        for name, sums in row["sums"].items()
    }


def run_in_parallel(job: Job, missing: Sequence[Training]) -> int:
    """Run each training in its own process, `jobs` at a time; return exit code 1 if any of them fails."""
    waiting, running, failed = list(missing), dict[Training, subprocess.Popen[bytes]](), list[Training]()
    with terminate_on_exit(running), tqdm(total=len(missing), desc=job.name, unit="row", dynamic_ncols=True) as bar:
        while waiting or running:
            while len(running) < job.jobs and (training := job.next_ready(waiting, running)):
                waiting.remove(training)
                running[training] = _start_process(job, training)
            time.sleep(POLL_SECONDS)
            for training, process in list(running.items()):
                if process.poll() is not None:
                    del running[training]
                    failed += [training] if process.returncode else []
            bar.n = len(missing) - len(waiting) - len(running)
            bar.refresh()
    for training in failed:
        last = _log_path(job, training).read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1]
        print(f"{training} failed: {last} (log: {_log_path(job, training)})", file=sys.stderr)
    return 1 if failed else 0


def _start_process(job: Job, training: Training) -> "subprocess.Popen[bytes]":
    command = [sys.executable, *job.command, "--jobs", "1", "--only", training.row, "--seeds", str(training.seed)]
    log = _log_path(job, training)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        threads = {"OMP_NUM_THREADS": str(job.threads)}
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | threads)


def _log_path(job: Job, training: Training) -> Path:
    return job.folder(training).with_suffix(".txt")


@contextlib.contextmanager
def terminate_on_exit(running: Mapping[Any, "subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Terminate the `running` processes when this one ends, unless it is killed."""

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


# ---- provenance of a row ----


def current_commit() -> str:
    """Return the commit of this checkout, with a + if files differ from it."""
    command = ["git", "-C", str(EXPERIMENTS_FOLDER), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
