"""What the advice expects of each set beside what its models gain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import advice
import corpora
import study
import tables
import tacl
from factorcell.config import Config
from factorcell.evaluation.advice.advise import SHARE, expected
from pages.advice import lines, table
from pages.results import Results
from tests.experiments.test_tables import by_name, seeds
from thesis_sixteen import WHOLE


def advised(name: str, **columns: tuple[float, float]) -> dict[str, Any]:
    """A row of the advice: for each column, and as `every` for all of them, the least and the most."""
    found = {
        advice.ALL if column == "every" else column: {"least": low, "expected": expected(low, most), "most": most}
        for column, (low, most) in columns.items()
    }
    return {"row": name, "seed": 0, "advice": found, "sums": {}}


def read_of(**rows: Sequence[dict[str, Any]]) -> Any:
    """A reader of rows that are in memory."""
    return lambda name, base="unadapted": Results.of(list(rows.get(name, ())), base)


@pytest.mark.parametrize("name", advice.OF)
def test_texts_are_read_as_the_models_read_them(name: str) -> None:
    """A row has the columns, the unit and the vocabulary of the recipe whose models it stands beside."""
    made = advice.EXPERIMENT.config(study.Training(name, 0), 1)
    of = advice.OF[name]
    assert made.data == of.config(of.trainings()[0], 1).data
    assert made.data.columns


def test_expected_stands_beside_gained() -> None:
    """A gain is that of the FactorCell over the unadapted model; what is not trained, or not advised, has no line."""
    models = [*seeds("unadapted", 40.0, 40.0, 40.0), *seeds("factorcell", 38.0, 38.0, 38.0)]
    read = read_of(
        advice=[advised("agnews", section=(0.02, 0.10), every=(0.02, 0.10)), advised("imdb", every=(0.1, 0.2))],
        tacl_agnews=models,
        tacl_hotels=models,
        tacl_imdb=models[:-1],
    )
    text = table(read)
    ((columns, least, most_likely, most, gained),) = by_name(text).values()
    assert list(by_name(text)) == ["agnews"]
    assert [columns, least, most_likely, most] == ["section", "2.0%", f"{0.02 + SHARE * 0.08:.1%}", "10.0%"]
    assert gained.startswith("+5.0% [")
    assert "Of 1 gains 1 are within a factor of two of what was expected, 1 between both ends." in text
    assert "correlation" not in text


def test_columns_of_oral_arguments_are_told_one_by_one() -> None:
    """Each column by itself from table 3.8, all of them from table 3.7; more than twice is not near."""
    read = read_of(
        advice=[advised("scotus", case=(0.1, 0.1), speaker=(0.02, 0.02), role=(0.01, 0.01), every=(0.2, 0.2))],
        scotus=[*seeds("unadapted", *[40.0] * 3), *seeds(WHOLE, *[32.0] * 3)],
        variables=[*seeds("case", *[36.0] * 3), *seeds("speaker", *[38.0] * 3), *seeds("role", *[39.6] * 3)],
    )
    found = lines(read)
    assert [(one.columns, one.near) for one in found] == [
        ("case", True),
        ("speaker", False),
        ("role", True),
        ("case, speaker, role", True),
    ]
    assert [round(one.gained.point, 3) for one in found] == [0.1, 0.05, 0.01, 0.2]


def test_an_order_is_told_of_more_than_a_few() -> None:
    """Six sets whose gains come in the expected order."""
    sets = [name for name in tacl.SETS if name not in ("tweets", "places")]
    rows: dict[str, Any] = {
        "advice": [advised(name, x=(n / 100, n / 50), every=(n / 100, n / 50)) for n, name in enumerate(sets, 1)]
    }
    for place, name in enumerate(sets, 1):
        rows[f"tacl_{name}"] = [*seeds("unadapted", *[40.0] * 3), *seeds("factorcell", *[40.0 - place] * 3)]
    assert "have a rank correlation of 1.00 (n = 6" in table(read_of(**rows))
    rows["advice"].pop()
    assert "correlation" not in table(read_of(**rows))


def test_a_trial_goes_from_texts_to_the_page(tmp_path: Path) -> None:
    """The script reads the texts of a set, keeps its advice, and the table finds it."""
    data = tmp_path / "data"
    texts = {"text": [f"word {n % 7} of {n}" for n in range(400)], "section": [str(n % 7 % 2) for n in range(400)]}
    corpora.written(data / "agnews_words" / "train.parquet", pa.table(texts))
    corpora.written(data / "agnews_words" / "dev.parquet", pa.table(texts))
    experiment = advice.EXPERIMENT
    config = experiment.config(study.Training("agnews", 0), 1)
    assert isinstance(config, Config)
    texts_of = corpora.parts(data, tmp_path, "agnews_words")
    found = experiment.baselines["agnews"].measure(config, {"agnews": texts_of["train"]}, tmp_path)
    assert list(found.row["advice"]) == ["section", advice.ALL]
    one = found.row["advice"]["section"]
    assert one["least"] <= one["expected"] <= one["most"]
    assert "advice.md" in tables.PAGES
