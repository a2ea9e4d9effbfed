"""Sheets that people rate: what stands on them, and correlations counted out by hand."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ratings
import tacl
import thesis_specificity
from factorcell.evaluation.statistics import correlation
from thesis_specificity import SETS

KEY_ROWS = [
    (str(n), "factorcell", wanted, judged) for n, (wanted, judged) in enumerate(zip("1379", "1397", strict=True), 1)
]


class FakeJudge:
    """Tells the last character of a text."""

    def told(self, texts: list[str]) -> list[str]:
        return [text[-1] for text in texts]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sheet(folder: Path, name: str, encoding: str, columns: list[str], rows: list[tuple[Any, ...]]) -> Path:
    """A CSV file."""
    with (folder / name).open("w", encoding=encoding, newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return folder / name


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the four models wrote for the ratings 1 and 9, ten texts each; a judge that needs no training."""
    monkeypatch.setattr(ratings, "judge", lambda *_: FakeJudge())
    for model in tacl.experiment("imdb").rows:
        folder = tmp_path / "out" / "tacl_imdb" / model
        folder.mkdir(parents=True)
        rows = [{"text": f'"{model}", {n}', "context": {"rating": "19"[n % 2]}} for n in range(10)]
        path = thesis_specificity.file_of(folder / "0", "imdb", SETS["imdb"].texts)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "out"


def test_a_sheet_tells_nothing_but_texts(out: Path, tmp_path: Path) -> None:
    """As many of each model, none twice, in an order by chance; the key says what they were written for."""
    given = ["sheet", "imdb", "--data", "d", "--out", str(out), "--texts", "24", "--folder"]
    assert ratings.main([*given, str(tmp_path / "a")]) == 0
    rows, key = rows_of(tmp_path / "a" / "sheet.csv"), rows_of(tmp_path / "a" / "key.csv")
    assert [list(row) for row in rows[:1]] == [["number", "text", "rating"]]
    assert all(row["rating"] == "" for row in rows)
    assert len({row["text"] for row in rows}) == len(rows) == len(key) == 24
    models = [row["model"] for row in key]
    assert {models.count(model) for model in tacl.experiment("imdb").rows} == {6}
    assert models != sorted(models, key=models.index)
    for row, secret in zip(rows, key, strict=True):
        model, number = row["text"].split(", ")
        assert (row["number"], model) == (secret["number"], f'"{secret["model"]}"')
        assert (secret["wanted"], secret["judged"]) == ("19"[int(number) % 2], number)
    assert ratings.main([*given, str(tmp_path / "b")]) == 0
    assert (tmp_path / "b" / "sheet.csv").read_bytes() == (tmp_path / "a" / "sheet.csv").read_bytes()
    assert ratings.main([*given, str(tmp_path / "c"), "--seed", "1"]) == 0
    assert (tmp_path / "c" / "sheet.csv").read_bytes() != (tmp_path / "a" / "sheet.csv").read_bytes()


def test_what_is_rated_is_not_overwritten(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["sheet", "imdb", "--data", "d", "--out", str(out), "--folder", str(tmp_path / "a"), "--texts"]
    assert ratings.main([*given, "41"]) == 0  # ten of each
    assert ratings.main([*given, "8"]) == 2
    assert "sheet.csv: exists already" in capsys.readouterr().err
    assert ratings.main([*given[:-2], str(tmp_path / "b"), "--texts", "44"]) == 2
    assert "has 10 texts" in capsys.readouterr().err


def test_people_agree_with_the_judge_by_ranks(tmp_path: Path) -> None:
    """Of the texts that somebody rated; a mean is of texts that all rated; equal ratings share a rank."""
    key = sheet(tmp_path, "key.csv", "utf-8", ["number", "model", "wanted", "judged"], KEY_ROWS)
    said = [(4, "", 9), (1, "", 2), (3, "", 9), (2, "", 3)]
    anna = sheet(tmp_path, "anna.csv", "utf-8-sig", ["number", "text", "rating"], said)
    ben = sheet(tmp_path, "ben.csv", "utf-8", ["rating", "number"], [("1", 1), ("", 2), (" 10 ", 3), ("8", 4)])
    lines = [line.strip("| ").split(" | ") for line in ratings.table("imdb", key, [anna, ben]).splitlines()[2:]]
    found = {(first, second): (int(count), shown) for first, second, count, *shown in lines}
    ranks: dict[str, list[float]] = {"anna": [1, 2, 3.5, 3.5], "judge": [1, 2, 4, 3], "wanted": [1, 2, 3, 4]}
    for other, name in (("judge", "the judge"), ("wanted", "what was wanted")):
        wanted = correlation(ranks["anna"], ranks[other])
        assert found["anna", name] == (4, [f"{wanted['r']:+.2f} [{wanted['low']:+.2f}, {wanted['high']:+.2f}]"])
    assert found["ben", "the judge"] == (3, ["+1.00"])
    assert found["ben", "what was wanted"] == (3, ["+0.50"])
    assert found["their mean", "the judge"] == (3, ["+1.00"])
    three = np.corrcoef([1, 2.5, 2.5], [1, 3, 2])[0, 1]
    assert found["anna", "ben"] == (3, [f"{three:+.2f}"])
    assert found["the judge", "what was wanted"][0] == 4
    assert len(found) == 8


def test_classes_have_an_order(tmp_path: Path) -> None:
    """Names that are no numbers are their places in it."""
    order = SETS["hotels"].order
    rows = [(n, "m", value, value) for n, value in enumerate(order, 1)]
    key = sheet(tmp_path, "key.csv", "utf-8", ["number", "model", "wanted", "judged"], rows)
    turned = sheet(tmp_path, "eve.csv", "utf-8", ["number", "rating"], list(enumerate(reversed(order), 1)))
    assert "| eve | the judge | " in ratings.table("hotels", key, [turned])
    assert "| -1.00 |" in ratings.table("hotels", key, [turned])


def test_mistakes_on_a_sheet_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet(tmp_path, "key.csv", "utf-8", ["number", "model", "wanted", "judged"], KEY_ROWS)
    for name, columns, row, message in (
        ("a.csv", ["number", "rating"], (2, "good"), "a.csv, text 2: 'good' is no rating: a number"),
        ("b.csv", ["number", "rating"], (9, "1"), "b.csv: the key has no text 9"),
        ("c.csv", ["number", "mark"], (1, "1"), "c.csv: no column rating"),
    ):
        path = sheet(tmp_path, name, "utf-8", columns, [row])
        assert ratings.main(["read", "imdb", "--folder", str(tmp_path), str(path)]) == 2
        assert message in capsys.readouterr().err
    assert ratings.main(["read", "imdb", "--folder", str(tmp_path), str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
