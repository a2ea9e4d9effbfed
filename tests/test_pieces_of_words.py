"""Every command works with a tokenizer of pieces of words, or refuses in one line."""

import csv
import json
from pathlib import Path

import pytest

from factorcell import Run
from factorcell.commands.cli.main import main
from factorcell.generation.generate import GenerationOptions, generate, stream
from tests.findings import expected_finding

TEXTS = ("the sea is cold", "sun and sand 😀", "", "a cold  sea", "the sunniest étés")
ROWS = [{"text": text, "city": city, "user": user} for text in TEXTS for city in ("Oslo", "Nice") for user in "AB"]
SIZES = "--embedding-size 4 --hidden-size 5 --context-size 3 --variable-size 2 --rank 2 --epochs 2 --evaluations 1"
COUNTS = "--min-context-count 1 --min-user-count 1 --min-text-users 1 --threads 1"


def write_texts(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("text", "city", "user"))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and a run with a tokenizer of pieces of words."""
    path = tmp_path_factory.mktemp("bpe")
    write_texts(path / "texts.csv", ROWS)
    kinds = "--tokenizer bpe --max-vocabulary 280 --context city --user user".split()
    table = str(path / "texts.csv")
    assert main(["train", table, "--out", str(path / "run"), *kinds, *SIZES.split(), *COUNTS.split()]) == 0
    return path


@pytest.mark.parametrize(
    "words",
    [
        "evaluate run texts.csv --by city",
        "classify run texts.csv --target city",
        "score run texts.csv --tokens",
        "generate run --each city --number 1 --method beam --max-tokens 5",
        "generate run --each city --number 2 --prompt the",
        "complete run the --history sea",
        "explain run --between city=Oslo city=Nice --text sea",
        "baseline ngram texts.csv --like run --out ngram",
        "advise texts.csv --tokenizer bpe --context city",
        "report run --out report.html",
    ],
)
def test_a_command_works(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert main(words.split()) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("complete run the --typos 1", "typos: expected a tokenizer of characters, got bpe"),
    ],
)
def test_a_command_refuses(
    words: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err


def test_texts_by_unknown_users_lead_to_a_replay(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path / "texts.csv", [{**row, "user": "new"} for row in ROWS])
    with expected_finding("unknown users", f"`factorcell replay {folder / 'run'} TABLE --out FOLDER` measures"):
        assert main(["evaluate", str(folder / "run"), str(tmp_path / "texts.csv"), "--by", "city"]) == 0


def test_the_bits_per_byte_count_every_text(folder: Path) -> None:
    run = Run.open(folder / "run")
    row = run.evaluate(ROWS).row
    size = sum(len(row["text"].encode()) for row in ROWS)
    nats = run.score(ROWS).sum()
    assert row["bits_per_byte"] == pytest.approx(nats / size / 0.6931472, rel=1e-5)
    assert row["bits_per_byte_texts"] == len(ROWS)
    assert row["unknown_targets"] == 0


def test_streamed_parts_are_whole_characters_of_the_generated_text(folder: Path) -> None:
    run = Run.open(folder / "run")
    for seed in range(20):
        options = GenerationOptions(max_tokens=30, seed=seed)
        (row,) = generate(run, {"city": "Oslo"}, options=options)
        parts = list(stream(run, {"city": "Oslo"}, options=options))
        assert "".join(parts) == row["text"]


def test_popular_texts_are_whole_texts(folder: Path) -> None:
    lines = (folder / "run" / "popularity.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["text"] for line in lines[1:]} == {" ".join(text.split()) for text in TEXTS if text}
