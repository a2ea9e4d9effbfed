"""Section A.2: the texts of domains, what is kept of fine-tunings, and what is said of penalties."""

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
from factorcell.model.run import Run
from tests.small_runs import make_run

COLUMNS = ("hotel", "city", "rating")


def test_the_base_is_the_unadapted_model_of_table_a_1() -> None:
    made = thesis_finetuning.EXPERIMENT
    assert (made.runs, made.recipe) == (thesis_sparse.EXPERIMENT.name, thesis_sparse.EXPERIMENT.recipe)
    training = study.Training("none", 1)
    assert made.config(training, 1) == thesis_sparse.EXPERIMENT.config(training, 1)
    assert made.rows["ngram"] == made.rows["none"]


def test_domains_of_hotels_and_films(tmp_path: Path) -> None:
    """Those that fit, the first ones, with the columns of hotels; parts stay apart."""
    texts = ["the breakfast", "a Horror film", "nothing", "no breakfast again", "breakfasts"]
    for name, columns in (("hotels", {"hotel": "h", "city": "Reno, CA", "rating": "5"}), ("imdb", {"rating": "9"})):
        (tmp_path / name).mkdir()
        for part in ("train", "dev", "test"):
            rows = [{"text": f"{text} {part}", **columns} for text in texts * 5]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / f"{part}.parquet")
    made = thesis_finetuning.tables(tmp_path, tmp_path / "made", 0.01)
    found = {name: read(path)["text"].to_pylist() for name, path in made.items() if " " in name}
    assert found["a word dev"] == ["the breakfast dev", "no breakfast again dev"] * 5
    assert found["films of a kind test"] == ["a Horror film test"] * 5
    assert [len(found[f"{name} train"]) for name in ("a region", "films")] == [20, 20]
    assert read(made["films train"]).column_names == ["text", *COLUMNS]
    assert read(made["films train"])["rating"].to_pylist() == ["9"] * 20


def test_every_way_and_penalty_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each domain the run before, and a fine-tuned one for each penalty, which is there again at a second call."""
    run = make_run(tmp_path / "run", COLUMNS[:0], {"batch_tokens": 50}, adapt=(), output_bias=())
    rows = [{"text": text} for text in ("the sea is cold", "sun and sand") * 5]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    monkeypatch.setattr(thesis_finetuning, "DOMAINS", {"sea": thesis_finetuning.DOMAINS["films"]})
    monkeypatch.setattr(thesis_finetuning, "PENALTIES", ("0", "1e3"))
    monkeypatch.setattr(thesis_finetuning, "WAYS", {"bias": (("output_bias",), 6, 0.03)})
    given = {f"sea {part}": tmp_path / "t.parquet" for part in ("train", "dev", "test")}
    found = thesis_finetuning.measure(run, given)
    keys = ["sea, before", "sea, bias, 0", "sea, bias, 1e3"]
    assert list(found.figures) == [f"{key}{kind}" for key in keys for kind in ("", ", known targets")]
    before = evaluate(run, tmp_path / "t.parquet")
    assert np.exp(found.figures["sea, before"].ratio) == pytest.approx(before["perplexity"])
    assert np.exp(found.figures["sea, before, known targets"].ratio) == pytest.approx(before["perplexity_known"])
    assert np.exp(found.row["finetuned"]["sea, before"]["dev"]) == pytest.approx(before["perplexity"])
    assert found.figures["sea, bias, 1e3"].ratio == pytest.approx(found.figures["sea, before"].ratio)
    assert found.figures["sea, bias, 0"].ratio < found.figures["sea, before"].ratio
    assert found.row["finetuned"]["sea, bias, 0"]["texts"] == 10
    tuned = Run.open(tmp_path / "run-finetuned" / "sea" / "bias" / "0")
    assert tuned.config.training.learning_rate == 0.03
    assert np.exp(found.figures["sea, bias, 0"].ratio) == pytest.approx(
        evaluate(tuned, tmp_path / "t.parquet")["perplexity"], rel=1e-5
    )
    assert thesis_finetuning.measure(run, given).row == found.row


def test_n_grams_of_few_texts_have_the_words_of_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in as many texts as are learned from: what those say is likelier, what they never say costs more."""
    said = {
        "train": ["the sea is cold", "sun and sand"] * 5,
        "dev": ["sun and sand"] * 2,
        "test": ["the sea is cold"] * 2,
    }
    for part, texts in said.items():
        pq.write_table(pa.Table.from_pylist([{"text": text} for text in texts]), tmp_path / f"{part}.parquet")
    monkeypatch.setattr(thesis_finetuning, "DOMAINS", {"sea": thesis_finetuning.DOMAINS["films"]})
    monkeypatch.setattr(thesis_finetuning, "WAYS", {"one": ((), 1, 0.1), "few": ((), 4, 0.1), "again": ((), 4, 0.1)})
    given = {"train": tmp_path / "train.parquet"}
    given |= {f"sea {part}": tmp_path / f"{part}.parquet" for part in said}
    config = Config.of(min_count=1, context=[])
    found = thesis_finetuning.ngram(config, given, tmp_path)
    keys = ["sea, ngram, 1", "sea, ngram, 4"]
    assert list(found.row["finetuned"]) == keys
    assert found.row["finetuned"][keys[0]]["texts"] == 2
    one, few = (found.figures[f"{key}, known targets"] for key in keys)
    assert one.ratio < few.ratio < np.log(9)
    assert one.denominator.tolist() == [5.0, 5.0], "no word of the hotels is unknown where few texts are counted"
    assert found.row["finetuned"][keys[0]]["dev"] > found.row["finetuned"][keys[1]]["dev"]
