"""Numbers of options: their bounds, and scalars of NumPy and PyTorch, which are stored as plain values of Python."""

import dataclasses
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import ParameterGrid

from factorcell.completion import LearningRule
from factorcell.config import OPTION_KINDS, Config, option_fields, options_by_section
from factorcell.errors import UserError
from factorcell.generation import GenerationOptions
from factorcell.hf import ContextConfig
from factorcell.options.limits import NUMBER_LIMITS, OPTIONAL, Limits, check, plain
from factorcell.sklearn import ContextClassifier
from factorcell.training.fit import train_run
from tests.small_runs import ROWS

INTEGERS = (np.int64, np.int32, np.uint32, np.array, torch.tensor)
FLOATS = (np.float64, np.float32, np.float16, np.array, torch.tensor, Fraction)
# Options for which 0 has a natural meaning that their help need not explain.
NATURAL_ZERO = {
    *("learning_rate", "prefix_vectors", "prompt_history", "seed", "token_rate"),
    "weight_decay",
    *("dropout_context", "dropout_input", "dropout_output", "dropout_recurrent"),
}


def kinds_of_configs() -> list[dict[str, Any]]:
    """Return options that together select every built-in kind."""
    tokenizers = [{"tokenizer": kind} for kind in OPTION_KINDS["tokenizer"]]
    return [*tokenizers, {"architecture": "llama"}, {"base": "./model"}]


# Options that select kinds, the option, and a value that is valid and not the default.
FIELDS = {
    field.name: (kinds, field)
    for kinds in kinds_of_configs()
    for section in dataclasses.asdict(Config.of(**kinds))
    for field in option_fields(getattr(Config.of(**kinds), section))
    if field.name not in ("kind", "base", "architecture")
}
NUMBERS = {name: field.metadata["limits"] for name, (_, field) in FIELDS.items() if field.metadata.get("limits")}
OTHER_OPTIONS = {"min_users": {"user": "user"}, "prompt_history": {"user": "user"}}


def config_with(name: str, value: Any) -> Config:
    kinds, _ = FIELDS[name]
    return Config.of(**kinds, **OTHER_OPTIONS.get(name, {}), **{name: value})


def value_of(config: Config, name: str) -> Any:
    values = {key: value for section in config.to_dict().values() for key, value in section.items()}
    json.dumps(values)  # plain values
    return values[name]


def is_within(limits: Limits, value: float) -> bool:
    is_large_enough = value > limits.low if limits.excluded == "low" else value >= limits.low
    return is_large_enough and (value < limits.high if limits.excluded == "high" else value <= limits.high)


@pytest.mark.parametrize("name", NUMBERS)
def test_numeric_options_are_refused_out_of_their_bounds(name: str) -> None:
    limits = NUMBERS[name]
    step = 1 if limits.whole else 1e-3
    inside = [limits.low, limits.low + step, limits.high, limits.high - step]
    outside = [-math.inf, math.nan, math.inf, limits.low - step, 0, -1, limits.high * 1.01 + 1]
    for value in (*inside, *outside):
        number = int(value) if limits.whole and math.isfinite(value) else value
        if is_within(limits, number) and math.isfinite(number):
            assert value_of(config_with(name, number), name) == number
        else:
            with pytest.raises(UserError, match=f"{name} is"):
                config_with(name, number)


@pytest.mark.parametrize("name", NUMBERS)
def test_options_that_may_be_0_have_a_meaning_of_0(name: str) -> None:
    _, field = FIELDS[name]
    if is_within(NUMBERS[name], 0):
        assert name in NATURAL_ZERO or "0:" in field.metadata["help"] or field.metadata["help"].startswith("rate ")


