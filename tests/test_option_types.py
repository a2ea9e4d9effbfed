"""Options of other packages have the types of their defaults, whatever their annotations are, such as text here."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli import options
from factorcell.commands.cli.parser import Parser
from factorcell.config import EXTENSIBLE, Config, KindOptions, option
from factorcell.errors import UserError
from factorcell.nn import Backbone, register_backbone


@dataclass(frozen=True)
class LateOptions(KindOptions):
    """An option of every supported type, with and without metadata."""

    kind: str = "late"
    fast: bool = False
    slow: bool = option(True, "be slow")
    depth: int = 2
    width: int = option(3, "the width", 1, 50)
    slope: float = 0.5
    weight: float = option(1.5, "the weight")
    label: str = "plain"
    mode: str = option("a", "the mode", choices=("a", "b"))
    parts: tuple[str, ...] = ()
    chosen: tuple[str, ...] = option(("x",), "the parts", choices=("x", "y"))


# Words on a command line, and the value that they set.
VALID: list[tuple[str, str, Any]] = [
    ("--fast", "fast", True),
    ("--no-fast", "fast", False),
    ("--no-slow", "slow", False),
    ("--depth 7", "depth", 7),
    ("--width=50", "width", 50),
    ("--slope 1", "slope", 1.0),
    ("--weight 2e-3", "weight", 0.002),
    ("--label none", "label", "none"),
    ("--mode b", "mode", "b"),
    ("--parts a --parts none", "parts", ("a", "none")),
    ("--chosen x --chosen y", "chosen", ("x", "y")),
    ("--chosen none", "chosen", ()),
]
INVALID_WORDS = [
    *("--fast False", "--fast=False", "--no-slow yes", "--depth 1.5", "--depth none", "--width 0", "--width 51"),
    *("--slope x", "--mode c", "--chosen z"),
]
INVALID_VALUES: list[tuple[str, Any]] = [
    *(("fast", "False"), ("fast", 0), ("depth", True), ("depth", 1.0), ("depth", None), ("width", 0), ("slope", "1")),
    *(("label", 1), ("mode", "c"), ("parts", "a"), ("parts", (1,)), ("chosen", ("z",))),
]


@pytest.fixture
def options_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    for registry in EXTENSIBLE.values():
        monkeypatch.setattr(registry, "registered", {})
    register_backbone("late", type("Late", (Backbone,), {"Options": LateOptions}))
    return LateOptions


def parse(words: list[str]) -> Config:
    parser = Parser("command", "a summary", ["--backbone", "late", "--help-all"])
    options.add_config_options(parser)
    parser.format_help()
    return Config.of(**options.option_values(parser.parse(["--backbone", "late", *words])))


@pytest.mark.parametrize(("words", "name", "expected"), VALID)
def test_options_have_their_types_in_every_way_of_setting_them(
    words: str, name: str, expected: Any, options_class: Any, tmp_path: Path
) -> None:
    config = parse(words.split())
    backbone = config.backbone
    assert isinstance(backbone, options_class)
    stored = getattr(backbone, name)
    assert stored == expected
    assert type(stored) is type(expected)
    assert Config.of(backbone="late", **{name: expected}) == config
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    if not isinstance(expected, tuple):
        assert Config.of(backbone="late", **{name: np.array(expected)}) == config
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    assert Config.of(config=tmp_path / "config.toml") == config


@pytest.mark.usefixtures("options_class")
@pytest.mark.parametrize("words", INVALID_WORDS)
def test_words_of_another_type_are_refused(words: str) -> None:
    with pytest.raises(UserError):
        parse(words.split())


@pytest.mark.usefixtures("options_class")
@pytest.mark.parametrize(("name", "value"), INVALID_VALUES)
def test_values_of_another_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=name):
        Config.of(backbone="late", **{name: value})


@pytest.mark.parametrize("default", [None, Decimal(1), b"", dataclasses.field(default_factory=int)])
def test_an_option_needs_a_default_of_a_supported_type(default: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXTENSIBLE["backbone"], "registered", {})
    fields = [("kind", str, "other"), ("limit", Any, default)]
    options_class = dataclasses.make_dataclass("Options", fields, bases=(KindOptions,), frozen=True)
    with pytest.raises(UserError, match="other") as caught:
        register_backbone("other", type("Other", (Backbone,), {"Options": options_class}))
    assert "option 'limit': expected a default of type bool, int, float, str or tuple" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert EXTENSIBLE["backbone"].registered == {}
