"""Options: validation, reading from files, and errors about unknown keys."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from factorcell.config import MODELS, Config, HuggingFaceOptions, ModelConfig, options_by_section
from factorcell.errors import UserError, check_choice


def test_config_survives_a_dict_and_json(tmp_path: Path) -> None:
    config = Config.of(context=("a", "b:number"), tokenizer="char", rank=3, token_rate=0)
    assert Config.from_dict(config.to_dict()) == config
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    assert Config.of(config=path) == config


def test_toml_may_omit_options_and_use_integers_as_floats(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[model]\nadapt = ["factor"]\n[training]\nlearning_rate = 1\n', encoding="utf-8")
    config = Config.of(config=path)
    assert config.model == ModelConfig(adapt=("factor",))
    assert config.training.learning_rate == 1.0
    assert config.data == Config().data


@given(
    text=st.text(),
    context=st.lists(st.text(), max_size=3),
    rate=st.floats(0, 1e38),
    rank=st.integers(1, 10**6),
    tokenizer=st.sampled_from(["char", "word"]),
)
@example(text='\x7f\x00\n"\\é', context=["a=b", "]"], rate=1e-05, rank=1, tokenizer="char")
def test_config_survives_toml(text: str, context: list[str], rate: float, rank: int, tokenizer: str) -> None:
    config = Config.of(text=text, context=tuple(context), tokenizer=tokenizer, adapt=(), rank=rank, learning_rate=rate)
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config


KINDS = ("tokenizer", "backbone", "head")
NO_TEXTS: list[Any] = [5, 0.5, True, None, ["recurrent"], {"kind": "word"}, ()]
NO_NAMES: list[Any] = [5, True, None, ("rank",)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"rnk": 3}}, r"unknown key in \[model\] 'rnk' \(did you mean 'rank'\?\); choose from adapt"),
        ({"modle": {}}, r"unknown section 'modle' \(did you mean 'model'\?\)"),
        ({"model": 3}, "model: expected a table of options, got 3"),
        ({"model": {"rank": "3"}}, "rank is '3'; it must be of type int"),
        ({"model": {"rank": True}}, "rank is True; it must be of type int"),
        ({"model": {"rank": -1}}, "rank is -1; it must be a whole number from 0"),
        ({"model": {"adapt": "factor"}}, "adapt is 'factor'; it must be a list of names"),
        ({"model": {"adapt": ["lora"]}}, "unknown adapt 'lora'; choose from concat, scale, factor, prefix"),
        (
            {"model": {}, "backbone": {"dropout_output": 1}},
            "dropout_output is 1.0; it must be a number from 0 to 1 .without 1.",
        ),
        ({"data": {}, "tokenizer": {"kind": "words"}}, r"unknown tokenizer 'words' \(did you mean 'word'\?\)"),
        *[({section: {"kind": value}}, rf"kind in \[{section}\] is ") for section in KINDS for value in NO_TEXTS],
        *[({value: {}}, "unknown section") for value in NO_NAMES],
        *[({"model": {value: 1}}, r"unknown key in \[model\]") for value in NO_NAMES],
        *[({"backbone": {"base": "gpt2", value: 1}}, r"unknown key in \[backbone\]") for value in NO_NAMES],
        ({"backbone": {"base": 5}}, "base is 5; it must be of type str"),
        ({"backbone": {"base": "gpt2", "architecture": "gpt2"}}, "expected either base"),
        ({"training": {"device": None}}, "device is None"),
        ({"training": {"device": "tpu"}}, "unknown device 'tpu' "),
        ({"training": {"learning_rate": -1.0}}, "learning_rate is -1.0"),
    ],
)
def test_errors_name_the_file_and_what_is_valid(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Config.from_dict(values, where="c.toml")
    assert str(error.value).startswith("c.toml: ")


def test_missing_files_and_invalid_toml_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        Config.of(config=tmp_path / "no.toml")
    (tmp_path / "c.toml").write_text("rank: 3", encoding="utf-8")
    with pytest.raises(UserError, match="not valid TOML"):
        Config.of(config=tmp_path / "c.toml")


def test_json_that_is_not_an_object_is_an_error() -> None:
    with pytest.raises(
        UserError, match="expected the sections data, tokenizer, model, backbone, head, training, got a list"
    ):
        Config.from_dict([1], where="c.json")  # type: ignore[arg-type]


def test_words_are_lower_cased_by_default_and_characters_are_not() -> None:
    kinds = ("word", "space", "char", "grapheme")
    assert [Config.of(tokenizer=kind).tokenizer.lowercase for kind in kinds] == [True, True, False, False]
    assert Config.of(tokenizer="char", lowercase=True).tokenizer.lowercase is True


@pytest.mark.parametrize(
    ("options", "minutes", "training"),
    [
        ({}, None, {"steps": 9, "epochs": 2.0, "seed": 3}),
        ({}, 1.0, {"seed": 3}),
        ({"epochs": 7.0}, None, {"epochs": 7.0, "seed": 3}),
        ({"steps": 5}, 1.0, {"steps": 5, "seed": 3}),
    ],
)
def test_a_new_duration_replaces_that_of_the_config(
    tmp_path: Path, options: dict[str, Any], minutes: float | None, training: dict[str, Any]
) -> None:
    path = tmp_path / "options.toml"
    path.write_text("[training]\nsteps = 9\nepochs = 2.0\nseed = 3\n", encoding="utf-8")
    assert options_by_section({"config": path, **options}, minutes=minutes)["training"] == training
    config = Config.of(steps=9, epochs=2.0, seed=3)
    from_config = options_by_section({"config": config, **options}, minutes=minutes)["training"]
    durations = [{name: row.get(name) for name in ("steps", "epochs", "seed")} for row in (from_config, training)]
    assert durations[0] == durations[1]
    assert config.with_options(epochs=7.0).training.steps == 9


def test_named_models_differ_only_in_their_adaptations() -> None:
    for name, (adapt, bias) in MODELS.items():
        config = Config.of(rank=4).with_options(model=name)
        assert config.model == ModelConfig(rank=4, adapt=adapt, output_bias=bias)
    with pytest.raises(UserError, match="unknown model 'factor'"):
        Config().with_options(model="factor")


def test_choose_suggests_the_most_similar_name() -> None:
    assert check_choice("fruit", "fig", ["fig", "pear"]) == "fig"
    with pytest.raises(UserError, match=r"unknown fruit 'figs' \(did you mean 'fig'\?\); choose from fig, pear"):
        check_choice("fruit", "figs", ["fig", "pear"])
    for name in (*NO_TEXTS, *NO_NAMES):
        with pytest.raises(UserError, match=r"unknown fruit .*; choose from fig, pear"):
            check_choice("fruit", name, ["fig", "pear"])


@pytest.mark.parametrize("option", ["base", "architecture"])
def test_a_file_selects_the_kinds_that_the_option_of_a_transformer_requires(option: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'[backbone]\n{option} = "gpt2"\n', encoding="utf-8")
    assert Config.of(config=path) == Config.of(**{option: "gpt2"})
    path.write_text(f'[tokenizer]\nkind = "char"\n[backbone]\n{option} = "gpt2"\n', encoding="utf-8")
    assert Config.of(config=path) == Config.of(tokenizer="char", **{option: "gpt2"})


@pytest.mark.parametrize("name", ["./model", "model.gguf", "org/model", "gpt2", "llama", "two words"])
def test_a_base_is_always_pretrained_and_an_architecture_is_always_new(name: str) -> None:
    pretrained, new = Config.of(base=name), Config.of(architecture=name)
    assert (pretrained.tokenizer.kind, pretrained.backbone.kind) == ("pretrained", "huggingface")
    assert (new.tokenizer.kind, new.backbone.kind) == ("word", "huggingface")
    for config, values in ((pretrained, (name, "", True)), (new, ("", name, False))):
        backbone = config.backbone
        assert isinstance(backbone, HuggingFaceOptions)
        assert (backbone.base, backbone.architecture, backbone.is_pretrained) == values
        assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    "options",
    [
        {"base": "gpt2", "architecture": "gpt2"},
        {"backbone": "huggingface"},
        {"base": ""},
        {"architecture": ""},
        {"base": "", "architecture": ""},
    ],
)
def test_a_transformer_is_either_pretrained_or_new(options: dict[str, str]) -> None:
    for config in (Config.of(), Config.of(base="./model"), Config.of(architecture="llama")):
        expected = "expected either base, a pretrained model, or architecture"
        values = {"base": "", "architecture": "", **options}
        with pytest.raises(UserError, match=expected):
            config.with_options(**values)
    with pytest.raises(UserError, match=expected):
        Config.of(**options)


def test_a_hashed_bias_is_refused_with_min_users() -> None:
    with pytest.raises(UserError, match="output_bias: a hashed bias would reveal which user wrote a word"):
        Config.of(user="who", min_users=3, output_bias=["hash"])
