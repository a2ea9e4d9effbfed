"""Section A.2: the texts of domains, what is kept of fine-tunings, and what is said of penalties."""

from pathlib import Path
from typing import Any

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
from factorcell.evaluation.text_figures import TextSums
from factorcell.model.run import Run
from pages import finetuning, verdicts
from pages.results import Results
from tests.small import make_run

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
    config = Config.from_dict({"data": {"min_count": 1, "context": []}})
    found = thesis_finetuning.ngram(config, given, tmp_path)
    keys = ["sea, ngram, 1", "sea, ngram, 4"]
    assert list(found.row["finetuned"]) == keys
    assert found.row["finetuned"][keys[0]]["texts"] == 2
    one, few = (found.figures[f"{key}, known targets"] for key in keys)
    assert one.ratio < few.ratio < np.log(9)
    assert one.below.tolist() == [5.0, 5.0], "no word of the hotels is unknown where few texts are counted"
    assert found.row["finetuned"][keys[0]]["dev"] > found.row["finetuned"][keys[1]]["dev"]


def rows(better: float, seeds: int = 3, noise: float = 0.003) -> list[dict[str, Any]]:
    """Rows whose penalties are as good as none, but for one, by so many nats in one case; texts differ by `noise`."""
    made = []
    below = np.full(200, 20.0)
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        hard = random.normal(4, 0.2, 200)
        values = {f"{name}, before": 0.5 for name in thesis_finetuning.DOMAINS}
        for name, way in finetuning.CASES:
            for l1 in thesis_finetuning.PENALTIES:
                values[f"{name}, {way}, {l1}"] = 0.0
        values["films, all, 1e-5"] = -better
        off = {key: random.normal(value, noise, 200) for key, value in values.items()}
        sums = {
            f"{key}{kind}": study.grouped(TextSums("k", below * (hard + off[key]), below))
            for key in values
            for kind in thesis_finetuning.KINDS.values()
        }
        kept = {key: {"dev": value, "texts": 200} for key, value in values.items()}
        made.append({"row": "none", "seed": seed, "sums": sums, "finetuned": kept})
    return made


def test_penalties_beside_none() -> None:
    """A line for each case; one penalty that gains beyond chance is told apart from those that do not."""
    found = Results.of(rows(0.1), "none")
    text = finetuning.table(found)
    counted: dict[str, Any] = {"row": "ngram", "seed": 0, "exact": True, "finetuned": {}, "sums": {}}
    for name, most in (("films", 1000), ("films", 100)):
        sums = TextSums("k", np.full(200, 20.0 * np.log(most)), np.full(200, 20.0))
        counted["sums"][f"{name}, ngram, {most}"] = study.grouped(sums)
    assert finetuning.table(Results.of([counted], "none")).endswith("No row yet.\n")
    beside = finetuning.table(Results.of([*rows(0.1), counted], "none"))
    assert "| films | all | 200 | 1000.00 |" in beside
    assert "| films | all, 100 texts | 200 | 100.00 |" in beside
    assert "| films | bias | 200 | 1000.00 |" in beside
    assert "| a word | all | 200 |  |" in beside
    lines = {line.split(" | ")[0][2:] + line.split(" | ")[1]: line for line in text.splitlines() if "| 200 |" in line}
    assert len(lines) == len(finetuning.CASES)
    assert "| +9." in lines["filmsall"] or "| +10." in lines["filmsall"]
    assert "no difference" not in lines["filmsall"]
    assert lines["a wordbias"].endswith("no difference |")
    line = verdicts.Line("A.2", "x")
    assert verdicts.penalised(line, found)[3:6] == ("1 of 12 gain over 1%", "", "disagrees")
    assert verdicts.penalised(line, Results.of(rows(0.005), "none"))[3:6] == ("0 of 12 gain over 1%", "", "agrees")
    unsure = verdicts.penalised(line, Results.of(rows(0.008, noise=0.05), "none"))
    assert unsure[3:6] == ("0 of 12 gain over 1%", "", "cannot be told")
    assert verdicts.penalised(line, Results.of(rows(0.0), "none"))[3:6] == ("0 of 12 gain over 1%", "", "agrees")
    still = rows(0.1)
    for one in still:
        for key in [key for key in one["sums"] if key.startswith("a word, bias, ")]:
            one["sums"][key] = one["sums"]["a word, before"]
    assert verdicts.penalised(line, Results.of(still, "none"))[3] == "1 of 11 gain over 1%"
    assert finetuning.table(Results.of(still, "none")).count(finetuning.STILL) == 2
    assert verdicts.penalised(line, Results.of(rows(0.1, 2), "none"))[5:] == ("cannot be told", "fewer than 3 seeds")
    assert verdicts.penalised(line, Results.of([]))[3:] == ("no row", "", "cannot be told", "not trained")
    assert finetuning.table(Results.of([])).endswith("No row yet.\n")
