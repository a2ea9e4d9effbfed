"""Names that other packages add: registered or offered by an entry point, refused where they cannot be right."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from factorcell import Config, Run, UserError, register_adapter, register_cell
from factorcell.commands.main import main
from factorcell.config import EXTENSIBLE, ModelConfig
from factorcell.model.adapters import Concat, find_adapter
from factorcell.model.cells import GRU, LSTM, Coupled, find_cell
from factorcell.option_fields import ADAPTERS, CELLS
from tests import ROOT, adapter_plugins
from tests.adapter_plugins import MODULE, Bottleneck, Minimal, install
from tests.small_runs import ROWS

WORDS = ["--text", "text", "--context", "city", "--context", "stars", "--min-context-count", "1", "--threads", "1"]
SIZES = ["--hidden-size", "4", "--embedding-size", "4", "--context-size", "3", "--rank", "2", "--batch-tokens", "50"]
THEIRS = ["--adapt", "bottleneck", "--adapt", "everything", "--cell", "minimal"]


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    for more in EXTENSIBLE.values():
        monkeypatch.setattr(more, "registered", {})
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def refusal(call: Callable[[], Any]) -> str:
    """The one line of a `UserError`."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def table(folder: Path) -> Path:
    """A few reviews."""
    path = folder / "reviews.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("text", "city", "stars"), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(ROWS * 3)
    return path


def train(folder: Path) -> list[str]:
    """The command that trains `folder/run` with a stranger's adapters and cell."""
    path = str(table(folder))
    few = ["--epochs", "1", "--evaluations", "1", "--tokenizer", "char", *SIZES]
    return ["train", path, "--dev", path, *WORDS, *few, *THEIRS, "--out", str(folder / "run")]


def test_an_installed_package_is_asked_for_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, reviews = str(tmp_path / "run"), str(tmp_path / "reviews.csv")
    with monkeypatch.context() as installed:
        installed.syspath_prepend(str(install(tmp_path / "site")))
        assert main(train(tmp_path)) == 0
        scores = Run.open(run).score(ROWS[:2])
    for more in EXTENSIBLE.values():
        monkeypatch.setattr(more, "registered", {})
    capsys.readouterr()
    assert main(["score", run, reviews]) == 2
    assert capsys.readouterr().err == (
        f"factorcell: {run}/config.json: unknown adapt 'bottleneck'; choose from {', '.join(ADAPTERS)}; one of another "
        "package is known once that is installed or, in Python, its module is imported\n"
    )
    for name in ("bottleneck", "everything"):
        register_adapter(name, adapter_plugins.ADAPTERS[name])
    assert "unknown cell 'minimal'" in refusal(lambda: Run.open(run))
    register_cell("minimal", Minimal)
    assert Run.open(run).score(ROWS[:2]) == scores


@pytest.mark.slow
def test_every_verb_takes_the_names_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, source = install(tmp_path / "site"), str(ROOT / "src")

    def factorcell(path: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command, environment = [sys.executable, "-m", "factorcell", *words], {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)

    assert factorcell(os.pathsep.join([source, str(site)]), *train(tmp_path)).returncode == 0
    alone = factorcell(source, "score", "run", "reviews.csv")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "unknown adapt 'bottleneck'" in alone.stderr
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    for words in (
        "evaluate run reviews.csv --by city".split(),
        "classify run reviews.csv --target city".split(),
        "generate run --each city --number 1".split(),
        "complete run the --context city=Oslo --seconds 0.1".split(),
        "explain run --between city=Oslo city=Nice --text the".split(),
        "contexts run --near Oslo".split(),
        "finetune run reviews.csv --epochs 1 --evaluations 1 --out tuned".split(),
        [*"tune reviews.csv --dev reviews.csv --trials 2 --epochs 1 --out trials".split(), *WORDS, *THEIRS],
        "check run".split(),
    ):
        assert main(words) == 0, words


def test_packages_are_asked_for_strange_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", source="raise SystemExit('imported')")))
    Config()
    Config.of(adapt=("bottleneck",), cell="minimal")
    assert MODULE not in sys.modules
    for name in (MODULE, f"{MODULE}:Bottleneck", "os:system", "none", ""):
        assert f"unknown adapt {name!r}" in refusal(lambda name=name: ModelConfig(adapt=(name,)))  # type: ignore[misc]
    assert "did you mean 'bottleneck'?" in refusal(lambda: ModelConfig(adapt=("bottlneck",)))
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_there", "cannot be imported (ModuleNotFoundError: No module named 'nothing_there')"),
        ("Bottleneck = 1 / 0", "cannot be imported (ZeroDivisionError: division by zero)"),
        ("", "cannot be imported (AttributeError: module 'their_package' has no attribute 'Bottleneck')"),
        ("Bottleneck = 1", ": expected a class that extends factorcell.model.Adapter, got 1"),
    ],
)
def test_what_a_package_cannot_give_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", source=source or "#")))
    said = refusal(lambda: find_adapter("bottleneck"))
    assert said.startswith("adapter 'bottleneck'")
    assert said.endswith(message)


