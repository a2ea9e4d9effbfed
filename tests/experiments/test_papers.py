"""Saved rows and recipes belong to the experiments."""

import tomllib
from pathlib import Path

import pytest

import papers
import study
from factorcell.config import read_options
from factorcell.io import files
from factorcell.training import rules

# Saved rows whose options exist no more.
WITH_OLD_OPTIONS = {
    *("no number network", "number network of one layer"),
    *("max_user_texts 20", "max_user_texts 20, epochs 6"),
}


@pytest.mark.parametrize("name", papers.EXPERIMENTS)
def test_saved_rows_are_complete_and_have_the_current_options(name: str, tmp_path: Path) -> None:
    """Nothing would be trained again, even if defaults have changed."""
    experiment, results = papers.EXPERIMENTS[name], study.EXPERIMENTS_FOLDER / "results"
    assert study.Job(experiment, tmp_path, tmp_path, results, experiment.trainings(), 1, 1, False, ()).missing() == []
    rows = {study.Training(row["row"], row["seed"]) for row in files.read_rows(results / f"{name}.jsonl")}
    assert {training for training in rows if training.row not in WITH_OLD_OPTIONS} == set(experiment.trainings())


def test_every_file_of_rows_has_its_experiment() -> None:
    """Runs that other experiments measure are trained before them."""
    stems = {path.stem for path in (study.EXPERIMENTS_FOLDER / "results").glob("*.jsonl")}
    other_stems = {"backbones", "mixtures", "gpu", "growth", "tables"}  # other studies, and benchmarks
    assert stems - other_stems == set(papers.EXPERIMENTS)
    assert len(papers.EXPERIMENTS) == len(papers.ORDER)
    names = list(papers.EXPERIMENTS)
    assert all(
        names.index(experiment.runs) < names.index(experiment.name) for experiment in papers.ORDER if experiment.runs
    )
    specified = tomllib.loads((study.EXPERIMENTS_FOLDER / "rows.toml").read_text(encoding="utf-8"))
    assert specified.keys() - {"tacl_trials"} <= set(names)


@pytest.mark.parametrize("recipe", sorted(study.EXPERIMENTS_FOLDER.glob("*.toml")), ids=lambda path: path.name)
def test_recipes_specify_all_options(recipe: Path) -> None:
    """The results of a recipe must not depend on the rules of the planner."""
    if recipe.stem not in ("backbones", "published", "rows", "sources", "tables"):
        assert rules.unspecified_options(read_options(recipe)) == ()