def test_no_option_of_a_training_without_steps_is_accepted(tmp_path: Path) -> None:
    for name in ("epochs", "minutes", "batch_tokens", "evaluations", "layers"):
        assert not is_within((NUMBERS | NUMBER_LIMITS)[name], 0), name
    with pytest.raises(UserError, match="epochs is 0"):
        train_run(ROWS, ROWS, {"training": {"epochs": 0}}, tmp_path / "run")


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_accepts_scalars_of_numpy_and_pytorch(name: str) -> None:
    _, field = FIELDS[name]
    limits = NUMBERS.get(name)
    if limits is None and isinstance(field.default, bool):
        OTHER_OPTIONS.setdefault("anonymous", {"user": "user"})
        accepted: list[tuple[Any, Any]] = [
            (kind(value), value) for kind in (np.bool_, np.array, torch.tensor) for value in (True, False)
        ]
        refused: list[Any] = [1, np.int64(1), "True", np.str_("True"), None]
    elif limits is None and isinstance(field.default, tuple):
        items = field.default or ("a", "b")
        accepted = [(kind(items), items) for kind in (list, tuple, np.array)]
        accepted.append(([np.str_(item) for item in items], items))
        refused = ["a", np.array("a"), [1], np.arange(2), {"a"}]
    elif limits is None:
        accepted = [(kind(field.default), field.default) for kind in (str, np.str_, np.array)]
        refused = [1, np.int64(1), True, None]
    elif limits.whole:
        number = max(int(limits.low), 1)
        accepted = [(kind(number), number) for kind in INTEGERS]
        refused = [float(number), np.float64(number), np.bool_(True), torch.tensor(True), np.array([number]), None]
    else:
        accepted = [(kind(0.25), 0.25) for kind in FLOATS] + [(np.int64(1), 1.0)] * is_within(limits, 1)
        refused = [np.bool_(True), np.array([0.25]), np.str_("0.25"), np.float64("nan"), np.complex128(1), None]
    for value, expected in accepted:
        stored = value_of(config_with(name, value), name)
        assert stored == expected
        assert type(stored) is type(expected)
    for value in refused:
        with pytest.raises(UserError):
            config_with(name, value)


@pytest.mark.parametrize("name", NUMBER_LIMITS)
def test_arguments_accept_scalars_of_numpy_and_pytorch(name: str) -> None:
    limits = NUMBER_LIMITS[name]
    number = int(limits.low + 1) if limits.whole else 0.25
    for kind in INTEGERS if limits.whole else FLOATS:
        [checked] = check(**{name: kind(number)})
        assert checked == number
        assert type(checked) is type(number)


@pytest.mark.parametrize("name", NUMBER_LIMITS)
def test_arguments_are_none_only_if_they_are_optional(name: str) -> None:
    if name in OPTIONAL:
        assert check(**{name: None}) == [None]
    else:
        with pytest.raises(UserError, match=f"{name} is None; it must be a"):
            check(**{name: None})


OPTIONS: list[Any] = [
    GenerationOptions(seconds=1.0, width=3),
    *(LearningRule(), ContextConfig(target_modules=("q_proj",))),
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: type(options).__name__)
def test_options_of_functions_are_stored_as_plain_values(options: Any) -> None:
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    for kind in (np.array, lambda value: [np.array(item) for item in value] if isinstance(value, tuple) else value):
        converted = {name: value if value is None else kind(value) for name, value in values.items() if value != ()}
        copy = type(options)(**converted)
        assert copy == options
        for name, value in values.items():
            stored = getattr(copy, name)
            assert type(stored) is type(value), name
            assert not isinstance(value, tuple) or [*map(type, stored)] == [*map(type, value)], name


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: type(options).__name__)
def test_numbers_of_options_are_not_none_unless_that_is_their_default(options: Any) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    assert dataclasses.replace(options, **{name: None for name, default in defaults.items() if default is None})
    for name, default in defaults.items():
        if isinstance(default, int | float) and name != "end":  # a token id, which the tokenizer sets
            for value in (None, "1", "", [1], object()):
                with pytest.raises(UserError):
                    dataclasses.replace(options, **{name: value})


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(), st.none()))
def test_plain_values_stay_as_they_are(value: Any) -> None:
    assert plain(value) is value or (type(plain(value)), plain(value)) == (type(value), value)
    assert plain([value, [value]]) == (value, (value,))


def test_a_grid_of_scikit_learn_may_be_of_numpy(tmp_path: Path) -> None:
    grid = {
        "epochs": np.linspace(0.5, 1, 2),
        "learning_rate": np.logspace(-4, -2, 2),
        "rank": np.arange(1, 3),
        "random_state": np.arange(2),
    }
    texts = {"text": ["a b", "b c"]}
    for parameters in ParameterGrid(grid):
        classifier = ContextClassifier(**parameters)
        config = Config.from_dict(options_by_section(classifier._training_options(texts, 1)))
        assert type(config.training.learning_rate) is float
        assert type(config.model.rank) is int
        json.dumps(config.to_dict())
    small = {
        "hidden_size": np.int64(4),
        "embedding_size": np.uint8(4),
        "rank": np.int32(1),
        "context_size": np.array(2),
    }
    labels = ["a", "b"] * 10
    options: dict[str, Any] = {**small, "threads": np.int64(1), "epochs": np.float64(1)}
    classifier = ContextClassifier(out=tmp_path / "run", random_state=np.int64(3), **options)
    classifier.fit([f"{label} text {number}" for number, label in enumerate(labels)], labels)
    saved = Config.of(config=tmp_path / "run" / "config.json")
    assert (saved.training.epochs, saved.training.seed, saved.model.rank, saved.model.embedding_size) == (1.0, 3, 1, 4)
