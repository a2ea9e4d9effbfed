"""All experiments: their rows are those that are kept."""

import tomllib
from pathlib import Path

import pytest

import papers
import study
from factorcell import files
from factorcell.config import read_options
from factorcell.training import plan


@pytest.mark.parametrize("name", papers.EXPERIMENTS)
def test_rows_that_are_kept_are_those_of_today(name: str, tmp_path: Path) -> None:
    """With the kept rows nothing is trained again, whatever default has changed since; no other row is kept."""
    experiment, kept = papers.EXPERIMENTS[name], study.HERE / "results"
    assert study.Job(experiment, tmp_path, tmp_path, kept, experiment.trainings(), 1, 1, False, ()).missing() == []
    rows = {study.Training(row["row"], row["seed"]) for row in files.read_rows(kept / f"{name}.jsonl")}
    assert rows == set(experiment.trainings())


def test_every_file_of_rows_and_every_recipe_has_its_experiment() -> None:
    """Runs that others measure come before them."""
    assert {path.stem for path in (study.HERE / "results").glob("*.jsonl")} == set(papers.EXPERIMENTS)
    assert len(papers.EXPERIMENTS) == len(papers.ORDER)
    names = list(papers.EXPERIMENTS)
    assert all(names.index(one.runs) < names.index(one.name) for one in papers.ORDER if one.runs)
    specified = tomllib.loads((study.HERE / "rows.toml").read_text(encoding="utf-8"))
    assert specified.keys() - {"tacl_trials"} <= set(names)


@pytest.mark.parametrize("recipe", sorted(study.HERE.glob("*.toml")), ids=lambda path: path.name)
def test_recipes_leave_nothing_to_choose(recipe: Path) -> None:
    """What a recipe reached was reached with all of its options: other rules must not change it."""
    if recipe.stem not in ("published", "rows", "sources", "tables"):
        assert plan.unspecified_options(read_options(recipe)) == ()
