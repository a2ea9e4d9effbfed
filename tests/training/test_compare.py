"""Comparisons: the models are trained with the same options, resumed, and compared with an n-gram model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import RECORDED, Config
from factorcell.errors import UserError
from factorcell.evaluation import perplexity, text_figures
from factorcell.io import files
from factorcell.ngram.ngram import DEFAULT_ORDER, NGram, count_ngrams
from factorcell.reports.runs import report_page
from factorcell.runs.run import Run, training_facts
from factorcell.training.compare import compare
from factorcell.training.fit import HELD_OUT_SHARE, read_corpora
from tests.findings import logged_progress, parse_block
from tests.pages import Page
from tests.small_runs import ROWS

CONFIG = Config.of(
    context=["city"],
    min_count=1,
    min_context_count=1,
    embedding_size=4,
    hidden_size=5,
    rank=2,
    context_size=3,
    variable_size=2,
    epochs=2,
    batch_tokens=40,
    evaluations=2,
    learning_rate=1e-2,
    seed=5,
)
TRAIN, TEST = ROWS * 3, [*ROWS, {**ROWS[0], "text": "the sun is cold"}]
MODELS = ("unadapted", "factorcell")


def run_comparison(folder: Path, ngram: bool = False, **options: Any) -> Any:
    """Compare the two models on rows in memory."""
    tables: dict[str, Any] = {"dev": ROWS, "test": TEST}
    return compare(TRAIN, **tables, out=folder, config=CONFIG, models=MODELS, target="city", ngram=ngram, **options)


def test_each_training_of_a_comparison_has_its_block(tmp_path: Path) -> None:
    options = {name: value for section in CONFIG.to_dict().values() for name, value in section.items()}
    for name in ("kind", "rank", "epochs", *RECORDED):
        options.pop(name, None)
    with logged_progress() as notices:
        compare(TRAIN, dev=ROWS, test=TEST, out=tmp_path, models=MODELS, preset="quick", **options)
    blocks = [line for line in notices if not line.startswith(" ") and ": " not in line]  # without findings
    assert blocks == [str(tmp_path / model) for model in MODELS]
    assert parse_block(notices)["options"].startswith("epochs ")
    labels = [label for line in notices for label in parse_block([line])]
    assert all(labels.count(label) == len(MODELS) for label in ("texts", "model", "training", "perplexity"))


def test_a_resumed_comparison_can_add_seeds(tmp_path: Path) -> None:
    once = run_comparison(tmp_path)
    assert [row["trainings"] for row in once] == [1, 1]
    assert [dict(row) for row in run_comparison(tmp_path, resume=True)] == [dict(row) for row in once]
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/weights.safetensors")}
    several = run_comparison(tmp_path, seeds=3, resume=True)
    assert {path: path.stat().st_mtime_ns for path in weights} == weights
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{model}{end}" for model in MODELS for end in ("", "-seed-6", "-seed-7")
    }
    for row in several:
        runs = [Run.open(tmp_path / f"{row['model']}{end}") for end in ("", "-seed-6", "-seed-7")]
        assert [run.config.training.seed for run in runs] == [5, 6, 7]
        perplexities = [perplexity.evaluate(run, TEST).perplexity for run in runs]
        assert row["perplexity"] == pytest.approx(float(np.exp(np.mean(np.log(perplexities)))))
        assert row["perplexity_deviation"] == pytest.approx(float(np.std(perplexities, ddof=1)))
    base, adapted = several
    assert adapted["gain_over_baseline"] == pytest.approx(1 - adapted["perplexity"] / base["perplexity"])
    accuracies = [
        [row for row in files.read_rows(path) if row["kind"] == "classify"][-1]["accuracy"]
        for path in tmp_path.glob("factorcell*/results.jsonl")
    ]
    assert adapted["accuracy"] == pytest.approx(np.mean(accuracies))


@pytest.mark.parametrize(
    ("target", "test", "message"),
    [
        ("town", TEST, "unknown context variable 'town'"),
        ("lon", TEST, "lon: expected a category, got a variable of kind number"),
        ("city", [{**row, "city": None} for row in TEST], "no text has a candidate value of city"),
    ],
)
def test_a_target_that_cannot_be_classified_is_refused_before_training(
    tmp_path: Path, target: str, test: Any, message: str
) -> None:
    config = replace(CONFIG, data=replace(CONFIG.data, context=("city", "lon:number")))
    with pytest.raises(UserError, match=message):
        compare(TRAIN, dev=ROWS, test=test, out=tmp_path / "runs", config=config, models=MODELS, target=target)
    assert not list((tmp_path / "runs").glob("*/log.jsonl"))


def test_a_comparison_with_other_options_is_not_resumed(tmp_path: Path) -> None:
    run_comparison(tmp_path)
    with pytest.raises(UserError, match=r"unadapted: cannot resume; expected epochs = 2.0 as before, got 3.0"):
        run_comparison(tmp_path, epochs=3.0, resume=True)


def test_a_comparison_with_the_option_of_mixtures_resumes(tmp_path: Path) -> None:
    """The models are compared alone, whatever the option says."""
    config = CONFIG.with_options(ngram_mixture=True)
    for resume in (False, True):
        compare(TRAIN, dev=ROWS, test=TEST, out=tmp_path, config=config, models=MODELS, ngram=False, resume=resume)
    assert all(Run.open(tmp_path / name).mixture is None for name in MODELS)


def test_the_last_row_is_an_n_gram_model_of_the_same_training_texts(tmp_path: Path) -> None:
    comparison = compare(TRAIN, test=TEST, out=tmp_path, config=CONFIG, models=MODELS)
    first, _, row = comparison
    run, model = Run.open(tmp_path / "unadapted"), NGram.open(tmp_path / "ngram")
    corpus, _ = read_corpora(TRAIN, None, CONFIG)
    assert len(corpus) == len(TRAIN) - round(len(TRAIN) * HELD_OUT_SHARE)
    assert model.tokenizer.tokens == run.tokenizer.tokens
    for saved, (_, counts) in zip(model.orders, count_ngrams(corpus, len(model.orders)), strict=True):
        assert np.array_equal(saved.counts, counts)
    assert (row["model"], row["trainings"], len(model.orders)) == ("ngram", 1, DEFAULT_ORDER)
    assert row["perplexity"] == pytest.approx(perplexity.evaluate(model, TEST).perplexity)
    assert row["gain_over_baseline"] == pytest.approx(1 - row["perplexity"] / first["perplexity"])
    assert row["gain_over_baseline_low"] <= row["gain_over_baseline"] <= row["gain_over_baseline_high"]
    worse = [str(row["model"]) for row in comparison if row["perplexity"] > comparison[-1]["perplexity"]]
    assert worse, "the short trainings should be worse than counts"
    assert f"worse than n-gram counts: {', '.join(worse)}; train on more texts, or longer" in str(comparison)
    page = Page(report_page(sorted(tmp_path / name for name in (*MODELS, "ngram"))))
    assert page.charts[0] == "Gain over unadapted, %", "an n-gram model is the last, whatever the names are"
    assert [row[0] for row in page.rows[1:]][: len(comparison)] == [row["model"] for row in comparison]
    perplexities = [row[1].partition("*")[0] for row in page.rows[1:]][: len(comparison)]
    assert perplexities == [f"{row['perplexity']:.2f}" for row in comparison]
    assert all(Run.open(tmp_path / name).mixture is None for name in MODELS), "the runs predict as before"
    folders = sorted(path.parent for name in ("config.json", "ngram.json") for path in tmp_path.glob(f"*/{name}"))
    assert report_page([tmp_path]) == report_page(folders), "a folder of runs is read as all runs in it"


def test_a_training_saves_the_nats_of_its_development_texts(tmp_path: Path) -> None:
    run_comparison(tmp_path)
    for name in MODELS:
        run = Run.open(tmp_path / name)
        saved = text_figures.load(run.folder, text_figures.DEVELOPMENT_RESULT)
        corpus = run.prepare(ROWS)
        for figure, sums in text_figures.figures_from_nats(run.nats(corpus), corpus).items():
            assert sums.key == saved[figure].key
            np.testing.assert_allclose(saved[figure].numerator, sums.numerator, rtol=1e-5)
            np.testing.assert_array_equal(saved[figure].denominator, sums.denominator)
        assert (training_facts(run.folder)["context"] is None) == (name == "unadapted")


@pytest.mark.parametrize("seeds", [0, -1, 1001])
def test_an_invalid_number_of_seeds_is_refused(tmp_path: Path, seeds: int) -> None:
    with pytest.raises(UserError, match=r"seeds is -?\d+"):
        run_comparison(tmp_path / "new", seeds=seeds)
    assert not (tmp_path / "new").exists()
