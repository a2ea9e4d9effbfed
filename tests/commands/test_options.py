"""Every field of the config is an option, and what is given on the command line wins over a file."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands import options
from factorcell.commands.main import main
from factorcell.commands.parser import Parser
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.model.run import Run
from tests.commands.verbs import LEAVES, parser

NUMBERED = {"sparse_l1": "0.5"}
OF_USERS = ("anonymous", "max_user_texts", "min_users")  # options that need a user column


def parse(*arguments: str) -> Config:
    """The config of a command line."""
    parser = Parser("verb", "what it does")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--model")
    options.add(parser)
    return options.config(parser.parse(arguments))


def test_nothing_given_is_the_default() -> None:
    """No option, no file: `Config()`."""
    assert parse() == Config()


@pytest.mark.parametrize("section", [field.name for field in dataclasses.fields(Config)])
def test_every_field_has_its_option(section: str) -> None:
    """Each field can be set by its name, to a value that its type and choices allow."""
    default = getattr(Config(), section)
    for field in dataclasses.fields(default):
        flag, value = "--" + field.name.replace("_", "-"), getattr(default, field.name)
        choices = field.metadata["choices"]
        given: list[str]
        expected: Any
        if isinstance(value, bool):
            given, expected = [flag if not value else flag.replace("--", "--no-", 1)], not value
        elif isinstance(value, tuple):
            other = NUMBERED.get(field.name, "stars")
            given, expected = [flag, choices[0] if choices else other], (choices[0] if choices else other,)
        elif choices:
            given, expected = [flag, choices[-1]], choices[-1]
        elif isinstance(value, str):
            given, expected = [flag, "review"], "review"
        else:
            expected = field.metadata["limits"].low + 0.5 if isinstance(value, float) else 7
            given = [flag, str(expected)]
        needed = ["--user", "who"] if field.name in OF_USERS else []
        assert getattr(getattr(parse(*given, *needed), section), field.name) == expected


def test_options_win_over_the_file(tmp_path: Path) -> None:
    """A file sets what the command line does not; a named model sets what it adapts."""
    file = tmp_path / "recipe.toml"
    file.write_text('[model]\nrank = 3\nhidden_size = 9\n[data]\nunit = "space"\n', encoding="utf-8")
    config = parse("--config", str(file), "--rank", "5", "--model", "softmaxbias", "--unit", "char")
    assert (config.model.rank, config.model.hidden_size) == (5, 9)
    assert (config.model.adapt, config.model.output_bias) == ((), ("low_rank",))
    assert (config.data.unit, config.data.lowercase) == ("char", False)
    assert parse("--adapt", "none").model.adapt == ()
    assert parse("--adapt", "factor", "--output-bias", "one_hot").model.output_bias == ("one_hot",)


def test_unknown_names_are_refused() -> None:
    """An adapter that does not exist is named with those that do."""
    with pytest.raises(UserError, match="unknown adapt 'lora'; choose from concat, scale, factor, prefix"):
        parse("--adapt", "lora")


def test_a_rare_value_given_by_hand_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, whatever the number of its texts to write; neither a frequent value is, nor one never seen."""
    rows = [{"text": "a room", "city": city} for city in ("Oslo", "Oslo", "Nice", "Nice", "Riga")]
    config = Config.from_dict({"data": {"context": ["city"], "min_count": 1, "min_context_count": 2}})
    corpus = prepare(rows, config.data)
    Run.create(tmp_path / "run", config, corpus.vocabulary, corpus.schema).save_weights({})
    for city, told in {"Riga": 1, "Oslo": 0}.items():
        words = ["generate", str(tmp_path / "run"), "--context", f"city={city}", "--max-tokens", "2", "--number", "3"]
        assert main(words) == 0
        assert capsys.readouterr().err.count("city 'Riga' is read as a rare value") == told
    options.tell_rare(corpus.schema, {"city": "Rome"}, {"stars": "5"})
    assert not capsys.readouterr().err


# Verbs that train begin with their folder, and say at once where it cannot be made.
TRAINING = [["train"], ["compare"], ["tune"], ["finetune"], ["separate"], ["demo"]]
# What each other verb that writes is given beside its --out or --page: nothing of it is there.
WRITING = {
    "classify --out": "RUN TABLE --target city",
    "advise --page": "TABLE",
    "rescore --out": "RUN NBEST",
    "rescore --page": "RUN NBEST",
    "rescore --scores": "RUN NBEST",
    "rescore --weights": "RUN NBEST --tune DEV",
    "replay --out": "RUN TABLE --compare mpc",
    "generate --out": "RUN",
    "specificity --out": "RUN --target city --train TABLE --dev TABLE",
    "explain --page": "RUN FILE --between a=1 a=2",
    "contexts --page": "RUN",
    "report --out": "RUN",
    "mix --out": "RUN --dev TABLE",
    "baseline ngram --out": "TABLE",
    "demo --page": "",
}


def test_every_file_that_a_verb_writes_is_among_them() -> None:
    """A new --out or --page is tried too."""
    found = {
        f"{' '.join(words)} {name}"
        for words in LEAVES
        for name in ("--out", "--page")
        if name in parser(*words).options and (name == "--page" or words not in TRAINING)
    }
    assert found == {case for case in WRITING if case.split()[-1] in ("--out", "--page")}


@pytest.mark.parametrize("case", WRITING)
def test_a_file_that_cannot_be_written_is_said_before_the_work(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And before the run or the table is opened, of which there is none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    *verb, flag = case.split()
    assert main([*verb, *WRITING[case].split(), flag, "file/x"]) == 2
    assert capsys.readouterr().err == "factorcell: file/x: cannot be saved (Not a directory)\n"


def test_weights_that_are_read_are_not_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They may lie where nobody may write."""
    lists = str(tmp_path / "none.jsonl")
    assert main(["rescore", "RUN", lists, "--weights", "/proc/none/weights.json"]) == 2
    assert "none.jsonl" in capsys.readouterr().err
