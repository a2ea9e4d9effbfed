"""The options of a training that the user did not specify, chosen from the table and the time that it may take.

Nothing is measured, so that the same command gives the same plan on every machine. The rules were derived from trials
on many tables (LOG.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from factorcell.config import (
    NAMES,
    RECORDED,
    Config,
    HuggingFaceOptions,
    ModelConfig,
    option_sections,
    section_types,
    selected_kinds,
)
from factorcell.data.corpus import Corpus
from factorcell.errors import check_choice
from factorcell.nn.devices import find_device
from factorcell.nn.language_model import head_class
from factorcell.nn.output import SoftmaxHead
from factorcell.options.limits import AUTOMATIC_OPTIONS, PRESETS

# Passes over a table of a million targets; larger tables need fewer passes.
PASSES_PER_PRESET = dict(zip(PRESETS, (2.0, 6.0, 12.0), strict=True))
MIN_PASSES, MAX_PASSES = 0.25, 40.0
# Targets that a training of a small model reads in a minute on two cores with AVX2: with a time limit, sizes, dropout
# rates and evaluations are those for this speed, so that they do not depend on the machine.
TARGETS_PER_MINUTE = 1_500_000
# Per minute of the time limit: development targets of an evaluation with a small vocabulary, and training targets whose
# n-grams are counted.
DEV_TARGETS_PER_MINUTE, DEV_TARGETS_PER_MINUTE_OF_BASE, COUNTED_TARGETS_PER_MINUTE = 4_000, 100, 1_000_000
# Cost of the linear classifiers of all targets (`LinearClassifier.fit`) per minute, about 3 % of the time on one core,
# and a cost of a fraction of a second that each may always have.
CLASSIFIER_COST_PER_MINUTE, MIN_CLASSIFIER_COST = 2.5e7, 4e6
# Seconds of the work after the steps on a machine of ordinary speed (benchmarks/minutes.py): of each command, and per
# minute for evaluations and for classifiers; per target whose n-grams are counted, and counted by the values of a
# category, of words and of characters; among `CACHED_TARGETS` characters, counting one takes twice as long. All
# categories are counted to choose one.
FINAL_SECONDS, EVALUATION_SECONDS_PER_MINUTE, CLASSIFIER_SECONDS_PER_MINUTE = 1.0, 1.2, 1.2
COUNTING_SECONDS, VALUE_SECONDS, CHARACTER_VALUE_SECONDS, CACHED_TARGETS = 1e-6, 1.2e-6, 2.5e-6, 5e6
MAX_COMPARED_TARGETS = 2_000_000  # training targets whose n-grams are counted to choose a category
# On a machine whose steps take more than this many times as long as on one of ordinary speed, this work gets smaller.
MAX_SLOWNESS = 2.0
ORDINARY_UNITS = 200  # of all layers; a recurrent model with more units learns fewer targets than `TARGETS_PER_MINUTE`
# A new Transformer and a pretrained base learn so many times fewer targets in the same time.
TRANSFORMER_COST, BASE_COST = 8, 60
# Texts of held-out users to which the settings of completion are fitted: per minute, at least and at most.
COMPLETED_TEXTS_PER_MINUTE, MIN_COMPLETED_TEXTS, MAX_COMPLETED_TEXTS = 200, 100, 2000
SLOWER_BASE = 10  # a pretrained base on a processor completes so many times fewer texts
COMPLETION_SECONDS_PER_MINUTE, MIN_COMPLETION_SECONDS = 6.0, 10.0  # longest duration of this fit
MAX_WORD_PASSES = 12.0  # with more passes, a model of words would memorize a small table
MAX_EXACT_VOCABULARY = 3000  # up to this vocabulary size, the exact softmax is hardly slower than a sampled one
FEW_TEXTS = 60  # a value with fewer texts gets a low rank and context dropout
FEW_CHARACTERS = 500_000  # a model of characters memorizes a table with fewer targets after some passes
FEW_TARGETS = 150_000  # a model memorizes a table with fewer targets after a few passes
EVALUATION_SHARE = 0.1  # largest share of the training time for which evaluations are planned
MAX_BATCH_TOKENS, MIN_BATCH_TOKENS = 1000, 100
MIN_STEPS, MIN_FINETUNING_STEPS = 600, 300  # batches are made smaller if a training would have fewer steps
# A step on a GPU takes some milliseconds even with few tokens, so larger tables get larger batches.
MAX_GPU_BATCH_TOKENS, MIN_GPU_STEPS = 6000, 2400

# Options of the context of a model of characters that learns users online. The ConcatCell learns users in a minute, and
# its steps take as long as those of an unadapted model.
USER_OPTIONS = {"output_bias": (), "context_size": 20, "variable_size": 20, "dropout_context": 0.2}
# Targets that a training reads, at most -> adapters, and the rank of a FactorCell (also of one that the user adds).
USER_ADAPTERS = {5e6: (("concat",), 4), 2e7: (("concat", "factor"), 12), math.inf: (("concat", "factor"), 50)}

Options = dict[str, Any]  # option -> value
SpecifiedOptions = Mapping[str, Mapping[str, Any]]  # section of the config -> option -> value

# Options of a model with a Transformer, which differ from those of a recurrent model. They are usual values; a study of
# learning rates is still to be made.
NEW_TRANSFORMER: Options = {"hidden_size": 256, "learning_rate": 2e-3, "token_rate": 1.0, "weight_decay": 0.01}
FROZEN_TRANSFORMER: Options = {
    # Zeroed embeddings would be new to the layers of the base; all measurements of pretrained bases had no dropout.
    **{"dropout_input": 0.0, "dropout_output": 0.0},
    **{"adapt": ("factor",), "output_bias": (), "context_size": 8, "variable_size": 8, "rank": 4},
    # Measured with SmolLM2-135M: 3e-3 has a lower development perplexity than 1e-3 and 1e-2.
    **{"learning_rate": 3e-3, "token_rate": 1.0, "weight_decay": 0.0, "samples": 0},
}
TRAINED_BASE: Options = {"learning_rate": 1e-4}  # in addition to `FROZEN_TRANSFORMER`


class Budget(TypedDict, total=False):
    """How long a training may last, as in `fit`."""

    minutes: float | None
    preset: str | None
    start: float  # the time of `perf_counter` from which the minutes count; default: that of the call


@dataclass(frozen=True)
class TableFacts:
    """Properties of a table that determine its options."""

    targets: int  # of training
    vocabulary: int
    is_character_level: bool  # whether tokens are characters or graphemes
    max_values: int = 0  # largest number of values of a categorical context column; 0 without such a column
    texts_per_value: float = 0.0  # mean number of texts per value of the column with the most values
    dev_targets: int = 0
    has_users: bool = False  # whether the table names the users who wrote the texts
    has_names: bool = False  # whether a model can read a column, apart from that of the users, as text

    @classmethod
    def of(cls, corpus: Corpus, dev: Corpus, *, user: str = "") -> "TableFacts":
        """Return the facts of the training texts `corpus` and the development texts `dev`; `user` is their column."""
        max_values = max((len(variable.values) for variable in corpus.schema.categories), default=0)
        return cls(
            targets=corpus.target_count,
            vocabulary=len(corpus.tokenizer),
            is_character_level=corpus.tokenizer.is_character_level,
            max_values=max_values,
            texts_per_value=len(corpus) / max_values if max_values else 0.0,
            dev_targets=dev.target_count,
            has_users=len(corpus.users) > 0,
            has_names=bool(corpus.schema.named_variables(user)),
        )

    @property
    def learns_users(self) -> bool:
        """Whether the model completes texts and can learn new users online."""
        return self.has_users and self.is_character_level

    @property
    def max_passes(self) -> float:
        """The largest number of passes with which a model does not memorize the table."""
        return MAX_PASSES if self.is_character_level else MAX_WORD_PASSES


def plan(
    specified: SpecifiedOptions, corpus: Corpus, dev: Corpus, minutes: float | None = None, preset: str | None = None
) -> Config:
    """Return all options of a training on `corpus`: the `specified` options, and those that the rules choose.

    With `minutes`, `epochs` is the largest number of passes, and the default of `preset` is "best" instead of "good".
    """
    preset, config = preset or ("good" if minutes is None else "best"), Config.from_dict(specified)
    facts, training = TableFacts.of(corpus, dev, user=config.data.user), specified.get("training", {})
    max_passes = float(training.get("epochs") or default_passes(facts, preset))
    if steps := training.get("steps"):
        tokens_per_batch = training.get("batch_tokens") or default_batch_tokens(facts)
        max_passes = steps / max(1.0, facts.targets / tokens_per_batch)
    passes, dev_targets = max_passes, config.training.max_dev_targets
    if minutes is not None:
        # An evaluation takes about a third of a percent of the time.
        of_small_model = DEV_TARGETS_PER_MINUTE / max(1.0, evaluation_cost(facts))
        targets_per_minute = DEV_TARGETS_PER_MINUTE_OF_BASE if is_slow(config) else of_small_model
        dev_targets = max(1, round(minutes * targets_per_minute))
        facts = replace(facts, dev_targets=min(facts.dev_targets, dev_targets))
        # The passes on a machine of ordinary speed.
        passes = min(max_passes, float(f"{minutes * TARGETS_PER_MINUTE / max(1, facts.targets):.2g}"))
    chosen, defaults = unspecified_options(specified), default_options(facts, passes)
    # The counts would reproduce what single users wrote.
    defaults["ngram_mixture"] = preset == "best" and not config.data.user
    if isinstance(config.backbone, HuggingFaceOptions):
        defaults |= transformer_options(config.backbone, facts)
    if not issubclass(head_class(config.head.kind), SoftmaxHead):  # only this head has a sampled loss
        defaults["samples"] = 0
    planned = config.with_options(**{name: defaults[name] for name in chosen if name in defaults})
    if "batch_tokens" in chosen and find_device(planned.training.device).type == "cuda":
        planned = planned.with_options(batch_tokens=gpu_batch_tokens(facts, passes))
    training_config = planned.training if minutes is None else replace(planned.training, epochs=max_passes)
    counts = [item.min_count for item in corpus.schema.categories if item.source_column != config.data.user]
    data = replace(planned.data, min_context_count=planned.data.min_context_count or max(counts, default=0))
    return replace(planned, data=data, training=replace(training_config, max_dev_targets=dev_targets))


def unspecified_options(specified: SpecifiedOptions) -> tuple[str, ...]:
    """Return the names of the options that are chosen automatically."""
    names = {name for values in specified.values() for name in values}
    # Only options of the selected kinds exist: for example, another backbone may have no `hidden_size`.
    types = section_types(selected_kinds(specified)).values()
    unspecified = {field.name for section_type in types for field in fields(section_type)} - names
    return tuple(name for group in AUTOMATIC_OPTIONS.values() for name in group if name in unspecified)


def add_options(specified: SpecifiedOptions, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the `specified` options with further `options`, which are named without their sections."""
    sections = {section: dict(values) for section, values in specified.items()}
    section_by_option = option_sections(selected_kinds(specified))
    for name, value in options.items():
        sections.setdefault(section_by_option[name], {})[name] = value
    return sections


