"""The command that builds data sets: parts, manifest, stops and mistakes."""

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
from tests.experiments.repositories import Files, commit_files, git, table


def abstracts_repository(tmp_path: Path, count: int = 400, more: str = "") -> Path:
    """Return a repository of dbpedia14 in which a quarter of the texts occur twice."""
    lines = [[str(n % 2), f"Text {n % (3 * count // 4)} ."] for n in range(count)]
    files = {"data/dbpedia/classes.txt": "Company\nArtist\n", "data/dbpedia/train.csv": table(*lines) + more}
    return commit_files(tmp_path / "clone", files)


def run_command(tmp_path: Path, origin: Path | str, *more: str, name: str = "dbpedia14") -> int:
    """Run the command with an output folder in `tmp_path`."""
    return command.main([name, "--out", str(tmp_path / "out"), "--from", str(origin), "--at", "HEAD", *more])


def test_a_build_writes_three_parts_and_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Repeated rows are dropped, parts share no text, and a clone gives the same parts as an address."""
    clone = abstracts_repository(tmp_path, more="9,no such category\n")
    assert run_command(tmp_path, clone) == 0
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
    assert run_command(tmp_path / "again", f"file://{clone}") == 0
    assert json.loads((tmp_path / "again/out/dbpedia14/manifest.json").read_text()) == manifest
    repository = open_repository(
        "KEAML-JLU/DeepTextClustering", git(clone, "rev-parse", "HEAD"), "gone", tmp_path / "again/out/clones"
    )
    assert repository.paths() == ["data/dbpedia/classes.txt", "data/dbpedia/train.csv"]


def test_the_same_commit_is_not_built_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new commit is built, and so is a folder without its manifest, which is written last."""
    clone = abstracts_repository(tmp_path)
    folder = tmp_path / "out" / "dbpedia14"
    assert run_command(tmp_path, clone) == 0
    before = (folder / "manifest.json").read_bytes(), (folder / "train.parquet").stat().st_mtime_ns
    assert run_command(tmp_path, clone) == 0
    assert "already built" in capsys.readouterr().out
    assert before == ((folder / "manifest.json").read_bytes(), (folder / "train.parquet").stat().st_mtime_ns)
    (folder / "manifest.json").unlink()
    assert run_command(tmp_path, clone) == 0
    assert before[0] == (folder / "manifest.json").read_bytes()
    commit_files(clone, {"data/dbpedia/train.csv": "0,Another text .\n" * 2})
    assert run_command(tmp_path, clone) == 0
    assert json.loads((folder / "manifest.json").read_text())["records"]["read"] == 2


def test_a_stopped_build_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = abstracts_repository(tmp_path)
    assert run_command(tmp_path, clone) == 0
    commit_files(clone, {}, "Another")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(corpora, "write_table", interrupt)
    assert run_command(tmp_path, clone) == 130
    assert not (tmp_path / "out/dbpedia14/manifest.json").exists()
    monkeypatch.undo()
    assert run_command(tmp_path, clone) == 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no file data/dbpedia/classes.txt"),
        ({"data/dbpedia/classes.txt": "A\n", "data/dbpedia/train.csv": b"0,\xff\n"}, "train.csv is not UTF-8 (byte 2)"),
        ({"data/dbpedia/classes.txt": "A\n", "data/dbpedia/train.csv": "x\ny\n0,a\n"}, "2 of 3 records cannot be read"),
        ({"data/dbpedia/classes.txt": "A\n", "data/dbpedia/train.csv": ""}, "0 of 0 records cannot be read"),
    ],
)
def test_a_wrong_repository_gives_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: Files, message: str
) -> None:
    assert run_command(tmp_path, commit_files(tmp_path / "clone", files)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_wrong_arguments_give_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clone = abstracts_repository(tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    cases: dict[str, tuple[str, Path | str]] = {
        "data set": ("dbpedia", clone),
        "not a git repository": ("dbpedia14", plain),
        "does not appear to be a git repository": ("dbpedia14", f"file://{tmp_path}/gone"),
        "expected 8 repositories": ("agnews", clone),
    }
    for message, (name, origin) in cases.items():
        assert run_command(tmp_path, origin, name=name) == 2
        error = capsys.readouterr().err
        assert message in error, error
        assert error.count("error: ") == 1
    assert not list((tmp_path / "out").rglob("*.partial"))
    assert run_command(tmp_path, clone, "--at", "0" * 40) == 2
    assert "KEAML-JLU/DeepTextClustering: " in capsys.readouterr().err


def test_every_data_set_names_its_commits() -> None:
    assert all(len(commit) == 40 for data_set in SETS.values() for commit in data_set.sources.values())
    assert all(set(data_set.numbers) <= set(data_set.contexts) for data_set in SETS.values())
    assert all(isinstance(data_set, DataSet) for data_set in SETS.values())


def test_the_command_runs_from_the_root_of_the_project() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.datasets", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "dbpedia14" in done.stdout
