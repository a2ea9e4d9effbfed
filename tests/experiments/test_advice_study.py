"""The study of the advice: its options and its measurement."""

from pathlib import Path

import pyarrow as pa
import pytest

import advice
import corpora
import study
from factorcell.config import Config


@pytest.mark.parametrize("name", advice.RECIPE_EXPERIMENTS)
def test_texts_are_read_as_the_models_read_them(name: str) -> None:
    config = advice.EXPERIMENT.config(study.Training(name, 0), 1)
    experiment = advice.RECIPE_EXPERIMENTS[name]
    recipe = experiment.config(experiment.trainings()[0], 1)
    assert (config.data, config.tokenizer) == (recipe.data, recipe.tokenizer)
    assert config.data.columns


def test_the_advice_of_a_data_set_is_measured(tmp_path: Path) -> None:
    data = tmp_path / "data"
    texts = {"text": [f"word {n % 7} of {n}" for n in range(400)], "section": [str(n % 7 % 2) for n in range(400)]}
    corpora.write_table(data / "agnews_words" / "train.parquet", pa.table(texts))
    corpora.write_table(data / "agnews_words" / "dev.parquet", pa.table(texts))
    experiment = advice.EXPERIMENT
    config = experiment.config(study.Training("agnews", 0), 1)
    assert isinstance(config, Config)
    texts_of = corpora.parts(data, tmp_path, "agnews_words")
    measurement = experiment.baselines["agnews"].measure(config, {"agnews": texts_of["train"]}, tmp_path)
    assert list(measurement.row["advice"]) == ["section", ""]
    assert measurement.row["advice"][""] == measurement.row["advice"]["section"] >= 0
