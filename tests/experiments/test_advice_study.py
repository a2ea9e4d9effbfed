"""What the advice expects of each set beside what its models gain."""

from pathlib import Path

import pyarrow as pa
import pytest

import advice
import corpora
import study
from factorcell.config import Config


@pytest.mark.parametrize("name", advice.OF)
def test_texts_are_read_as_the_models_read_them(name: str) -> None:
    """A row has the columns and the tokenizer of the recipe whose models it stands beside."""
    made = advice.EXPERIMENT.config(study.Training(name, 0), 1)
    of = advice.OF[name]
    recipe = of.config(of.trainings()[0], 1)
    assert (made.data, made.tokenizer) == (recipe.data, recipe.tokenizer)
    assert made.data.columns


def test_a_trial_goes_from_texts_to_the_page(tmp_path: Path) -> None:
    """The script reads the texts of a set, keeps its advice, and the table finds it."""
    data = tmp_path / "data"
    texts = {"text": [f"word {n % 7} of {n}" for n in range(400)], "section": [str(n % 7 % 2) for n in range(400)]}
    corpora.write_table(data / "agnews_words" / "train.parquet", pa.table(texts))
    corpora.write_table(data / "agnews_words" / "dev.parquet", pa.table(texts))
    experiment = advice.EXPERIMENT
    config = experiment.config(study.Training("agnews", 0), 1)
    assert isinstance(config, Config)
    texts_of = corpora.parts(data, tmp_path, "agnews_words")
    found = experiment.baselines["agnews"].measure(config, {"agnews": texts_of["train"]}, tmp_path)
    assert list(found.row["advice"]) == ["section", ""]
    one = found.row["advice"]["section"]
    assert one["least"] <= one["expected"] <= one["most"]
