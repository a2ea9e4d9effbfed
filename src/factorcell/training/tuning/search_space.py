"""The space of a search: for each option a range or a list of choices, from which trials draw a value.

The default ranges of sizes, rank and recurrent dropout span the values selected in the TACL paper (table 2).
The paper fixes Adam's learning rate at 0.001. Here the learning rate, the batch size, the weight decay and the other
dropout rates vary too.
"""

import dataclasses
import math
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.adapters.adapters import find_adapter
from factorcell.config import OUTPUT_BIASES, Config, ModelConfig, TrainingConfig
from factorcell.errors import UserError, check_choice
from factorcell.io import input_files
from factorcell.nn.backbones.base_models import HEAD_SIZE
from factorcell.options.option_fields import INPUT_ADAPTERS, HuggingFaceOptions, RecurrentOptions, SoftmaxOptions
from factorcell.runs.used_options import options_unused_by_backbone

if TYPE_CHECKING:
    from optuna.trial import BaseTrial


@dataclasses.dataclass(frozen=True)
class Range:
    """A range from which values are drawn uniformly.

    Attributes:
        low: The smallest value.
        high: The largest value.
        log: Whether values are drawn uniformly on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False


Choice = str | bool | int | float
Space = Mapping[str, Range | tuple[Choice, ...]]

DEFAULT: Space = {
    "embedding_size": Range(35, 200, log=True),
    "hidden_size": Range(110, 250, log=True),
    "context_size": Range(2, 30, log=True),
    "rank": Range(2, 20),
    "layer_norm": (False, True),
    "dropout_recurrent": Range(0.0, 0.5),
    "dropout_input": Range(0.0, 0.4),
    "dropout_output": Range(0.0, 0.5),
    "dropout_context": Range(0.0, 0.3),
    "batch_tokens": Range(500, 4000, log=True),
    "learning_rate": Range(5e-4, 1e-2, log=True),
    "token_rate": Range(1.0, 4.0),
    "weight_decay": Range(0.0, 0.03),
}

# Ranges of options of a Transformer that differ from those of a recurrent model.
TRANSFORMER_SIZES = (128, 192, 256, 384)
ADAPTER_RATES = Range(1e-4, 5e-3, log=True)  # learning rates of the adapters of a frozen base
BASE_RATES = Range(1e-5, 5e-4, log=True)  # learning rates of a pretrained base

SEARCHED_CLASSES = {"backbone": (RecurrentOptions, HuggingFaceOptions), "head": (SoftmaxOptions,)}
# The options that may be searched, by section, with their types. The perplexities of trials with different values of
# these options are comparable. `adapt` is omitted, because the model determines it.
TYPES: dict[str, dict[str, Any]] = {
    "data": {"min_context_count": int},
    "model": {name: hint for name, hint in typing.get_type_hints(ModelConfig).items() if name != "adapt"},
    **{
        section: {
            name: hint
            for option_class in option_classes
            for name, hint in typing.get_type_hints(option_class).items()
            if name != "kind"
        }
        for section, option_classes in SEARCHED_CLASSES.items()
    },
    "training": typing.get_type_hints(TrainingConfig),
}
SECTIONS = {name: section for section, names in TYPES.items() for name in names}  # by option
CONTEXT_SIZES = ("context_size", "variable_size", "number_size")


def read(path: str | Path) -> Space:
    """Read a TOML file of lines like `option = [choices]` or `option = {low = 1, high = 9, log = true}`."""
    content = input_files.read_options_file(path)
    try:
        return {
            check_choice("option of a search", name, SECTIONS): _parse(name, value) for name, value in content.items()
        }
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def load_space(path: Path | None, fixed: Collection[str]) -> Space:
    """Return the default space, overridden by the space in the file `path`, without the options in `fixed`."""
    file_space = {} if path is None else read(path)
    for name in file_space:
        if name in fixed:
            raise UserError(f"{path}: {name} is also set as an option; an option is either fixed or searched")
    return {name: values for name, values in {**DEFAULT, **file_space}.items() if name not in fixed}


def _parse(name: str, value: Any) -> Range | tuple[Choice, ...]:
    """Return the range or the choices of an option from its value in a TOML file."""
    if isinstance(value, list) and value and all(type(choice) in (str, bool, int, float) for choice in value):
        return tuple(value)
    if not isinstance(value, dict):
        expected = "expected a list of choices or a range, {low = ..., high = ...}"
        raise UserError(f"{name}: {expected}, got {value!r}")
    keys = [field.name for field in dataclasses.fields(Range)]
    for key in value:
        check_choice(f"key of the range {name}", key, keys)
    low, high, log = (value.get(key, False) for key in keys)  # the checks below reject False as low or high
    if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)) or type(log) is not bool:
        raise UserError(f"{name} is {value!r}; low and high must be numbers, and log must be true or false")
    if not low < high or (log and low <= 0):
        raise UserError(f"{name} ranges from {low} to {high}; low must be below high{' and above 0' if log else ''}")
    return Range(low, high, log)


def applicable(space: Space, config: Config) -> Space:
    """Return the space without the default ranges of options that a model with this config does not have or use.

    The default ranges of a Transformer replace those of a recurrent model.
    """
    defaults, unused = dict(DEFAULT), set[str]()
    if isinstance(config.backbone, HuggingFaceOptions):
        unused = options_unused_by_backbone(config)
        unit = 2 * config.backbone.heads or HEAD_SIZE
        sizes = sorted({max(unit, size // unit * unit) for size in TRANSFORMER_SIZES})
        defaults["hidden_size"] = tuple(sizes)
        if config.backbone.is_pretrained:
            defaults["learning_rate"] = BASE_RATES if config.backbone.train_base else ADAPTER_RATES

    def is_applicable(name: str, values: Range | tuple[Choice, ...]) -> bool:
        is_default = values is DEFAULT.get(name)
        return not is_default or (hasattr(getattr(config, SECTIONS[name]), name) and name not in unused)

    return {
        name: defaults[name] if values is DEFAULT.get(name) else values
        for name, values in space.items()
        if is_applicable(name, values)
    }


def check(space: Space, config: Config) -> None:
    """Raise a `UserError` if a choice or the low or high end of a range is not a valid value of its option."""
    for name, values in space.items():
        check_choice("option of a search", name, SECTIONS)
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            try:
                with_drawn_options(config, {name: value})
            except UserError as error:
                raise UserError(f"search space: {error}") from None


def draw(trial: "BaseTrial", space: Space, models: Sequence[str], config: Config) -> Config:
    """Return `config` with the values that `trial` draws: one of `models`, and each option that has an effect."""
    if models:
        config = config.with_options(model=trial.suggest_categorical("model", models))
    # The output bias is drawn first, because it determines whether other options have an effect.
    for name in sorted(space, key=lambda name: name != "output_bias"):
        if has_effect(name, config):
            config = with_drawn_options(config, {name: _suggest(trial, name, space[name])})
    return config


def _suggest(trial: "BaseTrial", name: str, values: Range | tuple[Choice, ...]) -> Choice:
    """Return the value that a trial draws for the option `name`."""
    if not isinstance(values, Range):
        return typing.cast(Choice, trial.suggest_categorical(name, values))
    if TYPES[SECTIONS[name]][name] is int:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def has_effect(name: str, config: Config) -> bool:
    """Return whether an option changes a model with this config; for example, only a FactorCell has a rank."""
    has_context = bool(config.data.columns)
    adapters = config.model.adapt if has_context else ()
    changes_of_weights = [adapter for adapter in adapters if adapter not in INPUT_ADAPTERS]
    output_bias = config.model.output_bias if has_context else ()
    if name == "rank":
        return any(find_adapter(adapter).needs_rank for adapter in changes_of_weights)
    if name in CONTEXT_SIZES:
        return bool(changes_of_weights) or "low_rank" in output_bias
    if name == "min_context_count":
        return bool(adapters or output_bias)
    if name == "output_bias":
        return bool(output_bias)
    return True


def with_drawn_options(config: Config, params: Mapping[str, Any]) -> Config:
    """Return `config` with the drawn values `params` of options, and of "model", the name of a model.

    A value of `output_bias` may join several output biases by "+".
    """
    if "model" in params:
        config = config.with_options(model=params["model"])
    for name, value in params.items():
        if name == "model":
            continue
        if name == "output_bias" and isinstance(value, str):
            value = tuple(check_choice(name, output_bias, OUTPUT_BIASES) for output_bias in value.split("+"))
        config = config.with_options(**{name: value})
    return config