def test_a_name_that_two_packages_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "import factorcell\nfrom factorcell.model.cells import GRU\nclass Mine(GRU): pass\n"
    points = "[factorcell.cells]\nmine = {0}:Mine\n[factorcell.adapters]\ngru = {0}:Mine\n"
    registers = own + "factorcell.register_cell('mine', Mine)\n"
    monkeypatch.syspath_prepend(str(install(tmp_path / "first", registers, points.format(MODULE))))
    assert find_cell("mine").__module__ == MODULE
    monkeypatch.setattr(EXTENSIBLE["cell"], "registered", {})
    monkeypatch.syspath_prepend(str(install(tmp_path / "second", own, points.format("others"), "others")))
    assert refusal(lambda: find_cell("mine")) == (
        "cell 'mine' is offered by two packages, as others:Mine and their_package:Mine; uninstall one"
    )


@pytest.mark.parametrize("name", ["", "none", "Gate", "gate-shift", "a.b", "1", "a b", "ü", 3, None])
def test_names_are_words(name: Any) -> None:
    said = refusal(lambda: register_adapter(name, Bottleneck))
    assert said == f"adapter {name!r}: a name must be of lower-case letters, digits and _, not none"


def test_a_name_is_taken_once() -> None:
    for name in ADAPTERS:
        assert "one of factorcell's own" in refusal(lambda name=name: register_adapter(name, Bottleneck))  # type: ignore[misc]
    for name in CELLS:
        assert "one of factorcell's own" in refusal(lambda name=name: register_cell(name, Minimal))  # type: ignore[misc]
    for name in ("forward", "keys", "training"):
        assert "PyTorch reserves this name" in refusal(lambda name=name: register_adapter(name, Bottleneck))  # type: ignore[misc]
    register_adapter("mine", Bottleneck)
    register_adapter("mine", Bottleneck)
    again = type("Bottleneck", (Bottleneck,), {"__module__": Bottleneck.__module__, "__qualname__": "Bottleneck"})
    register_adapter("mine", again)
    assert find_adapter("mine") is again
    said = refusal(lambda: register_adapter("mine", Concat))
    assert said == "adapter 'mine' is registered already, as tests.adapter_plugins:Bottleneck; choose another name"
    register_cell("mine", GRU)
    assert "is registered already, as factorcell.model.cells:GRU" in refusal(lambda: register_cell("mine", LSTM))
    assert Config.of(adapt=("mine", "factor"), cell="mine").model.adapt == ("mine", "factor")


@pytest.mark.parametrize("made", [object(), nn.Linear])
def test_an_adapter_extends_the_base_class(made: Any) -> None:
    assert "expected a class that extends factorcell.model.Adapter, got <" in refusal(
        lambda: register_adapter("broken", made)
    )
    assert EXTENSIBLE["adapt"].registered == {}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"gates": 2.0}, "expected gates of type int, got 2.0"),
        ({"memory": None}, "expected memory of type bool, got None"),
    ],
)
def test_a_cell_has_the_attributes_of_its_protocol(own: dict[str, Any], message: str) -> None:
    assert message in refusal(lambda: register_cell("broken", type("Broken", (Minimal,), own)))
    assert EXTENSIBLE["cell"].registered == {}


def test_cells_are_classes_without_parameters() -> None:
    learned = type("Learned", (nn.Linear,), {"gates": 1, "memory": False, "separate_products": False})
    for made in (Coupled(), learned):
        assert "expected a class without parameters" in refusal(lambda made=made: register_cell("broken", made))  # type: ignore[misc]
