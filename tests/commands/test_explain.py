"""The command `explain`: input files, and output as text, JSON and page."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.commands.explaining import contexts_between, mark_token
from factorcell.errors import UserError
from factorcell.evaluation.explaining.token_evidence import explain
from factorcell.io import files
from factorcell.runs.run import Run
from tests.small_runs import CONTEXT, make_run

TEXTS = ["the sea is cold", "cold sand"]
FIVE, ONE = {"stars": "5"}, {"stars": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two word models, a file of texts, and a table with a column unknown to the models."""
    folder = tmp_path_factory.mktemp("explain")
    for name, rank in (("run", 2), ("other", 1)):
        run = make_run(folder / name, CONTEXT, rank=rank, adapt=["concat", "factor"], output_bias=["low_rank"])
        run.save_weights({})
    (folder / "texts.txt").write_text("the sea is cold\n\n  cold sand\nthe sea is cold\n", encoding="utf-8")
    rows = [{"text": f"the sea {word}", "kind": word} for word in ("sun", "cold") for _ in range(6)]
    files.write_rows(folder / "table.jsonl", rows)
    return folder


def command(folder: Path, *more: str, between: tuple[str, ...] = ("stars=5", "stars=1")) -> list[str]:
    return ["explain", str(folder / "run"), *more, "--between", *between, "--threads", "1"]


def test_explain_from_file_to_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, str(folder / "texts.txt"), "--json", "--context", "city=Oslo")) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    between = {"stars=5": {"city": "Oslo", **FIVE}, "stars=1": {"city": "Oslo", **ONE}}
    assert rows == explain(Run.open(folder / "run"), TEXTS, between)
    assert rows != explain(Run.open(folder / "run"), TEXTS, {"stars=5": FIVE, "stars=1": ONE})


