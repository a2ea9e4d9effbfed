"""Options: checked where they are made, read from files, and no key is passed over."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from factorcell.config import MODELS, Config, ModelConfig, UserError, choose


def test_plain_values_and_back(tmp_path: Path) -> None:
    """A config survives its dict, and JSON."""
    config = Config.of(context=("a", "b:number"), tokenizer="char", rank=3, clip=0)
    assert Config.from_dict(config.to_dict()) == config
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    assert Config.load(path) == config


def test_toml(tmp_path: Path) -> None:
    """What a file leaves out keeps its default; whole numbers serve as floats."""
    path = tmp_path / "c.toml"
    path.write_text('[model]\nadapt = ["factor"]\n[training]\nlearning_rate = 1\n', encoding="utf-8")
    config = Config.load(path)
    assert config.model == ModelConfig(adapt=("factor",))
    assert config.training.learning_rate == 1.0
    assert config.data == Config().data


@given(
    text=st.text(),
    context=st.lists(st.text(), max_size=3),
    rate=st.floats(0, 1e38),
    rank=st.integers(1, 10**6),
    unit=st.sampled_from(["char", "word"]),
)
@example(text='\x7f\x00\n"\\é', context=["a=b", "]"], rate=1e-05, rank=1, unit="char")
def test_toml_is_written_as_it_is_read(text: str, context: list[str], rate: float, rank: int, unit: str) -> None:
    """Any names and numbers, control characters and infinities among them, survive the TOML of a config."""
    config = Config.of(text=text, context=tuple(context), tokenizer=unit, adapt=(), rank=rank, learning_rate=rate)
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"rnk": 3}}, r"unknown key in \[model\] 'rnk' \(did you mean 'rank'\?\); choose from adapt"),
        ({"modle": {}}, r"unknown section 'modle' \(did you mean 'model'\?\)"),
        ({"model": 3}, "model must be a table of options"),
        ({"model": {"rank": "3"}}, "rank is '3'; it must be of type int"),
        ({"model": {"rank": True}}, "rank is True; it must be of type int"),
        ({"model": {"rank": -1}}, "rank is -1; it must be at least 0"),
        ({"model": {"adapt": "factor"}}, "adapt is 'factor'; it must be a list of names"),
        ({"model": {"adapt": ["lora"]}}, "unknown adapt 'lora'; choose from concat, scale, factor, prefix"),
        ({"model": {}, "backbone": {"dropout_output": 1}}, "dropout_output is 1; it must be at least 0 and below 1"),
        ({"data": {}, "tokenizer": {"kind": "words"}}, r"unknown tokenizer 'words' \(did you mean 'word'\?\)"),
        ({"training": {"loss": "nce"}}, "unknown loss 'nce'; choose from full, sampled"),
        ({"training": {"learning_rate": -1.0}}, "at least 0"),
    ],
)
def test_mistakes(values: dict[str, Any], message: str) -> None:
    """Each is one line that says what was got and what is valid."""
    with pytest.raises(UserError, match=message) as error:
        Config.from_dict(values, where="c.toml")
    assert str(error.value).startswith("c.toml: ")


def test_files_that_are_none(tmp_path: Path) -> None:
    """Missing, and not TOML."""
    with pytest.raises(UserError, match="there is no such file"):
        Config.load(tmp_path / "no.toml")
    (tmp_path / "c.toml").write_text("rank: 3", encoding="utf-8")
    with pytest.raises(UserError, match="not valid TOML"):
        Config.load(tmp_path / "c.toml")


def test_a_list_is_no_config() -> None:
    """JSON that is valid, but not a table."""
    with pytest.raises(
        UserError, match="must hold the sections data, tokenizer, model, backbone, head, training, not a list"
    ):
        Config.from_dict([1], where="c.json")  # type: ignore[arg-type]


def test_case_follows_the_unit() -> None:
    """Words are lower-cased and characters not, unless it is said."""
    kinds = ("word", "space", "char", "grapheme")
    assert [Config.of(tokenizer=kind).tokenizer.lowercase for kind in kinds] == [True, True, False, False]
    assert Config.of(tokenizer="char", lowercase=True).tokenizer.lowercase is True


def test_named_models() -> None:
    """The four of the paper differ only in what they adapt."""
    for name, (adapt, bias) in MODELS.items():
        config = Config.of(rank=4).with_model(name)
        assert config.model == ModelConfig(rank=4, adapt=adapt, output_bias=bias)
    with pytest.raises(UserError, match="unknown model 'factor'"):
        Config().with_model("factor")


def test_choose() -> None:
    """The nearest valid name is offered."""
    assert choose("fruit", "fig", ["fig", "pear"]) == "fig"
    with pytest.raises(UserError, match=r"unknown fruit 'figs' \(did you mean 'fig'\?\); choose from fig, pear"):
        choose("fruit", "figs", ["fig", "pear"])
