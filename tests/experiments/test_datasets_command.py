"""The command that builds tables out of repositories: three parts, a manifest, stops, and mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet as pq

import corpora
from experiments.datasets import command
from experiments.datasets.repository import open_repository
from experiments.datasets.sets import SETS, DataSet
from tests import ROOT
from tests.experiments.repositories import Files, git, made, table


def abstracts(tmp_path: Path, count: int = 400, more: str = "") -> Path:
    """A repository of dbpedia14, a quarter of whose texts stand twice."""
    lines = [[str(n % 2), f"Text {n % (3 * count // 4)} ."] for n in range(count)]
    files = {"data/dbpedia/classes.txt": "Company\nArtist\n", "data/dbpedia/train.csv": table(*lines) + more}
    return made(tmp_path / "clone", files)


def run(tmp_path: Path, origin: Path | str, *more: str, name: str = "dbpedia14") -> int:
    """The command, with what it writes in a folder of the test."""
    return command.main([name, "--out", str(tmp_path / "out"), "--from", str(origin), "--at", "HEAD", *more])


def test_three_parts_and_what_they_were_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every distinct row once, no text in two parts, the same parts from a clone as from an address."""
    clone = abstracts(tmp_path, more="9,no such category\n")
    assert run(tmp_path, clone) == 0
    assert "train.parquet: " in capsys.readouterr().out
    folder = tmp_path / "out" / "dbpedia14"
    parts = {part: pq.read_table(folder / f"{part}.parquet") for part in corpora.PARTS}
    assert all(part.column_names == ["text", "category"] for part in parts.values())
    texts = {part: set(rows["text"].to_pylist()) for part, rows in parts.items()}
    assert texts["train"].isdisjoint(texts["test"] | texts["dev"])
    assert texts["test"].isdisjoint(texts["dev"])
    assert set().union(*texts.values()) == {f"Text {n} ." for n in range(300)}
    assert len(texts["test"]) == 75
    assert max(map(corpora.text_hash, texts["test"])) < min(map(corpora.text_hash, texts["dev"] | texts["train"]))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["sources"] == {"KEAML-JLU/DeepTextClustering": git(clone, "rev-parse", "HEAD")}
    assert manifest["records"] == {"read": 401, "unreadable": 1, "empty": 0, "repeated": 100}
    assert {part: facts["rows"] for part, facts in manifest["parts"].items()} == {
        part: len(rows) for part, rows in parts.items()
    }
    assert run(tmp_path / "again", f"file://{clone}") == 0
    assert json.loads((tmp_path / "again/out/dbpedia14/manifest.json").read_text()) == manifest
    kept = open_repository(
        "KEAML-JLU/DeepTextClustering", git(clone, "rev-parse", "HEAD"), "gone", tmp_path / "again/out/clones"
    )
    assert kept.paths() == ["data/dbpedia/classes.txt", "data/dbpedia/train.csv"]


def test_what_is_built_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same commit is not read twice, a new one is; what was stopped is built again, its manifest being the last."""
    clone = abstracts(tmp_path)
    folder = tmp_path / "out" / "dbpedia14"
    assert run(tmp_path, clone) == 0
    before = (folder / "manifest.json").read_bytes(), (folder / "train.parquet").stat().st_mtime_ns
    assert run(tmp_path, clone) == 0
    assert "built already" in capsys.readouterr().out
    assert before == ((folder / "manifest.json").read_bytes(), (folder / "train.parquet").stat().st_mtime_ns)
    (folder / "manifest.json").unlink()
    assert run(tmp_path, clone) == 0
    assert before[0] == (folder / "manifest.json").read_bytes()
    made(clone, {"data/dbpedia/train.csv": "0,Another text .\n" * 2})
    assert run(tmp_path, clone) == 0
    assert json.loads((folder / "manifest.json").read_text())["records"]["read"] == 2


def test_a_stop_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = abstracts(tmp_path)
    assert run(tmp_path, clone) == 0
    made(clone, {}, "Another")

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(corpora, "write_table", stopped)
    assert run(tmp_path, clone) == 130
    assert not (tmp_path / "out/dbpedia14/manifest.json").exists()
    monkeypatch.undo()
    assert run(tmp_path, clone) == 0


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "there is no file data/dbpedia/classes.txt"),
        ({"data/dbpedia/classes.txt": "A\n", "data/dbpedia/train.csv": b"0,\xff\n"}, "train.csv is no UTF-8 (byte 2)"),
        ({"data/dbpedia/classes.txt": "A\n", "data/dbpedia/train.csv": "x\ny\n0,a\n"}, "2 of 3 records cannot be read"),
        ({"data/dbpedia/classes.txt": "A\n", "data/dbpedia/train.csv": ""}, "0 of 0 records cannot be read"),
    ],
)
def test_another_repository_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: Files, said: str
) -> None:
    assert run(tmp_path, made(tmp_path / "clone", files)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert said in error
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_wrong_arguments_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clone = abstracts(tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    faults: dict[str, tuple[str, Path | str]] = {
        "data set": ("dbpedia", clone),
        "not a git repository": ("dbpedia14", plain),
        "does not appear to be a git repository": ("dbpedia14", f"file://{tmp_path}/gone"),
        "1 given, and there are 8 repositories": ("agnews", clone),
    }
    for said, (name, origin) in faults.items():
        assert run(tmp_path, origin, name=name) == 2
        error = capsys.readouterr().err
        assert said in error, error
        assert error.count("error: ") == 1
    assert not list((tmp_path / "out").rglob("*.partial"))
    assert run(tmp_path, clone, "--at", "0" * 40) == 2
    assert "KEAML-JLU/DeepTextClustering: " in capsys.readouterr().err


def test_every_set_names_commits() -> None:
    assert all(len(commit) == 40 for data_set in SETS.values() for commit in data_set.sources.values())
    assert all(set(data_set.numbers) <= set(data_set.contexts) for data_set in SETS.values())
    assert all(isinstance(data_set, DataSet) for data_set in SETS.values())


def test_the_command_stands_alone() -> None:
    """As it is typed, from the root of the project."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments.datasets", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "dbpedia14" in done.stdout
