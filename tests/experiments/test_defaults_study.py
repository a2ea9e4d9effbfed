"""The study of defaults: its trials are valid and never made twice."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import defaults
from defaults import FITTED, JUDGED_ON, TABLES, Table
from factorcell import files
from factorcell.config import Config, TrainingConfig, said_in
from factorcell.training import plan
from tests import ROOT
from tests.small import ROWS


@pytest.mark.parametrize("table", TABLES)
def test_every_trial_can_be_trained(table: str) -> None:
    """The library knows the options of all kinds; no two searches are the same."""
    assert (table in FITTED) != (table in JUDGED_ON)
    found = [trial for kind in defaults.KINDS for trial in defaults.trials(kind, [table])]
    for trial in found:
        made = defaults.config(trial).to_dict()
        for section, options in defaults.options(trial).items():
            if trial["kind"] != "recipe":
                assert {name: made[section][name] for name in options} == options
    searches = [str(trial["options"]) for trial in found if trial["kind"] == "search"]
    assert len(set(searches)) == len(searches) > 0


@pytest.mark.parametrize("table", [name for name, one in TABLES.items() if one.recipe])
def test_recipes_are_trained_as_they_stand(table: str) -> None:
    """Their models and trainings, in float32 as all other trials."""
    recipe = said_in(ROOT / "experiments" / f"{TABLES[table].recipe}.toml")
    for trial in defaults.trials("recipe", [table]):
        made = defaults.config(trial)
        assert made.model == Config.from_dict({**recipe, "data": TABLES[table].data}).model
        for name in ("batch_tokens", "learning_rate", "epochs", "loss", "samples"):
            assert getattr(made.training, name) == recipe["training"].get(name, getattr(TrainingConfig(), name))
        assert (made.training.precision, made.training.threads) == ("float32", 1)


def test_rows_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny table from its file to a row; a trial that has a row of this machine is not missing."""
    (tmp_path / "tiny").mkdir()
    for part in ("train", "dev"):
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "tiny" / f"{part}.parquet")
    monkeypatch.setitem(TABLES, "tiny", Table("tiny", {"unit": "char", "context": ["city"]}, len(ROWS) - 1))
    monkeypatch.setattr(plan, "MEASURED", 0.05)
    monkeypatch.setattr(defaults, "HERE", tmp_path)
    model = {"embedding_size": 4, "hidden_size": 4}
    searches: list[dict[str, Any]] = [
        {"table": "tiny", "kind": "search", "number": n, "minutes": 0.002, "options": {"model": model}} for n in (0, 1)
    ]
    files.write_rows(tmp_path / "defaults.jsonl", searches)
    assert defaults.trials("search", ["tiny"]) == searches
    row = defaults.made_row(searches[0], tmp_path)
    assert row["texts"] == len(ROWS) - 1
    assert 1 < row["perplexity"] < 1000
    assert row["epochs"] > 0
    assert row["options"] == {"model": model}
    assert defaults.trials("search", ["tiny"], [row]) == searches[1:]
    assert defaults.trials("search", ["tiny"], [{**row, "machine": "another one"}]) == searches


@pytest.mark.parametrize("recipe", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.name)
def test_recipes_leave_nothing_to_choose(recipe: Path) -> None:
    """What a recipe reached was reached with all of its options: other rules must not change it."""
    if recipe.name not in ("published.toml", "rows.toml", "sources.toml", "tables.toml"):
        assert plan.unsaid(said_in(recipe)) == ()
