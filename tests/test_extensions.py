"""Adapters and cells of other packages: registered, or declared as entry points, or refused."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from factorcell import Run, UserError
from factorcell.adapters.adapters import Concat, find_adapter
from factorcell.commands.cli.main import main
from factorcell.config import ADAPTERS, CELLS, EXTENSIBLE, Config, ModelConfig
from factorcell.nn import register_adapter, register_cell
from factorcell.nn.backbones.cells import GRU, Coupled
from tests import ROOT, adapter_plugins
from tests.adapter_plugins import MODULE, Bottleneck, Minimal, install
from tests.small_runs import ROWS

COLUMNS = [
    "--text",
    "text",
    "--context",
    "city",
    "--context",
    "stars",
    "--min-context-count",
    "1",
    "--threads",
    "1",
]
SIZES = ["--hidden-size", "4", "--embedding-size", "4", "--context-size", "3", "--rank", "2", "--batch-tokens", "50"]
EXTENSIONS = ["--adapt", "bottleneck", "--adapt", "everything", "--cell", "minimal"]


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test without registered names, as in a new process."""
    for registry in EXTENSIBLE.values():
        monkeypatch.setattr(registry, "registered", {})
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def refusal(call: Callable[[], Any]) -> str:
    """Return the message of the `UserError` that `call` raises, which must be one line."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_table(folder: Path) -> Path:
    path = folder / "reviews.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("text", "city", "stars"), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(ROWS * 3)
    return path


def train_command(folder: Path) -> list[str]:
    """Return the command that trains `folder/run` with the adapters and the cell of another package."""
    path = str(write_table(folder))
    training = ["--epochs", "1", "--evaluations", "1", "--tokenizer", "char", *SIZES]
    return ["train", path, "--dev", path, *COLUMNS, *training, *EXTENSIONS, "--out", str(folder / "run")]


def test_names_of_an_installed_package_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, reviews = str(tmp_path / "run"), str(tmp_path / "reviews.csv")
    with monkeypatch.context() as installed:
        installed.syspath_prepend(str(install(tmp_path / "site")))
        assert main(train_command(tmp_path)) == 0
        scores = Run.open(run).score_rows(ROWS[:2])
    for registry in EXTENSIBLE.values():
        monkeypatch.setattr(registry, "registered", {})
    capsys.readouterr()
    assert main(["score", run, reviews]) == 2
    assert capsys.readouterr().err == (
        f"factorcell: {run}/config.json: unknown adapt 'bottleneck'; choose from {', '.join(ADAPTERS)}; if another "
        "package defines it, install the package or, in Python, import its module\n"
    )
    for name in ("bottleneck", "everything"):
        register_adapter(name, adapter_plugins.ADAPTERS[name])
    assert "unknown cell 'minimal'" in refusal(lambda: Run.open(run))
    register_cell("minimal", Minimal)
    assert Run.open(run).score_rows(ROWS[:2]) == scores


@pytest.mark.slow
def test_every_command_accepts_names_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, source = install(tmp_path / "site"), str(ROOT / "src")

    def factorcell(path: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command, environment = [sys.executable, "-m", "factorcell", *words], {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)

    assert factorcell(os.pathsep.join([source, str(site)]), *train_command(tmp_path)).returncode == 0
    uninstalled = factorcell(source, "score", "run", "reviews.csv")
    assert (uninstalled.returncode, uninstalled.stdout) == (2, "")
    assert "unknown adapt 'bottleneck'" in uninstalled.stderr
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
        [
            *"tune reviews.csv --dev reviews.csv --trials 2 --epochs 1 --out trials".split(),
            *COLUMNS,
            *EXTENSIONS,
        ],
    ):
        assert main(words) == 0, words


def test_configs_do_not_import_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", source="raise SystemExit('imported')")))
    Config()
    Config.of(adapt=("bottleneck",), cell="minimal")
    assert MODULE not in sys.modules
    for name in (MODULE, f"{MODULE}:Bottleneck", "os:system", ""):
        assert f"unknown adapt {name!r}" in refusal(lambda name=name: ModelConfig(adapt=(name,)))  # type: ignore[misc]
    assert "did you mean 'bottleneck'?" in refusal(lambda: ModelConfig(adapt=("bottlneck",)))
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_there", "cannot be imported (ModuleNotFoundError: No module named 'nothing_there')"),
        ("Bottleneck = 1 / 0", "cannot be imported (ZeroDivisionError: division by zero)"),
        ("", "cannot be imported (AttributeError: module 'their_package' has no attribute 'Bottleneck')"),
        ("Bottleneck = 1", ": expected a class that extends factorcell.nn.Adapter, got 1"),
    ],
)
def test_a_package_that_cannot_be_imported_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", source=source or "#")))
    line = refusal(lambda: find_adapter("bottleneck"))
    assert line.startswith("adapter 'bottleneck'")
    assert line.endswith(message)


@pytest.mark.parametrize("name", ["", "none", "Gate", "gate-shift", "a.b", "1", "a b", "ü", 3, None])
def test_names_are_lower_case_identifiers(name: Any) -> None:
    line = refusal(lambda: register_adapter(name, Bottleneck))
    assert line == f"adapter {name!r}: expected a name of a-z, 0-9 and _ other than 'none'"


def test_a_registered_name_can_be_replaced_but_not_a_built_in_one() -> None:
    for name in ADAPTERS:
        assert "is built into factorcell" in refusal(lambda name=name: register_adapter(name, Bottleneck))  # type: ignore[misc]
    for name in CELLS:
        assert "is built into factorcell" in refusal(lambda name=name: register_cell(name, Minimal))  # type: ignore[misc]
    for name in ("forward", "keys", "training"):
        assert "PyTorch reserves this name" in refusal(lambda name=name: register_adapter(name, Bottleneck))  # type: ignore[misc]
    register_adapter("mine", Bottleneck)
    register_adapter("mine", Bottleneck)
    register_adapter("mine", Concat)
    assert find_adapter("mine") is Concat
    register_cell("mine", GRU)
    assert Config.of(adapt=("mine", "factor"), cell="mine").model.adapt == ("mine", "factor")


@pytest.mark.parametrize("cls", [object(), nn.Linear])
def test_an_adapter_must_extend_the_base_class(cls: Any) -> None:
    assert "expected a class that extends factorcell.nn.Adapter, got <" in refusal(
        lambda: register_adapter("broken", cls)
    )
    assert EXTENSIBLE["adapt"].registered == {}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"gates": 2.0}, "expected gates of type int, got 2.0"),
        ({"memory": None}, "expected memory of type bool, got None"),
    ],
)
def test_a_cell_must_have_the_attributes_of_its_protocol(attributes: dict[str, Any], message: str) -> None:
    assert message in refusal(lambda: register_cell("broken", type("Broken", (Minimal,), attributes)))
    assert EXTENSIBLE["cell"].registered == {}


def test_cells_must_be_classes_without_parameters() -> None:
    learned = type("Learned", (nn.Linear,), {"gates": 1, "memory": False, "separate_products": False})
    for cls in (Coupled(), learned):
        assert "expected a class without parameters" in refusal(lambda cls=cls: register_cell("broken", cls))  # type: ignore[misc]
