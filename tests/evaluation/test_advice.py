"""Advice on informative, uninformative and redundant columns; the command."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli import terminal
from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.evaluation import advice as advice_module
from factorcell.evaluation.advice import Advice, advise, expected_gain, label_columns, recommend, sample
from factorcell.io import files, progress
from tests import synthetic
from tests.findings import expected_finding


def config_of(*context: str, **more: Any) -> Config:
    return Config.of(**{"context": context, "min_count": 1, "min_context_count": 5, **more})


def table(count: int = 1500) -> list[dict[str, Any]]:
    """Return texts of two dialects: the dialect, a duplicate of it, a coin, a correlated number and a constant."""
    draw, rows = random.Random(3), []
    for row in synthetic.two_dialects(count, 11)[0]:
        side = row["dialect"] == "coast"
        rows.append(
            {
                **row,
                "valley": "yes" if side else "no",
                "coin": draw.choice(["heads", "tails", ""]),
                "height": round(draw.gauss(10 if side else 300, 40), 1),
                "same": "here",
            }
        )
    return rows


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(table(), config_of("dialect", "coin", "height", "same"))


def test_columns_are_sorted_by_gain_and_random_ones_left_out(advice: Advice) -> None:
    rows = {row["column"]: row for row in advice.columns}
    assert [row["column"] for row in advice.columns][:2] == ["dialect", "height"]
    assert {name: row["advice"] for name, row in rows.items()} == {
        "dialect": "use",
        "height": "leave out",
        "coin": "leave out",
        "same": "leave out",
    }
    assert "redundant with a stronger column" in rows["height"]["why"]
    assert "is not statistically significant" in rows["coin"]["why"]
    assert rows["same"]["gain"] == pytest.approx(0, abs=1e-3)
    assert rows["coin"]["gain"] < 0.01


def test_estimates_for_the_dialect_are_near_the_true_values() -> None:
    advice = advise(table(), config_of("dialect"))
    (row,) = advice.columns
    chains = synthetic.dialects()
    rows = synthetic.two_dialects(2000, 12)[0]
    log_probs = np.array([-chains.nats(text_row["text"]) for text_row in rows])
    true_log_probs = log_probs[np.arange(len(rows)), [chains.names.index(text_row["dialect"]) for text_row in rows]]
    information = float((true_log_probs - np.logaddexp(*log_probs.T)).mean()) + math.log(2)
    assert row["information"] == pytest.approx(information, rel=0.2)
    assert row["information"] < row["entropy"] == pytest.approx(math.log(2), abs=0.01)
    assert row["gain"] == expected_gain(row["information"] / advice.targets_per_text) == advice.gain
    assert (row["values"], row["missing"], row["rare"]) == (2, 0.0, 0.0)


def test_missing_values_gain_nothing() -> None:
    rows = table()
    hidden = [{**row, "dialect": row["dialect"] if number % 2 else ""} for number, row in enumerate(rows)]
    whole, half = (advise(source, config_of("dialect")).columns[0] for source in (rows, hidden))
    assert half["missing"] == 0.5
    assert half["gain"] == pytest.approx(whole["gain"] / 2, rel=0.35)


def test_the_time_of_a_recipe_for_completion_is_not_read() -> None:
    assert advise(table(100), config_of("dialect").with_options(time="when")).columns


def test_too_few_texts_that_are_not_empty_are_an_error() -> None:
    rows = [*table(14), *({**row, "text": ""} for row in table(20))]
    with expected_finding("empty texts"), pytest.raises(UserError, match="at least 15 rows with a text, got 14"):
        advise(rows, config_of("dialect"))


def test_empty_texts_are_ignored(advice: Advice) -> None:
    empty_rows = [{**row, "text": ""} for row in table(500)]
    with expected_finding("empty texts"):
        with_empty_texts = advise([*table(), *empty_rows], config_of("dialect", "coin", "height", "same"))
    assert with_empty_texts.text_count == 1500
    assert with_empty_texts.test_count == 75
    assert with_empty_texts.gain == pytest.approx(advice.gain, rel=0.1)


def test_a_duplicate_column_adds_nothing() -> None:
    advice = advise(table(), config_of("dialect", "valley"))
    first, second = advice.columns
    assert first["gain"] == pytest.approx(second["gain"])
    assert (first["advice"], second["advice"]) == ("use", "leave out")
    assert second["added"] == pytest.approx(0, abs=1e-3)
    single = advise(table(), config_of("dialect"))
    assert advice.gain == pytest.approx(single.gain, rel=0.02)


def test_an_independent_column_adds_its_gain() -> None:
    draw = random.Random(0)
    rows = []
    for _ in range(2000):
        first, second = draw.choice("ab"), draw.choice("xy")
        words = [
            draw.choice(f"{first}{first}pq") if draw.random() < 0.5 else draw.choice(f"{second}rst") for _ in "12345"
        ]
        rows.append({"text": " ".join(words), "first": first, "second": second})
    advice = advise(rows, config_of("first", "second"))
    for row in advice.columns:
        assert row["advice"] == "use"
        assert row["added"] == pytest.approx(row["gain"], rel=0.15)
    nats = sum(-math.log1p(-row["added"]) for row in advice.columns)
    assert advice.gain == pytest.approx(1 - math.exp(-nats))


def test_samples_are_uniform_ordered_and_reproducible() -> None:
    columns = {"text": [str(number) for number in range(20_000)], "n": list(range(20_000))}

    def draw(names: list[str], rows: int, seed: int) -> dict[str, list[Any]]:
        table, total = sample(columns, names, rows, seed)
        assert total == 20_000
        chunks = list(table.chunks(names))
        return {name: [value for chunk in chunks for value in chunk[name]] for name in names}

    rows = draw(["n", "text"], 50, 3)
    assert len(rows["n"]) == 50
    assert rows["n"] == sorted(rows["n"])
    assert rows["text"] == [str(number) for number in rows["n"]]
    assert draw(["n"], 50, 3)["n"] == rows["n"] != draw(["n"], 50, 4)["n"]
    assert draw(["n"], 20_000, 0)["n"] == columns["n"]
    means = [np.mean(draw(["n"], 50, seed)["n"]) for seed in range(60)]
    assert np.mean(means) == pytest.approx(10_000, abs=4 * 5773 / math.sqrt(50 * 60))


def test_columns_are_converted_to_labels() -> None:
    rows = [
        {"text": "a", "x": float(number), "y": number % 3 + 0.5, "c": "abz"[min(2, number // 45)] if number else ""}
        for number in range(94)
    ]
    x, y, c = label_columns(prepare(rows, config_of("x:number", "y:number", "c")))
    assert (len(x.values), len(y.values), c.values) == (10, 3, ("<unknown>", "b", "a"))
    assert np.bincount(x.labels).max() <= 10
    assert (np.diff(x.labels) >= 0).all()
    assert x.values[0] == "from 0"
    assert y.labels.tolist() == [number % 3 for number in range(94)]
    assert c.labels[[0, 1, 50, 93]].tolist() == [3, 2, 1, 0]


def test_values_beyond_the_maximum_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "MAX_VALUES", 1)
    (column,) = label_columns(prepare([{"text": "a", "c": "aab"[number % 3]} for number in range(90)], config_of("c")))
    assert (column.values, column.rare) == (("<unknown>", "a"), 1)
    assert np.bincount(column.labels).tolist() == [30, 60]


def test_a_text_has_the_label_of_its_most_frequent_word() -> None:
    genres = ["Dramas, Kids", "Kids, Comedies, Dramas", "Comedies", "", "Dramas"] * 6
    corpus = prepare([{"text": "a", "genres": value} for value in genres], config_of("genres:text"))
    (column,) = label_columns(corpus)
    labels = [(*column.values, None)[label] for label in column.labels[:5]]
    assert labels == ["dramas", "dramas", "comedies", None, "dramas"]


@pytest.mark.parametrize(
    ("context", "rows", "message"),
    [
        ((), table(30), "expected at least one context column"),
        (("town",), table(30), "no column 'town'; it has"),
        (("dialect",), table(12), "expected at least 15 rows with a text, got 12"),
        (
            ("height:vector",),
            [{"text": "a", "height": [1, 2]}] * 30,
            "height: expected a category, a number, a time or a text, got a variable of kind vector",
        ),
        (("height:number",), [{"text": "a", "height": "tall"}] * 30, "height is 'tall', not a number"),
    ],
)
def test_invalid_arguments_are_errors(context: tuple[str, ...], rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        advise(rows, config_of(*context))


def test_errors_name_the_file_and_whether_rows_were_drawn(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("text,height\n" + "a,1\n" * 24 + "a,x\n" * 6)
    with pytest.raises(UserError, match=r"t\.csv row 25: height is 'x', not a number"):
        advise(file, config_of("height:number"))
    with pytest.raises(UserError, match=r"^sample of .*t\.csv \(29 of 30 rows\) row \d+: height is 'x', not a number"):
        advise(file, config_of("height:number"), rows=29)


def test_empty_numbers_are_missing_values_of_a_column(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("text,height\n" + "a,1\nb c,2\na,\n" * 20)
    with expected_finding("missing values"):
        result = advise(file, config_of("height:number"))
    assert (result.columns[0]["values"], result.columns[0]["missing"]) == (2, pytest.approx(1 / 3))


def test_recommendations_follow_from_the_estimates() -> None:
    good = {"values": 5, "rare": 0.0, "rare_values": 0, "gain": 0.05, "added": 0.04, "is_significant": True}
    assert recommend(good) == ("use", "expected gain 5.0%")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"is_significant": False}, "an expected gain of 5.0% is not statistically significant"),
        ({"added": 0.01}, "redundant with a stronger column: the column alone has an expected gain of 5.0%, but it"),
        ({"values": 1}, "fewer than two values"),
        ({"gain": 0.004}, "an expected gain of 0.4% is small"),
        ({"rare": 0.9, "rare_values": 7, "is_significant": False}, "too few rows per value to estimate the gain: 90"),
    ]
    for change, reason in cases:
        advice, why = recommend({**good, **change})
        assert advice == "leave out"
        assert why.startswith(reason)
    assert recommend({**good, "rare": 0.9, "rare_values": 7})[0] == "use"


def test_a_column_of_rare_values_has_its_own_reason() -> None:
    few = [{**row, "text": f"{row['text']}", "hotel": f"h{place // 3}"} for place, row in enumerate(table(300))]
    few = [{**row, "hotel": "inn"} if place % 10 == 0 else row for place, row in enumerate(few)]
    (row,) = advise(few, config_of("hotel", min_context_count=10)).columns
    assert (row["values"], row["rare_values"]) == (1, 100)
    assert row["advice"] == "leave out"
    assert re.fullmatch(
        r"too few rows per value to estimate the gain: [89]\d\.\d% of the texts have one of 100 "
        "rare values",
        row["why"],
    )


def test_the_command_prints_a_table_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "table.jsonl"
    files.write_rows(source, [{**row, "city": row["dialect"], "stars": "1"} for row in table(400)])
    command = ["advise", str(source), "--context", "city", "--context", "stars", "--threads", "1", "--rows", "300"]
    command += ["--min-context-count", "5", "--min-count", "1"]
    assert main(command) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("300 texts of 400, sampled at random")
    files.write_rows(tmp_path / "gaps.jsonl", [*files.read_rows(source), {"text": "", "city": "a", "stars": "1"}])
    assert main(["advise", str(tmp_path / "gaps.jsonl"), *command[2:], "--rows", "401"]) == 0
    assert capsys.readouterr().out.startswith("400 texts, ")
    assert any(line.startswith("city: use: expected gain") for line in out)
    assert any(line.startswith("stars: leave out: fewer than two values have enough texts") for line in out)
    assert main([*command, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("column") for row in rows] == ["city", "stars", None]
    assert main(["advise", str(source), "--context", "city", "--rows", "3"]) == 2
    assert "--rows: expected a whole number from 20" in capsys.readouterr().err


def test_progress_counts_estimates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    quiet = advise(table(300), config_of("dialect", "coin", "same"))
    assert "estimating" not in capsys.readouterr().err
    with terminal.logging_to_standard_error(verbose=False):
        assert advise(table(300), config_of("dialect", "coin", "same")) == quiet
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("estimating: ")]
    assert lines[-1].startswith("estimating: 3 of 3 columns, ")
