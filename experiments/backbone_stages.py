"""The stages of the study of backbones: methods on a frozen base, which each row trains and measures.

A row is named "SET STAGE METHOD RATE". The first stage tries three learning rates with the first seed, and trains the
other seeds with the rate that is best on the development texts; later stages have this rate, and may take over the
best methods. `queue` returns the rows that remain, the most informative ones first, with the rate and the methods that
are the best so far.

development_loss             bits per byte of the development texts; of a head, nats of the true values
bits_per_byte                over the test texts
cold_bits_per_byte           over texts with a value that training never saw, pairs_ with a combination of values
accuracy                     of Bayes' rule with the frequencies of the training texts as prior, or of a head
processor_seconds            of the whole row, in all processes that worked on it
"""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

import corpora
import study
from backbone_head import HeadLearner
from backbone_parts import TASK, StagedSet, stage_tables, target_names
from backbone_pretrained import (
    LanguageLearner,
    SeparateLearner,
    StagedMethod,
    load_base,
    new_learner,
    trained_values,
    values_per_rank,
)
from backbone_training import PROGRESS_FILE, Budget, Rows, make_batches, train
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule, text_accuracies
from factorcell.evaluation.text_figures import Figures, Ratios, TextSums
from factorcell.hf import ContextConfig
from factorcell.io import files
from study import Baseline, Experiment, Job, Measurement, Row, Training

DEFAULT, TEXT, HEAD = "default", "text", "head"
BITS, LOSS = "bits_per_byte", "development_loss"
PARTS = {"dev": f"dev_{BITS}", "test": BITS, "cold": f"cold_{BITS}", "pairs": f"pairs_{BITS}"}
TOKENS_PER_TEXT = 3  # the least of any set, so that enough texts are tokenized
SECONDS_PER_TOKEN = 0.01  # of a row, before rows of its stage were measured


@dataclass(frozen=True)
class Stage:
    """A budget of backbones.toml, and what is trained with it.

    Attributes:
        plan: stages, or stages-gpu.
        base: The base.
        tokens: The targets of each training.
        sets: The data sets.
        methods: The methods.
        seeds: The seeds.
        tries_rates: Whether all learning rates and the candidates are trained with the first seed.
        best: How many of the best methods of the stage that tries rates are added to `methods`.
        batch_tokens: The targets of a step.
        device: The device.
        precision: The number type of matrix products.
    """

    plan: str
    base: str
    tokens: int
    sets: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    tries_rates: bool = False
    best: int = 0
    batch_tokens: int = 500
    device: str = "cpu"
    precision: str = "float32"


class StagedCase(NamedTuple):
    """A row: a method with a learning rate on a data set, in a stage."""

    set_name: str
    stage_name: str
    method_name: str
    learning_rate: float

    def __str__(self) -> str:
        return f"{self.set_name} {self.stage_name} {self.method_name} {self.learning_rate:g}"


Finished = Mapping[tuple[str, int], Row]  # row and seed -> line of the results


