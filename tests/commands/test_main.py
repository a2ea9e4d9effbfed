"""The command line on small tables: complete jobs, and every error in one line."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.io.files import read_rows
from tests.findings import parse_block
from tests.synthetic import two_dialects

SMALL = "--embedding-size 8 --hidden-size 10 --rank 2 --context-size 3 --variable-size 3 --min-count 1".split()
QUICK = "--min-context-count 1 --epochs 2 --batch-tokens 300 --evaluations 2 --threads 1 --learning-rate 1e-2".split()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tables` of two dialects, stars and a latitude, and with `trained`: the same tables and a run."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "tables").mkdir()
    for name, rows, seed in (("train", 400, 1), ("dev", 80, 2), ("test", 80, 3)):
        texts, _ = two_dialects(rows, seed)
        with (folder / "tables" / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["review", "dialect", "stars", "lat"])
            for index, row in enumerate(texts):
                writer.writerow([row["text"], row["dialect"], index % 5 + 1, 40 + index / 10])
    shutil.copytree(folder / "tables", folder / "trained")
    assert run_train(folder / "trained", "run") == 0
    return folder


@pytest.fixture
def tables(world: Path, tmp_path: Path) -> Path:
    """A folder with train.csv, dev.csv and test.csv."""
    return shutil.copytree(world / "tables", tmp_path / "tables")


@pytest.fixture
def trained(world: Path, tmp_path: Path) -> Path:
    """A folder with the tables and a trained run in `run`."""
    return shutil.copytree(world / "trained", tmp_path / "trained")


def run_train(folder: Path, out: str, *more: str) -> int:
    """Run `factorcell train` on the tables of `folder` and return its exit code."""
    context = "--text review --context dialect --context stars --context lat:number".split()
    files = [str(folder / "train.csv"), "--dev", str(folder / "dev.csv"), "--out", str(folder / out)]
    return main(["train", *files, *context, *SMALL, *QUICK, *more])


def test_train_reports_how_it_reads_the_columns(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(tables, "run") == 0
    block = parse_block(capsys.readouterr().err.splitlines())
    assert block["texts"].startswith("400 (")
    dialect, stars, lat = block["columns"].splitlines()
    assert dialect.startswith("dialect: category such as ")
    assert re.fullmatch(r"stars: category such as \d, \d, \d; 5 values", stars)
    assert re.fullmatch(r"lat: number such as [-\d.]+, [-\d.]+, [-\d.]+; from .* to .*, mean .*", lat)
    (texts,) = (tables / "run").glob("texts-*.safetensors")
    assert {path.name for path in (tables / "run").iterdir()} == {
        texts.name, "README.md", "checkpoint.safetensors", "config.json", "log.jsonl", "schema.json",
        "linear.safetensors", "priors.safetensors", "results.jsonl", "text_hashes.safetensors", "training.json",
        "training.lock",
        "unigrams.safetensors", "vocabulary.txt", "weights.safetensors",
    }  # fmt: skip


def test_evaluate_and_score_agree(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(trained / "run"), str(trained / "test.csv")]
    capsys.readouterr()
    assert main(["evaluate", *files, "--by", "stars", "--by", "lat", "--json", "--save"]) == 0
    whole, *groups = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["score", *files, "--tokens", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    nats, targets = sum(row["nats"] for row in rows), sum(row["targets"] for row in rows)
    assert whole["perplexity"] == pytest.approx(2.718281828459045 ** (nats / targets), rel=1e-6)
    assert sum(row["count"] for row in groups if row["by"] == "stars") == 80
    assert [token["token"] for token in rows[0]["tokens"]][-1] == "</s>"
    low, gain, high = (whole[f"gain_over_unknown_context{end}"] for end in ("_low", "", "_high"))
    assert low < gain < high
    assert main(["evaluate", *files, "--by", "dialect"]) == 0
    assert "gain over an unknown context (same model)" in capsys.readouterr().out


def test_scores_have_named_columns_and_rows_from_one(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["score", str(trained / "run"), str(trained / "test.csv")]
    capsys.readouterr()
    assert main(files) == 0
    header, *texts = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert header == ["row", "nats", "targets", "perplexity", "out of vocabulary"]
    assert [int(text[0]) for text in texts] == list(range(1, 81))
    assert main([*files, "--tokens"]) == 0
    header, *rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert header == ["row", "nats", "targets", "perplexity", "out of vocabulary", "token"]
    assert {len(row) for row in rows} == {6}
    assert [row[:5] for row in rows if row[2]] == texts
    tokens = [row for row in rows if row[0] == "1" and not row[2]]
    assert len(tokens) == int(texts[0][2])
    assert sum(float(row[1]) for row in tokens) == pytest.approx(float(texts[0][1]), abs=0.01)
    assert main([*files, "--json"]) == 0
    assert [json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()] == list(range(1, 81))


def test_a_read_only_run_can_be_evaluated(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, test = str(trained / "run"), str(trained / "test.csv")
    (trained / "run" / "results.jsonl").unlink()
    (trained / "run" / "results.jsonl").mkdir()  # even root cannot write to this path
    for words in (["evaluate", run, test, "--save"], ["classify", run, test, "--target", "dialect", "--save"]):
        capsys.readouterr()
        assert main(words) == 0
        shown = capsys.readouterr()
        assert "perplexity" in shown.out or "accuracy" in shown.out
        error, warning = shown.err.splitlines()
        assert error.endswith(f"{run}/results.jsonl: cannot be written (Is a directory)")
        assert warning.startswith("warning: 19% of the texts also occur in the training table")


def test_classify_prints_and_writes_probabilities(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(trained / "run"), str(trained / "test.csv")]
    out = trained / "predictions.jsonl"
    assert main(["classify", *files, "--target", "dialect", "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"majority class \(\w+\) +0\.", output)
    assert "model, training priors" in output
    assert "left out" not in output
    assert main(["classify", *files, "--target", "stars", "--values", "1", "2"]) == 0
    assert "; 48 without one of these values are left out" in capsys.readouterr().out
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 80
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        assert row["predicted"] == max(row["probabilities"], key=row["probabilities"].get)


def test_classify_among_points(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = trained / "points.csv"
    points.write_text("name,lat\nsouth,41\nnorth,47\n", encoding="utf-8")
    files = [str(trained / "run"), str(trained / "test.csv")]
    assert main(["classify", *files, "--points", str(points), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 80
    assert {row["predicted"] for row in rows} <= {"south", "north"}
    points.write_text("name,lat\nsouth,forty\n", encoding="utf-8")
    assert main(["classify", *files, "--points", str(points)]) == 2
    assert "lat of south is not a number" in capsys.readouterr().err


def test_compare_writes_a_table_and_a_page_and_resumes(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tables / "train.csv"), "--dev", str(tables / "dev.csv"), "--test", str(tables / "test.csv")]
    command = ["compare", *files, "--out", str(tables / "all"), "--text", "review", "--context", "dialect"]
    command += ["--target", "dialect", *SMALL, *QUICK, "--epochs", "0.5"]
    assert main(command) == 0
    table = capsys.readouterr().out
    neural = ["unadapted", "softmaxbias", "concatcell", "factorcell"]
    assert [line.split("  ")[0].strip() for line in table.splitlines()[1:6]] == [*neural, "ngram"]
    assert "<svg" in (tables / "all" / "report.html").read_text(encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in (tables / "all").glob("*/weights.safetensors")}
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr().out == table
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert main([*command, "--resume", "--models", "unadapted", "factorcell", "--seeds", "2"]) == 0
    table = capsys.readouterr().out
    assert "±" in table
    page = (tables / "all" / "report.html").read_text(encoding="utf-8")
    assert "factorcell-seed-1" in page


def test_tune_prints_the_best_trials_and_continues(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tables / "train.csv"), "--dev", str(tables / "dev.csv")]
    space = _write(tables / "space.toml", "hidden_size = [6, 9]\ncontext_size = [2, 3]\nlearning_rate = [1e-2]\n")
    options = ["--text", "review", "--context", "dialect", "--min-count", "1", "--rank", "2", "--embedding-size", "8"]
    options += ["--epochs", "1", "--batch-tokens", "300", "--evaluations", "2", "--threads", "1"]
    command = ["tune", *files, *options, "--out", str(tables / "search"), "--space", str(space)]
    assert main([*command, "--trials", "2"]) == 0
    captured = capsys.readouterr()
    header, *lines = captured.out.splitlines()
    assert header.split()[:3] == ["trial", "state", "perplexity"]
    assert "hidden size" in header
    assert "rank" not in header, "a specified option is not searched"
    assert len(lines) == 2
    perplexities = [float(line.split()[2]) for line in lines]
    assert perplexities == sorted(perplexities)
    assert "trial-0001: perplexity" in captured.err
    assert main([*command, "--trials", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    recipe = ["--config", str(tables / "search" / "best.toml")]
    assert main(["train", *files, *recipe, "--out", str(tables / "best")]) == 0
    best = min(row["perplexity"] for row in read_rows(tables / "search" / "trials.jsonl"))
    assert parse_block(capsys.readouterr().err.splitlines())["perplexity"].startswith(f"{best:.2f} ")
    assert main(["evaluate", str(tables / "search" / "trial-0002"), str(tables / "test.csv")]) == 0


def test_invalid_searches_are_errors(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = _write(tables / "space.toml", "rank = [1, 2]\n")
    wrong = _write(tables / "wrong.toml", "ranks = [1, 2]\n")
    command = ["tune", str(tables / "train.csv"), "--text", "review", "--out", str(tables / "search")]
    for more, message in [
        (["--space", str(space), "--rank", "3"], "rank is also set as an option"),
        (["--space", str(wrong)], "did you mean 'rank'?"),
    ]:
        assert main([*command, *more]) == 2
        assert message in capsys.readouterr().err
    assert not (tables / "search").exists()


def _write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


INVALID_TABLES: list[tuple[str, str | bytes, str]] = [
    ("missing.csv", "words,dialect\na,x\n", "no column 'review'"),
    ("ragged.csv", "review,dialect\na b,x\nc,y,z\n", "line 3: expected 2 columns (review, dialect), got 3"),
]


@pytest.mark.parametrize(("name", "content", "message"), INVALID_TABLES)
def test_invalid_tables_are_errors(
    tmp_path: Path, name: str, content: str | bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _write(tmp_path / name, content)
    command = ["train", str(table), "--text", "review", "--context", "dialect", "--out", str(tmp_path / "run")]
    assert main([*command, *SMALL, *QUICK]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert error.startswith("factorcell: ")
    assert not (tmp_path / "run").exists()


def test_invalid_use_of_a_run_is_an_error(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, test = trained / "run", str(trained / "test.csv")
    other = _write(trained / "other.csv", "review,dialect,stars,lat\nash oak,Cornish,1,50\n")
    config = _write(trained / "config.toml", "[model]\nrnk = 3\n")
    for command, message in [
        (["score", str(run), str(other), "--unknown", "error"], "row 1: dialect 'Cornish' was never seen in training"),
        (
            ["evaluate", str(run), str(other), "--unknown", "error"],
            "; --unknown group or --unknown expected to continue anyway\n",
        ),
        (["score", str(trained / "no"), test], "expected a run folder"),
        (["classify", str(run), test, "--target", "town"], "unknown context variable 'town'"),
        (["classify", str(run), test], "specify either --target COLUMN or --points TABLE"),
        (["train", test, "--out", str(run)], "exists already; --resume to continue it, or choose another folder\n"),
        (["train", test, "--out", str(trained / "x"), "--config", str(config)], "did you mean 'rank'?"),
        (["train", test, "--out", str(trained / "x"), "--text", "review", "--context", "lat:figure"], "unknown kind"),
    ]:
        assert main(command) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    assert not (trained / "x").exists()
    assert main(["score", str(run), str(other), "--unknown", "expected"]) == 0


@pytest.mark.parametrize(("command", "resumes"), [("train", True), ("classify", False), ("tune", False)])
def test_an_interrupt_shows_how_to_resume_if_possible(
    command: str, resumes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*arguments: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("factorcell.training.fit.train_run", stopped)
    monkeypatch.setattr("factorcell.runs.run.Run.open", stopped)
    monkeypatch.setattr("factorcell.training.tuning.tune", stopped)
    more = ["table.csv", "--target", "stars"] if command == "classify" else ["--out", str(tmp_path / "run")]
    assert main([command, "train.csv", *more]) == 130
    notices = capsys.readouterr().err
    assert "stopped" in notices
    assert ("--resume" in notices) == resumes
    assert ("repeat the command to continue" in notices) == (command == "tune")


def test_resume_refuses_other_options(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(trained, "run", "--resume", "--seed", "7") == 2
    assert "expected seed = 0 as before, got 7" in capsys.readouterr().err
    assert run_train(trained, "run", "--resume") == 0
    assert parse_block(capsys.readouterr().err.splitlines())["training"].startswith("already complete: ")


@pytest.mark.parametrize("policy", ["", "active"])
def test_waiting_threads_are_passive_by_default(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    if not policy:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    code = "import os, sys; import factorcell; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{policy or 'passive'} False"
