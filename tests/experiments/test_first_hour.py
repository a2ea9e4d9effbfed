"""Completion in the first hour: the made logs have the habits of their users, and the figures are those of the rows."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import corpora
import first_hour
import made_logs
from made_logs import STRONG, WEAK

GROUPS = [[f"{letter}{number}" for number in range(50)] for letter in "abcdefgh"]


def test_users_have_habits(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = made_logs.make_log(GROUPS, [STRONG, WEAK], skew=1.0, seed=1)
    assert tables["train"].equals(made_logs.make_log(GROUPS, [STRONG, WEAK], skew=1.0, seed=1)["train"])
    assert {part: len(set(table["user"].to_pylist())) for part, table in tables.items()} == made_logs.USERS
    repeated, grouped = np.zeros(2), np.zeros(2)
    counts = np.zeros(2)
    for number in range(made_logs.USERS["train"]):
        rows = [row for row in tables["train"].to_pylist() if row["user"] == f"train-{number:03}"]
        assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
        texts = [row["text"] for row in rows]
        repeated[number % 2] += len(texts) - len(set(texts))
        grouped[number % 2] += sum(count for _, count in Counter(text[0] for text in texts).most_common(2))
        counts[number % 2] += len(texts)
        if number == 100:
            break
    strong, weak = repeated / counts
    assert strong > weak + 0.1
    strong, weak = grouped / counts
    assert strong > weak + 0.2
    popular = Counter(text[1:] for text in tables["train"]["text"].to_pylist())
    assert popular["0"] > 2 * popular["9"] > 4 * popular["40"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder of data sets, from which small logs are made."""
    monkeypatch.setattr(made_logs, "USERS", {"train": 40, "dev": 5, "test": 12})
    monkeypatch.setattr(made_logs, "PLACES_PER_COUNTRY", 20)
    places = [(f"{name} {number}", name, float(number)) for name in ("oslo", "nice", "rome") for number in range(20)]
    columns = dict(zip(("text", "country", "population"), map(list, zip(*places, strict=True)), strict=True))
    corpora.write_table(tmp_path / "data" / "placenames" / "train.parquet", pa.table(columns))
    return tmp_path / "data"


def test_groups_begin_with_the_largest_places(data: Path) -> None:
    tables = made_logs.places(data)
    counts = Counter(tables["train"]["text"].to_pylist())
    assert sum(counts[f"{name} 19"] for name in ("oslo", "nice", "rome")) > 3 * sum(
        counts[f"{name} 0"] for name in ("oslo", "nice", "rome")
    )
    queries = Counter(made_logs.queries(data)["train"]["text"].to_pylist())
    assert set(dict(queries.most_common(10))) & set(made_logs.WEBSITES)


@pytest.mark.slow
def test_a_log_is_measured_and_not_measured_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(
        "sys.argv", ["first_hour", str(data), str(out), "--logs", "places", "--minutes", "0.02", "0.03"]
    )
    first_hour.main()
    table = capsys.readouterr().out
    assert len(table.splitlines()) == 4
    assert table.splitlines()[2].startswith("| places | 0.02 | ")
    monkeypatch.setattr(first_hour, "fit", None)
    monkeypatch.setattr(first_hour, "replay", None)
    first_hour.main()
    assert capsys.readouterr().out == table


NATS = {"plain": 10.0, "online": 8.0, "unadapted": 10.0}


def test_figures_are_those_of_the_rows() -> None:
    ranks: dict[str, tuple[int | None, ...]] = {
        **{"mpc": (None, 2), "history": (None, None), "known": (None, 3)},
        **{"plain": (4, None), "online": (1, 4), "blend": (1, 2)},
        "unadapted": (None, 1),
    }
    rows = [
        {"system": name, "user": f"u{user}", "rank": rank, "first": ["abc", "xyz"][user]}
        | ({"nats": NATS[name], "targets": 5} if name in NATS else {"nats": None, "targets": None})
        for name, values in ranks.items()
        for user, rank in enumerate(values)
    ]
    figures, sums = first_hour.measure(rows, {"abc"})
    assert figures["blend"] == 0.75
    assert figures["best"] == "online"
    assert figures["invented"] == 0.5, "xyz was never entered, and the user entered another text"
    assert figures["blend - best"] == "+0.125"
    assert sums["online"].tolist() == [[1.0, 1.0, 8.0, 5.0], [0.25, 1.0, 8.0, 5.0]]
    assert figures["perplexity"] == f"{100 * (math.exp(-0.4) - 1):+.1f}"
    assert figures["perplexity, plain"] == "+0.0"
    figures, _ = first_hour.measure(rows, {"abc", "xyz"})
    assert figures["invented"] == 0.0
