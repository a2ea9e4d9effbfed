"""Bits per byte in the output of `evaluate` and on the page of `report`."""

import json
import re
from pathlib import Path

import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.model.run import Run
from tests.small_runs import ROWS, make_letters, make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "cell", ("city", "stars")).save_weights({})
    return tmp_path


def test_evaluate_prints_bits_per_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = r"\d+\.\d{3} \[\d+\.\d{3}, \d+\.\d{3}\]"
    files.write_rows(folder / "more.jsonl", [*ROWS * 3, {**ROWS[0], "text": "zyx sea"}])
    assert main(["evaluate", str(folder / "cell"), str(folder / "more.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^bits per byte ≥ {figure}$", shown, re.MULTILINE)
    assert re.search(r"^≥ is a lower bound: .*white space.$", shown, re.MULTILINE)
    letters = make_letters()
    exact = Run.create(folder / "exact", letters.config, letters.tokenizer, letters.schema)
    exact.save_weights({})
    files.write_rows(folder / "letters.jsonl", [{"text": "abc", "city": "Oslo"}] * 12)
    assert main(["evaluate", str(exact.folder), str(folder / "letters.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^bits per byte {figure}$", shown, re.MULTILINE)
    assert "≥" not in shown
    files.write_rows(folder / "cut.jsonl", [{"text": "abc" * n, "city": "Oslo"} for n in (1, 2, 5)])
    assert main(["evaluate", str(exact.folder), str(folder / "cut.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^bits per byte \d+\.\d{3}, over the 2 texts that were not cut$", shown, re.MULTILINE)
    files.write_rows(folder / "empty.jsonl", [{"text": "", "city": "Oslo"}] * 3)
    assert main(["evaluate", str(exact.folder), str(folder / "empty.jsonl")]) == 0
    assert "bits per byte" not in capsys.readouterr().out
    assert main(["evaluate", str(exact.folder), str(folder / "empty.jsonl"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert [row[f"bits_per_byte{end}"] for end in ("", "_low", "_high", "_texts")] == [None, None, None, 3]


def test_runs_with_different_tokens_are_compared_by_bits_per_byte(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = make_letters(tuple(str(row["text"]) for row in ROWS), data={"max_tokens": 40})
    char = Run.create(folder / "char", letters.config, letters.tokenizer, letters.schema)
    char.save_weights({})
    files.write_rows(folder / "long.jsonl", [*ROWS * 3, {**ROWS[0], "text": "the sea " * 6}])
    names = [str(folder / name) for name in ("cell", "char")]
    assert main(["evaluate", names[0], str(folder / "long.jsonl")]) == 0
    capsys.readouterr()
    assert main(["evaluate", names[1], str(folder / "long.jsonl"), "--baseline", names[0]]) == 0
    output = capsys.readouterr()
    shown = output.out
    difference = r"at most [+-]\d+\.\d{3}"
    assert re.search(
        rf"^difference in bits per byte to \S+cell \(at least \d+\.\d{{3}}\): {difference}, over the texts that "
        r"\S+char restores exactly; \S+cell omits the bits that restore original texts",
        shown,
        re.MULTILINE,
    )
    assert "gain over" not in shown
    assert "the baseline has embedding_size 5, this run 4; the baseline has hidden_size 6, this run 5" in output.err
    assert main(["report", *names, "--out", str(folder / "page.html")]) == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert re.search("<th[^>]*>bits per byte above cell</th>", page)
    (difference,) = set(re.findall(difference, page))
    assert page.count(difference) == 2  # to the first run, and to the baseline
    assert page.count("≥ ") == 4  # the figure of the run of words: at the top, in two tables, and in the note
    assert "perplexities of models with different tokens are not comparable" in page
    labels = re.findall(r"<dt>([^<]*)</dt>", page)
    assert labels == ["cell: bits per byte, long.jsonl", "char: bits per byte, long.jsonl"]
    assert "(cell 31 of 31, char 30 of 31)" in page
