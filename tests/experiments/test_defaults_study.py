"""The study of defaults: its trials are valid, drawn anew for each, the same each time, and never made twice."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import defaults
from defaults import FITTED, JUDGED_ON, TABLES, TRIALS, Study, Table, Trial
from factorcell import files
from factorcell.config import Config, TrainingConfig, said_in
from factorcell.training import plan
from tests import ROOT
from tests.small import ROWS


def test_tables_are_fitted_or_judged() -> None:
    assert len(FITTED) == len(JUDGED_ON) == 6
    assert not FITTED.keys() & JUDGED_ON.keys()


@pytest.mark.parametrize("table", TABLES)
def test_every_trial_can_be_trained(table: str) -> None:
    """The library knows its options; no two of a table are the same, and a number always draws the same."""
    found = [Trial(table, "search", number, 3.0) for number in range(TRIALS)]
    for trial in found:
        made = defaults.config(trial).to_dict()
        for section, options in trial.options().items():
            assert {name: made[section][name] for name in options} == options
        assert trial.options() == trial.options()
    assert len({str(trial.options()) for trial in found}) == TRIALS
    assert Trial(table, "defaults", 0, 3.0).options() == {"training": {"clip": 5.0}}
    assert Trial(table, "chosen", 0, 3.0).options() == {}


@pytest.mark.parametrize("table", TABLES)
def test_recipes_are_trained_as_they_stand(table: str) -> None:
    """Their models and trainings, on the table; and with floats, as all other trials."""
    trials = defaults.trials("recipe", [table], [1.0, 3.0])
    assert len(trials) == (2 if TABLES[table].recipe else 0)
    for trial in trials:
        recipe = said_in(ROOT / "experiments" / f"{TABLES[table].recipe}.toml")
        made = defaults.config(trial)
        assert made.model == Config.from_dict({**recipe, "data": TABLES[table].data}).model
        for name in ("batch_tokens", "learning_rate", "epochs", "loss", "samples"):
            assert getattr(made.training, name) == recipe["training"].get(name, getattr(TrainingConfig(), name))
        assert (made.training.precision, made.training.threads) == ("float32", 1)
        assert made.data.unit == TABLES[table].data["unit"]


def test_rows_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny table from its file to a row; what has a row is not missing any more."""
    (tmp_path / "tiny").mkdir()
    for part in ("train", "dev"):
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "tiny" / f"{part}.parquet")
    monkeypatch.setitem(TABLES, "tiny", Table("tiny", {"unit": "char", "context": ["city"]}, len(ROWS) - 1))
    monkeypatch.setattr(plan, "MEASURED", 0.05)
    asked = defaults.trials("search", ["tiny"], [0.002])[:2]
    assert [trial.number for trial in asked] == [0, 1]
    row = defaults.made_row(asked[0], tmp_path)
    assert row["texts"] == len(ROWS) - 1
    assert 1 < row["perplexity"] < 1000
    assert 0 < row["epochs"] <= row["options"]["training"]["epochs"]
    files.append_row(tmp_path / "defaults.jsonl", row)
    study = Study(tmp_path)
    assert study.missing(asked) == asked[1:]
    assert list(study.show()) == [f"tiny ({row['machine']}): 1 trials, best {row['perplexity']:.2f}"]
    better = {**row, "number": 1, "perplexity": row["perplexity"] / 2, "machine": "another one"}
    files.append_row(tmp_path / "defaults.jsonl", better)
    study = Study(tmp_path)
    assert study.missing(asked) == asked[1:]
    assert study.best(asked, 1) == asked[1:]
    assert study.best(asked, 2) == asked
    assert len(list(study.show())) == 2


@pytest.mark.parametrize("recipe", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.name)
def test_recipes_leave_nothing_to_choose(recipe: Path) -> None:
    """What a recipe reached was reached with all of its options: other rules must not change it."""
    if recipe.name != "published.toml":  # of other code
        assert plan.unsaid(said_in(recipe)) == ()