def resumed_config(specified: SpecifiedOptions, saved: Config, is_limited: bool = False) -> Config:
    """Return the options of a training that resumes: the `specified` ones replace those of the `saved` config.

    The config of a training with a time limit (`is_limited`) has the steps and passes that it made.
    """
    recorded = (*RECORDED, "steps", "epochs") if is_limited else RECORDED
    options = {
        section if name == "kind" else name: value
        for section, values in specified.items()
        for name, value in values.items()
        if name not in recorded and (name, value) != ("min_context_count", 0)  # the saved count is that of the table
    }
    return saved.with_options(**options)


def default_passes(facts: TableFacts, preset: str) -> float:
    """Return the number of passes over a table that a preset stands for."""
    check_choice("preset", preset, PRESETS)
    passes = PASSES_PER_PRESET[preset] * (1e6 / max(1, facts.targets)) ** 0.35
    limited_passes = min(facts.max_passes, max(MIN_PASSES, passes))
    return float(f"{limited_passes:.2g}")  # two significant digits


def classifier_cost(minutes: float, targets: int) -> float:
    """Return the largest cost of a linear classifier of each of several targets after a training of the given time."""
    return max(MIN_CLASSIFIER_COST, minutes * CLASSIFIER_COST_PER_MINUTE / max(1, targets))


