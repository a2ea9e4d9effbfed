"""A backbone, a tokenizer and a head of another package work everywhere, like the built-in ones."""

import csv
import json
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import Run, UserError
from factorcell.commands.cli.main import main
from factorcell.completion import learn_one
from factorcell.completion.online import User
from factorcell.config import EXTENSIBLE, Config, KindOptions
from factorcell.data import register_tokenizer
from factorcell.nn import Backbone, register_backbone, register_head
from factorcell.nn.backbones.recurrent import RecurrentBackbone
from factorcell.training.fit import train_run
from factorcell.training.tuning import default_space
from tests import plugins
from tests.adapter_plugins import install
from tests.small_runs import nats_of

ROWS = [
    {"text": text, "city": city, "user": user}
    for text in ("the sea is cold", "sun and sand", "", "a cold sea")
    for city in ("Oslo", "Nice")
    for user in ("Ada", "Ben")
]
KINDS = {"backbone": "growing", "tokenizer": "pieces", "head": "untied"}
SMALL = {"embedding_size": 4, "context_size": 3, "variable_size": 2, "rank": 2, "epochs": 1.0, "evaluations": 1}
COUNTS = {"min_context_count": 1, "min_user_count": 1}


@pytest.fixture
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in EXTENSIBLE.values():
        monkeypatch.setattr(registry, "registered", {})
    monkeypatch.delitem(sys.modules, "their_plugins", raising=False)


@pytest.fixture
def registered(nothing_registered: None) -> None:
    register_backbone("growing", plugins.Growing)
    register_tokenizer("pieces", plugins.Pieces)
    register_head("untied", plugins.Untied)


def config_of(**kinds: str) -> Config:
    return Config.of(context=("city",), user="user", **COUNTS, **SMALL, **kinds)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("section", [*KINDS, "all"])
def test_a_run_of_an_external_kind_trains_and_opens_with_the_same_scores(section: str, tmp_path: Path) -> None:
    kinds = KINDS if section == "all" else {section: KINDS[section]}
    run = train_run(ROWS, ROWS, config_of(**kinds), tmp_path / "run")
    opened = Run.open(tmp_path / "run")
    assert {name: getattr(opened.config, name).kind for name in kinds} == kinds
    scores = opened.score(ROWS).tolist()
    assert scores == run.score(ROWS).tolist()
    assert scores == pytest.approx([sum(nats_of(opened, row)) for row in ROWS], abs=1e-4)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert ("pieces.json" in names) == ("tokenizer" in kinds)
    assert ("vocabulary.txt" in names) == ("tokenizer" not in kinds)


@pytest.mark.usefixtures("registered")
def test_a_user_is_learned_online_with_external_kinds(tmp_path: Path) -> None:
    run = train_run(ROWS, ROWS, config_of(**KINDS), tmp_path / "run")
    user = User.new(run)
    learned = learn_one(run, user, "the sea is cold")
    assert np.abs(learned.vector - user.vector).max() > 0


@pytest.fixture
def installed(nothing_registered: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = Path(plugins.__file__).read_text(encoding="utf-8")
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", source, plugins.ENTRY_POINTS, "their_plugins")))
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("text", "city", "user"))
        writer.writeheader()
        writer.writerows(ROWS)
    return tmp_path


def test_every_command_accepts_the_kinds_of_an_installed_package(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [word for section, kind in KINDS.items() for word in (f"--{section}", kind)]
    options = [
        word for name, value in {**SMALL, **COUNTS}.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    kind_options = "--width 5 --length 2 --depth 2 --context city --user user --threads 1".split()
    assert main(["train", "texts.csv", "--out", "run", *kinds, *kind_options, *options]) == 0
    sections = json.loads((installed / "run" / "config.json").read_text(encoding="utf-8"))
    assert sections["backbone"] == {"kind": "growing", "width": 5}
    assert sections["head"] == {"kind": "untied", "depth": 2}
    assert sections["tokenizer"]["length"] == 2
    for words in (
        "evaluate run texts.csv --by city",
        "classify run texts.csv --target city",
        "score run texts.csv",
        "generate run --each city --number 1 --method beam",
        "explain run --between city=Oslo city=Nice --text sea",
        "finetune run texts.csv --epochs 1 --evaluations 1 --out tuned",
        "report run --out report.html",
    ):
        assert main(words.split()) == 0, words
    capsys.readouterr()
    assert main("complete run the --seconds 0.1".split()) == 2
    assert "expected tokenizer char, grapheme, bpe or pretrained, got pieces" in capsys.readouterr().err


def test_help_shows_the_options_of_the_chosen_kind(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main("train --backbone growing --help".split())
    output = capsys.readouterr().out
    assert "--width" in output
    assert "--hidden-size" not in output
    with pytest.raises(SystemExit):
        main("train --help".split())
    output = capsys.readouterr().out
    assert "--width" not in output
    assert "--hidden-size" in output


def test_an_option_of_another_kind_is_unknown(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("train texts.csv --out run --width 3".split()) == 2
    assert "unknown option --width" in capsys.readouterr().err


@pytest.mark.usefixtures("registered")
def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown backbone 'transformer'; choose from recurrent, huggingface, growing"):
        Config.of(backbone="transformer")


@pytest.mark.usefixtures("nothing_registered")
def test_a_class_with_invalid_options_is_refused() -> None:
    with pytest.raises(UserError, match=r"expected Options\.kind to be 'other' by default, got 'growing'"):
        register_backbone("other", plugins.Growing)
    with pytest.raises(UserError, match="is built into factorcell"):
        register_backbone("recurrent", RecurrentBackbone)
    with pytest.raises(UserError, match="expected a class with `Options`"):
        register_head("number", 3)  # type: ignore[arg-type]
    invalid = type("Bare", (plugins.Pieces,), {"Options": type("Options", (KindOptions,), {"kind": "bare"})})
    with pytest.raises(UserError, match="expected a class with `Options`, a dataclass that extends TokenizerOptions"):
        register_tokenizer("bare", invalid)


@pytest.mark.usefixtures("registered")
def test_a_search_ignores_options_that_the_backbone_does_not_have() -> None:
    config = config_of(backbone="growing")
    space = default_space(config)
    assert "hidden_size" not in space
    assert "rank" in space


def other_backbone(option: str, default: Any) -> type[Backbone]:
    """Create a backbone of the kind `other` with one option."""
    fields = [("kind", str, "other"), (option, type(default), default)]
    return type("Other", (Backbone,), {"Options": make_dataclass("Options", fields, bases=(KindOptions,), frozen=True)})


@pytest.mark.usefixtures("nothing_registered")
@pytest.mark.parametrize("options", [{"backbone": "other"}, {"rank": 5, "backbone": "other"}])
def test_two_options_with_the_same_name_are_refused(options: dict[str, Any]) -> None:
    register_backbone("other", other_backbone("rank", 3))
    with pytest.raises(UserError, match=r"\[model\] and \[backbone\] both have the option 'rank'; rename one of them"):
        Config.of(**options)