def test_explain_reads_the_other_columns_of_a_table(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, table = Run.open(folder / "run"), tmp_path / "table.jsonl"
    texts = [("cold sand", "Oslo"), ("cold sand", "Nice"), ("the sea", "Oslo"), ("the sea", "Oslo")]
    files.write_rows(table, [{"text": text, "city": city, "stars": "1"} for text, city in texts])
    assert main(command(folder, str(table), "--json")) == 0
    shown = capsys.readouterr()
    expected = [
        explain(run, [text], {f"stars={s}": {"city": city, "stars": s} for s in "51"})[0] for text, city in texts[:3]
    ]
    for row, other in zip(map(json.loads, shown.out.splitlines()), expected, strict=True):
        assert (row["text"], row["ratio"]) == (other["text"], pytest.approx(other["ratio"], rel=1e-4))
    assert main(command(folder, str(table), "--json", "--context", "city=Nice")) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["cold sand", "the sea"]
    assert rows[0]["ratio"] == pytest.approx(expected[1]["ratio"], rel=1e-4)


def test_standard_input_and_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfcold sand\r\n"), encoding="utf-8"))
    page = tmp_path / "page.html"
    assert main(command(folder, "-", "--page", str(page))) == 0
    shown = capsys.readouterr()
    (row,) = explain(Run.open(folder / "run"), ["cold sand"], {"stars=5": FIVE, "stars=1": ONE})
    marks = [mark_token(token["token"].replace("</s>", "¶"), token["ratio"]) for token in row["tokens"]]
    lines = shown.out.splitlines()
    assert " ".join(marks) in lines
    assert f"{row['ratio']:+.2f} nats in total; p(stars=5 | text) = {row['posterior']['stars=5']:.1%}" in lines
    assert any("weak marks from 0.5 nats, clear from 1, strong from 2" in line for line in lines)
    assert any("uniform priors" in line for line in lines)
    assert "\x1b" not in shown.out
    assert str(page) in shown.err
    assert f"{row['ratio']:+.2f} nats in total" in page.read_text(encoding="utf-8")


def test_colours_are_for_terminals(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def coloured() -> bool:
        assert main(command(folder, "--text", "cold sand")) == 0
        return "\x1b[" in capsys.readouterr().out

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not coloured()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured()


def test_marks_have_three_strengths_on_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [mark_token("x", ratio) for ratio in (0.2, 0.6, 1.2, 2.4)] == ["x", "x⁺", "x⁺⁺", "x⁺⁺⁺"]
    assert [mark_token("x", ratio) for ratio in (-0.2, -0.6, -1.2, -2.4)] == [
        "x",
        "x⁻",
        "x⁻⁻",
        "x⁻⁻⁻",
    ]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    marks = {mark_token("x", ratio) for ratio in (0.6, 1.2, 2.4, -0.6, -1.2, -2.4)}
    assert len(marks) == 6
    assert all(text.endswith("mx\x1b[0m") for text in marks)
    assert sum("\x1b[4;" in text for text in marks) == 3
    assert mark_token("x", 0.2) == "x"


def test_more_than_two_contexts_have_a_table_of_posteriors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    between = ("stars=5", "stars=1; city=Oslo", "lat=44;lon=8")
    assert main(command(folder, "--text", "cold sand", between=between)) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert "uniform priors" in output.err
    assert lines[1].split() == ["token", "stars=5", "stars=1;", "city=Oslo", "lat=44;", "lon=8"]
    contexts: dict[str, dict[str, Any]] = {"a": FIVE, "b": {"stars": 1, "city": "Oslo"}, "c": {"lat": 44, "lon": 8}}
    (row,) = explain(Run.open(folder / "run"), ["cold sand"], contexts)
    last = [f"{share:.1%}" for share in row["posterior"].values()]
    assert lines[-1].split() == ["¶", *last]
    assert main(command(folder, "--text", "zzyqxx sand", between=between)) == 0
    assert "out of vocabulary: zzyqxx" in capsys.readouterr().out


def test_contexts_are_parsed() -> None:
    assert contexts_between(None, ["a=1; b=x;y", "a=2"], {"c": "3"}) == {
        "a=1; b=x;y": {"c": "3", "a": "1", "b": "x;y"},
        "a=2": {"c": "3", "a": "2"},
    }
    with pytest.raises(UserError, match="--between and --context both have a value for a"):
        contexts_between(None, ["a=1", "a=2"], {"a": "3"})


@pytest.mark.parametrize(
    ("more", "between", "message"),
    [
        (["--text", "a"], ("stars=5", "stars=9"), "stars '9' was never seen in training; the run has 2 values (5, 1)"),
        (
            ["--text", "a"],
            ("city=Oslo", "city=Nize"),
            "city 'Nize' was never seen in training (did you mean 'Nice'?); the run has 2 values (Nice",
        ),
        (["--text", "a"], ("starz=5", "starz=1"), "unknown context column 'starz' (did you mean 'stars'?)"),
        (["--text", "a"], ("stars=5", "stars=5"), "--between: stars=5 is given twice"),
        (["--text", "a"], ("stars=5",), "--between: expected two or more contexts, got only stars=5"),
        (["--text", "a"], ("5", "1"), "--between: expected NAME=VALUE, got '5'"),
        (["--text", "a"], ("lat=north", "lat=1"), "lat"),
        ([], ("stars=5", "stars=1"), "specify either FILE (one text per line, or a table) or --text"),
        (
            ["nowhere.txt", "--text", "a"],
            ("stars=5", "stars=1"),
            "specify either FILE (one text per line, or a table) or --text",
        ),
        (["nowhere.txt"], ("stars=5", "stars=1"), "nowhere.txt: there is no such file"),
    ],
)
def test_errors_are_one_line(
    more: list[str], between: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(folder, *more, between=between)) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("factorcell: ")
    assert message in error


def test_a_table_is_read_from_its_text_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, str(folder / "table.jsonl"), "--json")) == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert texts == ["the sea sun", "the sea cold"]


def test_a_compressed_table_is_a_table(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.jsonl.gz"
    path.write_bytes(gzip.compress((folder / "table.jsonl").read_bytes()))
    assert main(command(folder, str(path), "--json")) == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert texts == ["the sea sun", "the sea cold"]


def test_files_without_text_are_errors(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bytes.txt").write_bytes(b"ab\xff")
    for name, message in (("empty.txt", "the file contains no text"), ("bytes.txt", "not UTF-8 (byte 2)")):
        assert main(command(folder, str(tmp_path / name))) == 2
        assert message in capsys.readouterr().err