def completion_effort(minutes: float, config: Config) -> tuple[int, float]:
    """Return the texts and the seconds in which a training of the given minutes fits the settings of completion."""
    count = max(MIN_COMPLETED_TEXTS, min(MAX_COMPLETED_TEXTS, round(minutes * COMPLETED_TEXTS_PER_MINUTE)))
    seconds = max(MIN_COMPLETION_SECONDS, minutes * COMPLETION_SECONDS_PER_MINUTE)
    return count // SLOWER_BASE if is_slow(config) else count, seconds


def seconds_after_steps(
    minutes: float, counted_targets: int, is_character_level: bool, category_count: int
) -> tuple[float, float]:
    """Return the expected duration of the work after the steps of a training on a machine of ordinary speed.

    The first part is that of evaluations; the second one is that of counts and classifiers.

    Args:
        minutes: The time limit of the command.
        counted_targets: The number of targets whose n-grams are counted.
        is_character_level: Whether these are characters or graphemes.
        category_count: The number of columns that get classifiers.
    """
    seconds = COUNTING_SECONDS * counted_targets
    per_character = CHARACTER_VALUE_SECONDS * (1 + counted_targets / CACHED_TARGETS)
    value_seconds = per_character if is_character_level else VALUE_SECONDS
    if category_count:
        seconds += CLASSIFIER_SECONDS_PER_MINUTE * minutes + value_seconds * counted_targets
    if category_count > 1:
        seconds += category_count * value_seconds * min(counted_targets, MAX_COMPARED_TARGETS)
    return FINAL_SECONDS + EVALUATION_SECONDS_PER_MINUTE * minutes, seconds


