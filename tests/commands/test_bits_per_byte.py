"""Bits per byte in the output of `evaluate` and on the page of `report`."""

import re
from pathlib import Path

import pytest

from factorcell.commands.cli.main import main
from factorcell.io import files
from factorcell.runs.run import Run
from tests.small_runs import ROWS, make_letters, make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "cell", ("city", "stars")).save_weights({})
    return tmp_path


def test_evaluate_prints_bits_per_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = r"\d+\.\d{3} \[\d+\.\d{3}, \d+\.\d{3}\]"
    files.write_rows(folder / "more.jsonl", [*ROWS * 3, {**ROWS[0], "text": "zyx sea"}])
    assert main(["evaluate", str(folder / "cell"), str(folder / "more.jsonl")]) == 0
    assert "bits per byte" not in capsys.readouterr().out, "words do not determine texts"
    letters = make_letters()
    exact = Run.create(folder / "exact", letters.config, letters.tokenizer, letters.schema)
    exact.save_weights({})
    files.write_rows(folder / "letters.jsonl", [{"text": "abc", "city": "Oslo"}] * 12)
    assert main(["evaluate", str(exact.folder), str(folder / "letters.jsonl")]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.endswith("bits per byte")
    assert re.search(rf"{figure}$", row)
    files.write_rows(folder / "cut.jsonl", [{"text": "abc" * n, "city": "Oslo"} for n in (1, 2, 5)])
    assert main(["evaluate", str(exact.folder), str(folder / "cut.jsonl")]) == 0
    assert "bits per byte: over the 2 texts that were not cut" in capsys.readouterr().out
    files.write_rows(folder / "empty.jsonl", [{"text": "", "city": "Oslo"}] * 3)
    assert main(["evaluate", str(exact.folder), str(folder / "empty.jsonl")]) == 0
    assert "bits per byte" not in capsys.readouterr().out


def test_runs_with_different_tokens_are_compared_by_bits_per_byte(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tuple(str(row["text"]) for row in ROWS)
    for name in ("char", "grapheme"):
        letters = make_letters(texts, data={"tokenizer": name, "max_tokens": 40})
        Run.create(folder / name, letters.config, letters.tokenizer, letters.schema).save_weights({})
    files.write_rows(folder / "long.jsonl", [*ROWS * 3, {**ROWS[0], "text": "the sea " * 6}])
    first, second = (str(folder / name) for name in ("char", "grapheme"))
    assert main(["evaluate", second, str(folder / "long.jsonl"), "--baseline", first, "--save"]) == 0
    shown = capsys.readouterr().out
    assert f"bits per byte below {first}" in shown
    assert main(["report", first, second, "--out", str(folder / "page.html")]) == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert re.search("<th[^>]*>bits per byte below char</th>", page)
