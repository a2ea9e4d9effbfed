"""Tests of the commands with prompts."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from factorcell.commands.cli.main import main
from factorcell.runs.run import Run

ROWS: list[dict[str, Any]] = [
    {"text": "the sea is cold", "question": "how is the sea", "city": "Oslo"},
    {"text": "sun and sand", "question": None, "city": "Nice"},
    {"text": "cold sand", "question": "how is the sand", "city": "Oslo"},
] * 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "table.parquet")
    words = ["--context", "city", "--context", "question:prompt", "--min-context-count", "1", "--min-count", "1"]
    sizes = ["--hidden-size", "8", "--embedding-size", "4", "--epochs", "2", "--threads", "1"]
    table = str(folder / "table.parquet")
    assert main(["train", table, "--dev", table, *words, *sizes, "--out", str(folder / "run")]) == 0
    return folder


def test_generate_writes_a_text_for_each_row_of_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(folder / "run"), folder / "texts.jsonl"
    rows = ["--rows", str(folder / "table.parquet"), "--max-tokens", "5"]
    assert main(["generate", run, *rows, "--out", str(out)]) == 0
    written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    contexts = [{"city": row["city"], "question": row["question"]} for row in ROWS]
    assert [row["context"] for row in written] == contexts
    assert "without" not in capsys.readouterr().err
    assert main(["generate", run, *rows, "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in printed] == [row["text"] for row in written]
    assert len(written) == len(ROWS)


def test_contradictory_contexts_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, table = str(folder / "run"), str(folder / "table.parquet")
    (folder / "other.csv").write_text("text\na\n", encoding="utf-8")
    for words, message in (
        (["--rows", table, "--each", "city"], "--rows and --each: both specify the contexts"),
        (["--rows", table, "--context", "city=Oslo"], "--context and the table both have city"),
        (["--rows", str(folder / "other.csv")], "expected context columns (city, question), got text"),
    ):
        assert main(["generate", run, *words]) == 2
        assert message in capsys.readouterr().err


def test_score_evaluate_and_classify_read_prompts_from_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, table = folder / "run", str(folder / "table.parquet")
    rows = Run.open(run).score_rows(ROWS)
    assert main(["score", str(run), table, "--json"]) == 0
    scored = [json.loads(line)["nats"] for line in capsys.readouterr().out.splitlines()]
    assert scored == pytest.approx([row["nats"] for row in rows])
    without = Run.open(run).score_rows([{**row, "question": None} for row in ROWS])
    assert without[0]["nats"] != pytest.approx(rows[0]["nats"])
    assert without[1]["nats"] == pytest.approx(rows[1]["nats"])
    assert main(["evaluate", str(run), table]) == 0
    assert main(["classify", str(run), table, "--target", "city"]) == 0
    assert main(["explain", str(run), table, "--between", "city=Oslo", "city=Nice"]) == 0


def test_compare_and_baselines_ignore_prompts_where_they_ignore_the_context(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "user": f"user {number % 3}"} for number, row in enumerate(ROWS)]
    table = str(folder / "users.parquet")
    pq.write_table(pa.Table.from_pylist(rows), table)
    words = ["--context", "question:prompt", "--user", "user", "--prompt-history", "2", "--min-user-count", "1"]
    sizes = ["--hidden-size", "8", "--embedding-size", "4", "--epochs", "1", "--threads", "1"]
    compared = ["compare", table, "--dev", table, "--models", "unadapted", "factorcell", *words, *sizes]
    assert main([*compared, "--out", str(folder / "compared")]) == 0
    assert main(["advise", table, *words]) == 2
    assert "prompt_history: expected categories, numbers or times, got earlier texts" in capsys.readouterr().err