def minutes_after_steps(minutes: float, config: Config, target_seconds: float) -> float:
    """Return the time limit for which the work after the steps is done, less than `minutes` on a slow or busy machine.

    If steps take more than `MAX_SLOWNESS` times as long as on a machine of ordinary speed, this work counts the n-grams
    of fewer texts and fits classifiers to fewer. A pretrained base may be slow because it is large.
    """
    is_pretrained = getattr(config.backbone, "is_pretrained", False)
    slowness = 1.0 if is_pretrained else target_seconds / ordinary_target_seconds(config)
    return minutes / max(1.0, slowness / MAX_SLOWNESS)


def ordinary_target_seconds(config: Config) -> float:
    """Return the seconds of a step per target on a machine of ordinary speed."""
    seconds, backbone = 60 / TARGETS_PER_MINUTE, config.backbone
    if isinstance(backbone, HuggingFaceOptions):
        return seconds * (BASE_COST if backbone.is_pretrained else TRANSFORMER_COST)
    units = getattr(backbone, "hidden_size", 0) * getattr(backbone, "layers", 1)
    return seconds * max(1.0, units / ORDINARY_UNITS)


def is_slow(config: Config) -> bool:
    """Return whether the model is a pretrained base on a processor."""
    is_pretrained = isinstance(config.backbone, HuggingFaceOptions) and config.backbone.is_pretrained
    return is_pretrained and find_device(config.training.device).type == "cpu"


def default_options(facts: TableFacts, epochs: float) -> Options:
    """Return the options of a training of `epochs` passes."""
    targets_read = epochs * facts.targets
    if facts.is_character_level:
        embedding_size, hidden_size = 50, _look_up(targets_read, {5e5: 150, 2e6: 250, 2e7: 300, math.inf: 600})
        layer_norm = facts.learns_users or targets_read > 2e7
        optimizer_options = {"learning_rate": 7e-3, "token_rate": 3.0, "weight_decay": 0.0}
    else:
        sizes = {2e6: (100, 150), 8e6: (150, 200), 4e7: (200, 300), math.inf: (256, 400)}
        embedding_size, hidden_size = _look_up(targets_read, sizes)
        layer_norm = False
        optimizer_options = {"learning_rate": 5e-3, "token_rate": 3.0, "weight_decay": 0.01}
    cost_per_evaluation = facts.dev_targets * evaluation_cost(facts)  # in targets that training could read instead
    evaluations = min(10, max(1, int(EVALUATION_SHARE * epochs * facts.targets / max(1.0, cost_per_evaluation))))
    return {
        **{"embedding_size": embedding_size, "hidden_size": hidden_size, "layer_norm": layer_norm, "epochs": epochs},
        "samples": 0 if facts.vocabulary <= MAX_EXACT_VOCABULARY else 1000,
        "batch_tokens": default_batch_tokens(facts),
        **_context_options(facts, targets_read),
        **_dropout_options(facts, epochs),
        **optimizer_options,
        **{"evaluations": evaluations, "patience": 3 if evaluations >= 6 else 0},
    }


