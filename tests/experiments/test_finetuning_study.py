"""Section A.2: the texts of the domains, and the measurements of fine-tuned models."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import study
import thesis_finetuning
import thesis_sparse
from corpora import read
from factorcell.config import Config
from factorcell.evaluation.perplexity import evaluate
from factorcell.runs.run import Run
from tests.small_runs import make_run

COLUMNS = ("hotel", "city", "rating")


def test_the_base_is_the_unadapted_model_of_table_a_1() -> None:
    experiment = thesis_finetuning.EXPERIMENT
    assert (experiment.runs, experiment.recipe) == (thesis_sparse.EXPERIMENT.name, thesis_sparse.EXPERIMENT.recipe)
    training = study.Training("none", 1)
    assert experiment.config(training, 1) == thesis_sparse.EXPERIMENT.config(training, 1)
    assert experiment.rows["ngram"] == experiment.rows["none"]


def test_domains_have_the_texts_that_fit(tmp_path: Path) -> None:
    """They are the first ones of each part, with the columns of hotels."""
    texts = ["the breakfast", "a Horror film", "nothing", "no breakfast again", "breakfasts"]
    for name, columns in (("hotels", {"hotel": "h", "city": "Reno, CA", "rating": "5"}), ("imdb", {"rating": "9"})):
        (tmp_path / name).mkdir()
        for part in ("train", "dev", "test"):
            rows = [{"text": f"{text} {part}", **columns} for text in texts * 5]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / f"{part}.parquet")
    paths = thesis_finetuning.tables(tmp_path, tmp_path / "made", 0.01)
    texts_by_part = {name: read(path)["text"].to_pylist() for name, path in paths.items() if " " in name}
    assert texts_by_part["a word dev"] == ["the breakfast dev", "no breakfast again dev"] * 5
    assert texts_by_part["films of a kind test"] == ["a Horror film test"] * 5
    assert [len(texts_by_part[f"{name} train"]) for name in ("a region", "films")] == [20, 20]
    assert read(paths["films train"]).column_names == ["text", *COLUMNS]
    assert read(paths["films train"])["rating"].to_pylist() == ["9"] * 20


def test_every_way_and_penalty_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call opens the fine-tuned models."""
    run = make_run(tmp_path / "run", COLUMNS[:0], {"batch_tokens": 50}, adapt=(), output_bias=())
    rows = [{"text": text} for text in ("the sea is cold", "sun and sand") * 5]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    monkeypatch.setattr(thesis_finetuning, "DOMAINS", {"sea": thesis_finetuning.DOMAINS["films"]})
    monkeypatch.setattr(thesis_finetuning, "PENALTIES", ("0", "1e3"))
    monkeypatch.setattr(thesis_finetuning, "WAYS", {"bias": (("output_bias",), 6, 0.03)})
    tables = {f"sea {part}": tmp_path / "t.parquet" for part in ("train", "dev", "test")}
    measurement = thesis_finetuning.measure(run, tables)
    keys = ["sea, before", "sea, bias, 0", "sea, bias, 1e3"]
    assert list(measurement.figures) == [f"{key}{kind}" for key in keys for kind in ("", ", known targets")]
    before = evaluate(run, tmp_path / "t.parquet").row
    assert np.exp(measurement.figures["sea, before"].ratio) == pytest.approx(before["perplexity"])
    assert np.exp(measurement.figures["sea, before, known targets"].ratio) == pytest.approx(before["perplexity_known"])
    assert np.exp(measurement.row["finetuned"]["sea, before"]["dev"]) == pytest.approx(before["perplexity"])
    assert measurement.figures["sea, bias, 1e3"].ratio == pytest.approx(measurement.figures["sea, before"].ratio)
    assert measurement.figures["sea, bias, 0"].ratio < measurement.figures["sea, before"].ratio
    assert measurement.row["finetuned"]["sea, bias, 0"]["texts"] == 10
    tuned = Run.open(tmp_path / "run-finetuned" / "sea" / "bias" / "0")
    assert tuned.config.training.learning_rate == 0.03
    assert np.exp(measurement.figures["sea, bias, 0"].ratio) == pytest.approx(
        evaluate(tuned, tmp_path / "t.parquet").perplexity, rel=1e-5
    )
    assert thesis_finetuning.measure(run, tables).row == measurement.row


def test_n_grams_of_few_texts_use_the_vocabulary_of_all_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more texts the test sentence gets less probable, and the dev sentence more."""
    texts_by_part = {
        "train": ["the sea is cold", "sun and sand"] * 5,
        "dev": ["sun and sand"] * 2,
        "test": ["the sea is cold"] * 2,
    }
    for part, texts in texts_by_part.items():
        pq.write_table(pa.Table.from_pylist([{"text": text} for text in texts]), tmp_path / f"{part}.parquet")
    monkeypatch.setattr(thesis_finetuning, "DOMAINS", {"sea": thesis_finetuning.DOMAINS["films"]})
    monkeypatch.setattr(thesis_finetuning, "WAYS", {"one": ((), 1, 0.1), "few": ((), 4, 0.1), "again": ((), 4, 0.1)})
    tables = {"train": tmp_path / "train.parquet"}
    tables |= {f"sea {part}": tmp_path / f"{part}.parquet" for part in texts_by_part}
    config = Config.of(min_count=1, context=[])
    measurement = thesis_finetuning.ngram(config, tables, tmp_path)
    keys = ["sea, ngram, 1", "sea, ngram, 4"]
    assert list(measurement.row["finetuned"]) == keys
    assert measurement.row["finetuned"][keys[0]]["texts"] == 2
    of_one_text, of_four_texts = (measurement.figures[f"{key}, known targets"] for key in keys)
    assert of_one_text.ratio < of_four_texts.ratio < np.log(9)
    assert of_one_text.denominator.tolist() == [5.0, 5.0], (
        "no word of the hotels is unknown where few texts are counted"
    )
    assert measurement.row["finetuned"][keys[0]]["dev"] > measurement.row["finetuned"][keys[1]]["dev"]
