"""Every field of the config is an option, and options on the command line override those of a file."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli import options
from factorcell.commands.cli.main import main
from factorcell.commands.cli.parser import OUTPUT_FILE, OUTPUT_FOLDER, Parser
from factorcell.config import Config, option_fields
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.training.fit import fit
from tests.commands.leaf_commands import LEAVES, parser

NUMBERED = {"sparse_l1": "0.5"}
USER_OPTIONS = ("anonymous", "min_users", "prompt_history")  # options that need a user column


def parse(*arguments: str) -> Config:
    """Return the config of a command line."""
    parser = Parser("command", "a summary", arguments)
    parser.add_all("--config")
    parser.add("--model", help="a model")
    options.add_config_options(parser)
    return Config.of(**options.option_values(parser.parse(arguments)))


def test_no_options_give_the_default_config() -> None:
    assert parse() == Config()


@pytest.mark.parametrize("section", [field.name for field in dataclasses.fields(Config)])
def test_every_field_has_an_option(section: str) -> None:
    default = getattr(Config(), section)
    for field in option_fields(default):
        flag, value = "--" + field.name.replace("_", "-"), getattr(default, field.name)
        choices = field.metadata.get("choices")
        arguments: list[str]
        expected: Any
        if field.name == "kind":
            arguments, expected = [f"--{section}", value], value
        elif isinstance(value, bool):
            arguments, expected = [flag if not value else flag.replace("--", "--no-", 1)], not value
        elif isinstance(value, tuple):
            other = NUMBERED.get(field.name, "stars")
            arguments, expected = [flag, choices[0] if choices else other], (choices[0] if choices else other,)
        elif choices:
            arguments, expected = [flag, choices[-1]], choices[-1]
        elif isinstance(value, str):
            arguments, expected = [flag, "review"], "review"
        else:
            expected = field.metadata["limits"].low + 0.5 if isinstance(value, float) else 7
            arguments = [flag, str(expected)]
        required = ["--user", "who"] if field.name in USER_OPTIONS else []
        assert getattr(getattr(parse(*arguments, *required), section), field.name) == expected


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('[model]\nrank = 3\n[backbone]\nhidden_size = 9\n[tokenizer]\nkind = "space"\n', encoding="utf-8")
    config = parse("--config", str(file), "--rank", "5", "--model", "softmaxbias", "--tokenizer", "char")
    assert (config.model.rank, config.to_dict()["backbone"]["hidden_size"]) == (5, 9)
    assert (config.model.adapt, config.model.output_bias) == ((), ("low_rank",))
    assert (config.tokenizer.kind, config.tokenizer.lowercase) == ("char", False)
    assert parse("--adapt", "none").model.adapt == ()
    assert parse("--adapt", "factor", "--output-bias", "one_hot").model.output_bias == ("one_hot",)


@pytest.mark.parametrize("option", ["base", "architecture"])
@pytest.mark.parametrize("value", ["gpt2", "gpt3-misspelled", ""])
def test_an_option_of_transformers_and_another_backbone_contradict_each_other(option: str, value: str) -> None:
    message = f"{option} requires backbone huggingface, got recurrent"
    for words in ((f"--{option}", value, "--backbone", "recurrent"), ("--backbone=recurrent", f"--{option}={value}")):
        with pytest.raises(UserError, match=message):
            parse(*words)
    with pytest.raises(UserError, match=message):
        Config.of(**{option: value}, backbone="recurrent")
    with pytest.raises(UserError, match=message):
        Config.from_dict({"backbone": {"kind": "recurrent", option: value}})


BASE, NEW = '[backbone]\nbase = "gpt2"\n', '[backbone]\narchitecture = "gpt2"\n'
FULL_BASE = '[tokenizer]\nkind = "pretrained"\n[backbone]\nkind = "huggingface"\nbase = "gpt2"\nlayers = 2\n'
RECURRENT = "[backbone]\nhidden_size = 9\n"


@pytest.mark.parametrize(
    ("content", "words", "options"),
    [
        (BASE, "", {"base": "gpt2"}),
        (BASE, "--rank 2 --shared-rank 3", {"base": "gpt2", "shared_rank": 3, "rank": 2}),
        (BASE, "--backbone recurrent", {}),
        (BASE, "--backbone recurrent --hidden-size 7", {"hidden_size": 7}),
        (BASE, "--backbone huggingface", {"base": "gpt2"}),
        (BASE, "--base llama", {"base": "llama"}),
        (NEW, "", {"architecture": "gpt2"}),
        (NEW, "--tokenizer char", {"architecture": "gpt2", "tokenizer": "char"}),
        (NEW, "--backbone recurrent --layers 2", {"layers": 2}),
        (FULL_BASE, "--backbone recurrent", {}),
        (FULL_BASE, "--backbone recurrent --tokenizer char", {"tokenizer": "char"}),
        (RECURRENT, "--backbone recurrent", {"hidden_size": 9}),
        (RECURRENT, "--base gpt2", {"base": "gpt2"}),
        (RECURRENT, "--architecture gpt2 --layers 3", {"architecture": "gpt2", "layers": 3}),
    ],
)
def test_a_command_line_overrides_the_kinds_of_a_file(
    content: str, words: str, options: dict[str, Any], tmp_path: Path
) -> None:
    for file, text in (("c.toml", content), ("c.json", json.dumps(tomllib.loads(content) | {"format": 1}))):
        (tmp_path / file).write_text(text, encoding="utf-8")
        assert parse("--config", str(tmp_path / file), *words.split()) == Config.of(**options)


@pytest.mark.parametrize("content", ["[]", "5", '{"backbone": 5}', '{"backbone": {"kind": 5}}', '{"x": {}}'])
def test_an_invalid_file_is_one_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(content, encoding="utf-8")
    for words in ("", "--backbone recurrent", "--base gpt2"):
        with pytest.raises(UserError, match=r"c\.json: "):
            parse("--config", str(path), *words.split())


def test_unknown_names_are_errors() -> None:
    with pytest.raises(UserError, match="unknown adapt 'lora'; choose from concat, scale, factor, prefix"):
        parse("--adapt", "lora")


def test_rare_values_in_the_context_are_errors_or_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "a room", "city": city} for city in ("Oslo", "Oslo", "Nice", "Nice", "Riga")]
    config = Config.of(context=["city"], min_count=1, min_context_count=2)
    corpus = prepare(rows, config)
    Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema).save_weights({})
    for city, unknown, code, count in (("Riga", "error", 2, 1), ("Riga", "group", 0, 1), ("Oslo", "error", 0, 0)):
        words = ["generate", str(tmp_path / "run"), "--context", f"city={city}", "--max-tokens", "2", "--number", "3"]
        assert main([*words, "--verbose", "--unknown", unknown]) == code
        assert capsys.readouterr().err.count("rare value") == count


WRITING = [
    "classify RUN TABLE --target city --out",
    "rescore RUN NBEST --out",
    "rescore RUN NBEST --tune DEV --weights",
    "replay RUN TABLE --compare mpc --out",
    "mix RUN --dev TABLE --out",
    "demo --page",
]


@pytest.mark.parametrize("command", WRITING)
def test_a_file_that_cannot_be_written_is_reported_before_the_inputs_are_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main([*command.split(), "file/x"]) == 2
    assert "file/x: cannot be saved (Not a directory)" in capsys.readouterr().err


def test_every_output_argument_is_checked_for_writing() -> None:
    training = [
        ["train"],
        ["compare"],
        ["tune"],
        ["finetune"],
        ["demo"],
    ]  # these create their folder first
    for words in LEAVES:
        for action in parser(*words).actions:
            if {"--page", *(["--out"] if words not in training else [])} & {*action.option_strings}:
                assert getattr(action.type, "args", [None])[0] in (OUTPUT_FILE, OUTPUT_FOLDER), words


def test_weights_are_not_checked_for_writing_if_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = str(tmp_path / "none.jsonl")
    assert main(["rescore", "RUN", lists, "--weights", "/proc/none/weights.json"]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_a_semicolon_is_part_of_a_value_unless_another_name_follows() -> None:
    assert options.parse_context(None, ["a=1; b=x;y"]) == {"a": "1", "b": "x;y"}
    assert options.parse_context(None, ["a=1;2; 3"]) == {"a": "1;2; 3"}
    assert options.parse_context(None, ["a=1;b=2"]) == {"a": "1", "b": "2"}


def test_a_column_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    rows = [{"text": "a b c", "a=b": "x", "a": "1"}, {"text": "b a", "a=b": "y=z", "a": "2"}] * 4
    options_of_run: Any = {"epochs": 1, "min_count": 1, "min_context_count": 1, "hidden_size": 4}
    run = fit(rows, out=tmp_path / "run", context=["a=b", "a"], **options_of_run)
    assert options.parse_context(run, ["a=b=y=z; a=2"]) == {"a=b": "y=z", "a": "2"}
    assert options.parse_context(run, ["a=1", "c=d=2"]) == {"a": "1", "c": "d=2"}