@dataclass(frozen=True)
class Plan:
    """The data sets, methods and stages of backbones.toml."""

    sets: Mapping[str, StagedSet]
    methods: Mapping[str, StagedMethod]
    stages: Mapping[str, Stage]

    def queue(self, finished: Finished, name: str = "stages") -> list[tuple[StagedCase, int]]:
        """Return the rows and seeds of a plan that are not finished, in their order."""
        stages = [stage_name for stage_name, stage in self.stages.items() if stage.plan == name]
        pairs = (pair for stage_name in stages for pair in self._rows(stage_name, finished))
        return [(case, seed) for case, seed in dict.fromkeys(pairs) if (str(case), seed) not in finished]

    def _rows(self, stage_name: str, finished: Finished) -> Iterator[tuple[StagedCase, int]]:
        """Yield all rows and seeds of a stage."""
        stage = self.stages[stage_name]
        candidates = [name for name, method in self.methods.items() if method.is_candidate]
        first_seed, *other_seeds = stage.seeds
        if not stage.tries_rates:
            best = self.best_methods(finished, stage.best)
            for seed in stage.seeds:
                yield from self._chosen(stage_name, [*stage.methods, *best], seed, finished)
            return
        for methods in (stage.methods[:2], candidates[:1], stage.methods[2:], candidates[1:]):
            for set_name, method in self._pairs(stage, methods):
                rate = self.methods[method].learning_rates[1]
                yield StagedCase(set_name, stage_name, method, rate), first_seed
        for set_name, method in self._pairs(stage, stage.methods):
            for rate in self.methods[method].learning_rates:
                yield StagedCase(set_name, stage_name, method, rate), first_seed
        for seed in other_seeds:
            yield from self._chosen(stage_name, stage.methods, seed, finished)

    def _pairs(self, stage: Stage, methods: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the sets and methods that fit each other."""
        for set_name in stage.sets:
            yield from ((set_name, name) for name in methods if self.methods[name].fits(self.sets[set_name]))

    def _chosen(
        self, stage_name: str, methods: Sequence[str], seed: int, finished: Finished
    ) -> Iterator[tuple[StagedCase, int]]:
        for set_name, method in self._pairs(self.stages[stage_name], methods):
            yield StagedCase(set_name, stage_name, method, self.chosen_rate(set_name, method, finished)), seed

    def first_losses(self, set_name: str, method: str, finished: Finished) -> dict[float, float]:
        """Return the development loss of the first seed by learning rate."""
        keys = {
            rate: (str(StagedCase(set_name, stage_name, method, rate)), stage.seeds[0])
            for stage_name, stage in self.stages.items()
            for rate in self.methods[method].learning_rates
            if stage.tries_rates
        }
        return {rate: finished[key][LOSS] for rate, key in keys.items() if key in finished}

    def chosen_rate(self, set_name: str, method: str, finished: Finished) -> float:
        """Return the learning rate with the lowest development loss so far."""
        losses = self.first_losses(set_name, method, finished)
        return min(losses, key=losses.__getitem__) if losses else self.methods[method].learning_rates[1]

    def best_methods(self, finished: Finished, count: int) -> list[str]:
        """Return the methods with the lowest development loss, compared with that of the default on the same sets."""
        excess: dict[str, list[float]] = {}
        for method in self.methods:
            for set_name in self.sets:
                losses, defaults = (self.first_losses(set_name, name, finished) for name in (method, DEFAULT))
                if losses and defaults and method not in (DEFAULT, HEAD):
                    excess.setdefault(method, []).append(min(losses.values()) - min(defaults.values()))
        return sorted(excess, key=lambda method: fmean(excess[method]))[:count]

    def cases(self) -> dict[str, StagedCase]:
        """Return all rows by their names."""
        cases = (
            StagedCase(set_name, stage_name, method, rate)
            for stage_name, stage in self.stages.items()
            for set_name in stage.sets
            for method in self.methods
            for rate in self.methods[method].learning_rates
        )
        return {str(case): case for case in cases}


@dataclass(frozen=True)
class StagedStudy(Experiment):
    """The experiment of all rows of a plan."""

    plan: Plan = field(default_factory=lambda: Plan({}, {}, {}))

    def config(self, training: Training, threads: int) -> Config:
        """Return what a row records: its base, context columns, learning rate, seed and threads."""
        case = self.plan.cases()[training.row]
        stage, data_set = self.plan.stages[case.stage_name], self.plan.sets[case.set_name]
        return Config.of(
            base=stage.base,
            context=data_set.declarations,
            learning_rate=case.learning_rate,
            batch_tokens=stage.batch_tokens,
            seed=training.seed,
            threads=threads,
        )


def experiment(plan: Plan, name: str = "backbones") -> StagedStudy:
    """Return the experiment of a plan."""
    cases = plan.cases()
    measures = {row: Baseline(partial(measure_case, plan=plan, case=case)) for row, case in cases.items()}
    no_tables: Tables = {}
    return StagedStudy(name, "", {row: {} for row in cases}, lambda *_: no_tables, baselines=measures, plan=plan)


# ---- a row ----


def measure_case(config: Config, tables: Tables, folder: Path, plan: Plan, case: StagedCase) -> Measurement:
    """Train a row to its end, and measure it."""
    started = time.process_time()
    stage, data_set, method = plan.stages[case.stage_name], plan.sets[case.set_name], plan.methods[case.method_name]
    parts: dict[str, Rows] = {name: corpora.read(path).to_pylist() for name, path in tables.items()}
    seed = config.training.seed
    base = load_base(stage.base, torch.device(stage.device), getattr(torch, stage.precision))
    learner: LanguageLearner | HeadLearner
    rows = parts["train"]
    if method.kind == HEAD:
        names = target_names(rows, data_set.target)
        default = ContextConfig(data_set.declarations).fit(rows)
        goal = trained_values(default, values_per_rank(base.model))
        torch.manual_seed(seed)
        learner = HeadLearner(stage.base, names, data_set.target, goal, base)
        rows = [row for row in rows if row[data_set.target] in names]
    else:
        learner = new_learner(method, data_set, rows, base, seed)
    trained = sum(values.numel() for values in learner.module.parameters() if values.requires_grad)
    order = np.random.default_rng(seed).permutation(len(rows))[: stage.tokens // TOKENS_PER_TEXT]
    rows = [rows[place] for place in order.tolist()]
    lengths = np.array([len(ids) + 1 for ids in base.encode([row["text"] for row in rows])])
    budget = Budget(stage.tokens, stage.batch_tokens, case.learning_rate, seed)
    groups = [str(learner.group(row)) for row in rows] if isinstance(learner, SeparateLearner) else None
    batches = make_batches(lengths, budget, groups)
    progress = train(learner, rows, batches, budget, folder, started)
    trained_until = time.process_time()
    measured = measure_learner(learner, parts, data_set, method)
    (folder / PROGRESS_FILE).unlink()
    row = {
        "learning_rate": case.learning_rate,
        "trained_parameters": trained,
        "tokens": int(sum(lengths[batch].sum() for batch in batches)),
        "read_tokens": progress.read_tokens,
        "steps": len(batches),
        "minutes": progress.training_seconds / 60,
        "processor_seconds": round(progress.processor_seconds + time.process_time() - trained_until, 3),
        "device": torch.cuda.get_device_name(base.device) if base.device.type == "cuda" else "processor",
        "precision": stage.precision,
    }
    return Measurement(row) | measured


def measure_learner(
    learner: LanguageLearner | HeadLearner, parts: Mapping[str, Rows], data_set: StagedSet, method: StagedMethod
) -> Measurement:
    """Measure a trained model: the bits per byte of each part, and its accuracy."""
    if isinstance(learner, HeadLearner):
        judged = parts["judged"]
        classes = {name: place for place, name in enumerate(learner.names)}
        dev = [row for row in parts["dev"] if row[data_set.target] in classes]
        places = [classes[row[data_set.target]] for row in dev]
        loss = -float(learner.log_posterior(dev)[np.arange(len(dev)), places].mean())
        truth = [row[data_set.target] for row in judged]
        result = apply_bayes_rule(learner.names, learner.log_posterior(judged), truth)
        return Measurement({LOSS: loss}) | measure_classification(result)
    figures: Figures = {name: bits_per_byte(learner, parts[part]) for part, name in PARTS.items() if parts.get(part)}
    row: Row = {name: sums.ratio for name, sums in figures.items()}
    row |= {LOSS: row[PARTS["dev"]], **interval_row(BITS, figures[BITS])}
    measured = Measurement(row, figures)
    return measured | classify(learner, parts, data_set) if reads_target(data_set, method) else measured


def reads_target(data_set: StagedSet, method: StagedMethod) -> bool:
    """Return whether the predictions of a method depend on the target."""
    if not data_set.target:
        return False
    if method.kind == "poly":
        return data_set.task == data_set.target
    return method.kind in ("context", "separate") or bool(method.reads)


def bits_per_byte(learner: LanguageLearner, rows: Rows) -> TextSums:
    """Return the bits and the bytes of each text."""
    texts = [row["text"] for row in rows]
    key = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    return TextSums(key, learner.nats(rows) / math.log(2), np.array([len(text.encode()) for text in texts], np.float64))


def classify(learner: LanguageLearner, parts: Mapping[str, Rows], data_set: StagedSet) -> Measurement:
    """Infer the target of the judged texts by Bayes' rule, with the frequencies of the training texts as prior."""
    judged, target = parts["judged"], data_set.target
    names = target_names(parts["train"], target)
    values = [row[target] for row in parts["train"]]
    priors = np.log([values.count(name) for name in names])
    likelihoods = np.stack([-learner.nats([_with_value(data_set, row, name) for row in judged]) for name in names], 1)
    return measure_classification(apply_bayes_rule(names, likelihoods + priors, [row[target] for row in judged]))


def interval_row(name: str, sums: TextSums) -> Row:
    """Return a figure with its interval over texts."""
    ratios = Ratios.from_sums([[sums]])
    return {} if ratios is None else ratios.interval(0).to_row(name)


def measure_classification(classification: Classification) -> Measurement:
    """Return the accuracy and the calibration of a classification."""
    classification = replace(classification, key=f"judged {classification.log_posterior.shape}")
    metrics = classification.metrics()
    row = {"candidates": len(classification.names), "judged": metrics["texts"]}
    keys = ("accuracy", "accuracy_low", "accuracy_high", "calibration_error", "majority")
    row |= {name: metrics[name] for name in keys}
    return Measurement(row, {"accuracy": text_accuracies(classification)})


def _with_value(data_set: StagedSet, row: Mapping[str, Any], name: str) -> dict[str, Any]:
    changed = {**row, data_set.target: name}
    return {**changed, TASK: data_set.task_of(changed)}


# ---- the command ----


class Limits(NamedTuple):
    """Which rows a command makes."""

    plan: str
    core_hours: float  # of all finished rows together
    patterns: Sequence[str]
    seeds: Sequence[int]


def make_rows(selected: StagedStudy, job: Job, limits: Limits, is_list: bool) -> int:
    """Make the rows of a plan one after the other, or print those that remain."""
    while True:
        lines = [row for row in files.read_rows(job.rows) if "processor_seconds" in row]
        finished = {(row["row"], row["seed"]): row for row in lines}
        waiting = [pair for pair in selected.plan.queue(finished, limits.plan) if _is_selected(*pair, limits)]
        used = sum(row["processor_seconds"] for row in lines)
        if is_list:
            print("\n".join(describe(selected.plan, waiting, finished)))
        if is_list or not waiting:
            return 0
        case, seed = waiting[0]
        if used + estimate(selected.plan, case, finished) > 3600 * limits.core_hours:
            print(f"{len(waiting):,} rows remain: the next one would exceed {limits.core_hours:g} core-hours")
            return 0
        tables = stage_tables(
            selected.plan.sets[case.set_name], job.data, job.out / "tables", study.TRIAL_SHARE if job.trial else 1.0
        )
        study.make_row(job, Training(str(case), seed), tables)


def _is_selected(case: StagedCase, seed: int, limits: Limits) -> bool:
    is_chosen_seed = not limits.seeds or seed in limits.seeds
    return is_chosen_seed and (not limits.patterns or any(fnmatch(str(case), each) for each in limits.patterns))


def estimate(plan: Plan, case: StagedCase, finished: Finished) -> float:
    """Return the processor seconds that a row will take, from those of the most similar rows."""
    words = [case.stage_name, case.set_name, case.method_name]
    similar: list[float] = []
    for length in (3, 2, 1):
        similar = similar or [
            row["processor_seconds"]
            for (name, _), row in finished.items()
            if [name.split()[place] for place in (1, 0, 2)][:length] == words[:length]
        ]
    return fmean(similar) if similar else plan.stages[case.stage_name].tokens * SECONDS_PER_TOKEN


def describe(plan: Plan, waiting: Sequence[tuple[StagedCase, int]], finished: Finished) -> Iterator[str]:
    """Yield a line for each row that remains, with its seed and the estimated minutes, and a line with their sum."""
    total = 0.0
    for case, seed in waiting:
        seconds = estimate(plan, case, finished)
        total += seconds
        yield f"{case}  seed {seed}  {seconds / 60:.1f} minutes"
    used = sum(row["processor_seconds"] for row in finished.values()) / 3600
    yield f"{len(waiting):,} rows remain: {total / 3600:.1f} core-hours; {len(finished):,} finished: {used:.1f}"