def evaluation_cost(facts: TableFacts) -> float:
    """Return the time of evaluating a target relative to learning it: a sampled loss does not compute all logits."""
    return 0.35 if facts.is_character_level else 0.5 + facts.vocabulary / 15_000


def transformer_options(backbone: HuggingFaceOptions, facts: TableFacts) -> Options:
    """Return the options of a training with a Transformer that replace those of `default_options`."""
    if not backbone.is_pretrained:
        return NEW_TRANSFORMER
    names = {"adapt": (NAMES, "factor")} if facts.has_names else {}
    return FROZEN_TRANSFORMER | names | (TRAINED_BASE if backbone.train_base else {})


def _look_up(amount: float, values_by_limit: dict[float, Any]) -> Any:
    """Return the value of the lowest limit that is not below `amount`; the limits are in ascending order."""
    return next(value for limit, value in values_by_limit.items() if amount <= limit)


def _context_options(facts: TableFacts, targets_read: float) -> dict[str, Any]:
    """Choose the context vector's size from the number of values, and rank and dropout from the texts per value."""
    if facts.learns_users:  # the context dropout trains the unknown user, from which new users start
        adapt, rank = _look_up(targets_read, USER_ADAPTERS)
        return {**USER_OPTIONS, "adapt": adapt, "rank": rank}
    # 0 values: no column is a category.
    size = _look_up(facts.max_values, {0: 16, 10: 8, 100: 16, math.inf: 24})
    has_few_texts = 0 < facts.texts_per_value < FEW_TEXTS
    rank, dropout = (4, 0.2) if has_few_texts else (12, 0.0)
    sizes = {"context_size": size, "variable_size": size, "rank": rank, "dropout_context": dropout}
    return {"adapt": ModelConfig.adapt, "output_bias": ModelConfig.output_bias, **sizes}


def _dropout_options(facts: TableFacts, epochs: float) -> dict[str, Any]:
    """Choose dropout rates, which grow with the number of passes and are higher for small tables."""
    if facts.is_character_level:
        if facts.targets < FEW_CHARACTERS and epochs > 4:
            return {"dropout_recurrent": 0.2, "dropout_input": 0.1, "dropout_output": 0.2}
        rate = _look_up(epochs, {4: 0.0, 10: 0.1, math.inf: 0.15})
        return {"dropout_recurrent": rate, "dropout_input": 0.0, "dropout_output": 0.0}
    rate = _look_up(epochs, {3: 0.0, 6: 0.1, math.inf: 0.3 if facts.targets < FEW_TARGETS else 0.2})
    return {"dropout_recurrent": rate, "dropout_input": rate, "dropout_output": round(1.5 * rate, 2)}


def default_batch_tokens(facts: TableFacts) -> int:
    """Return the tokens per batch of a training on a processor."""
    return batch_tokens(facts.targets, facts.max_passes, MIN_STEPS, MAX_BATCH_TOKENS)


def gpu_batch_tokens(facts: TableFacts, epochs: float) -> int:
    """Return the tokens per batch of a training of `epochs` passes on a GPU."""
    return max(default_batch_tokens(facts), batch_tokens(facts.targets, epochs, MIN_GPU_STEPS, MAX_GPU_BATCH_TOKENS))


def batch_tokens(targets: int, epochs: float, min_steps: int, max_tokens: int) -> int:
    """Return the tokens per batch: `max_tokens`, or fewer if the training would have fewer than `min_steps` steps."""
    tokens_for_min_steps = round(targets * epochs / min_steps)
    return max(1, min(max_tokens, max(MIN_BATCH_TOKENS, tokens_for_min_steps)))
