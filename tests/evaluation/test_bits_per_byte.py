"""Bits per byte of the original texts: against a loop over texts, across units, for cut and empty texts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import UserError
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.perplexity import evaluate, evaluate_by_columns
from factorcell.evaluation.text_figures import TextSums
from factorcell.model.run import Run
from tests.small_runs import make_letters, make_run

LETTERS = ("abc", "cab", "ba", "caf\u00e9", "👩‍👩‍👧", "", "abcabcabcabcabcabc")
TEXTS = [*LETTERS, "cafe\u0301", "xyz"] * 3


def rows_of(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text, "city": "Oslo", "stars": "5", "lat": 59.0, "lon": 10.0} for text in texts]


def bits(run: Any, texts: list[str]) -> tuple[list[float], list[int]]:
    """Bits and bytes of every text that is read whole, one after the other."""
    costs, sizes = [], []
    for text in texts:
        corpus = run.prepare(rows_of([text]))
        if not corpus.truncated.any():
            costs.append(float(run.nats(corpus).astype(np.float64).sum()) / math.log(2))
            sizes.append(len(text.encode()))
    return costs, sizes


@pytest.mark.parametrize("kind", ["char", "grapheme", "word", "ngram"])
def test_bits_per_byte_are_those_of_each_text(kind: str, tmp_path: Path) -> None:
    run: Any = make_run(tmp_path / "run") if kind == "word" else make_letters(LETTERS)
    if kind == "grapheme":
        run = make_letters(LETTERS, data={"tokenizer": "grapheme"})
    if kind == "ngram":
        run = NGram.fit(rows_of(list(LETTERS)), run.config, tmp_path / "ngram", tokenizer=run.tokenizer)
    costs, sizes = bits(run, TEXTS)
    row = evaluate(run, rows_of(TEXTS))
    assert row["bits_per_byte"] == pytest.approx(sum(costs) / sum(sizes), rel=1e-5)
    assert row["bits_per_byte_texts"] == len(costs) == row["texts"] - row["truncated"]
    assert row["bits_per_byte_low"] < row["bits_per_byte"] < row["bits_per_byte_high"]
    assert row["unknown_targets"] == round(row["unknown_share"] * row["targets"]) > 0
    assert row["bits_per_byte_bound"]
    once = run.prepare(rows_of(TEXTS))
    assert perplexity.summary_row(run.nats(once), once) == row


def test_bytes_are_as_given_in_both_forms_of_unicode() -> None:
    run = make_letters(LETTERS)
    composed, decomposed = (evaluate(run, rows_of([text] * 12)) for text in ("caf\u00e9", "cafe\u0301"))
    assert composed["perplexity"] == decomposed["perplexity"]
    assert composed["bits_per_byte"] * 5 == pytest.approx(decomposed["bits_per_byte"] * 6)
    assert (composed["bits_per_byte_bound"], decomposed["bits_per_byte_bound"]) == (False, True)


@pytest.mark.parametrize(
    ("texts", "counted", "bound"),
    [
        (["abc"] * 12, 12, False),
        (["abc"] * 12 + ["xyz"], 13, True),  # out of vocabulary
        (["abc"] * 12 + ["x" * 12], 12, False),  # the only unknown targets are in a text that is cut
        (["abc"] * 12 + [""], 13, False),
    ],
)
def test_texts_whose_tokens_do_not_determine_them_give_a_lower_bound(
    texts: list[str], counted: int, bound: bool
) -> None:
    row = evaluate(make_letters(), rows_of(texts))
    assert (row["bits_per_byte_texts"], row["bits_per_byte_bound"]) == (counted, bound)


@pytest.mark.parametrize("texts", [[""] * 12, ["abcabcabcabcabc"] * 12, ["", "abcabcabcabcabc"]])
def test_texts_without_a_byte_that_counts_have_no_figure(texts: list[str]) -> None:
    row = evaluate(make_letters(), rows_of(texts))
    assert [row[name] for name in ("bits_per_byte", "bits_per_byte_low", "bits_per_byte_high")] == [None] * 3
    assert not row["bits_per_byte_bound"]


def test_texts_without_originals_have_perplexities_only() -> None:
    run = make_letters()
    corpus = replace(run.prepare(rows_of(["abc"] * 12)), originals=None)
    assert not any(name.startswith("bits") for name in evaluate(run, corpus))
    assert list(text_figures.figures_from_nats(run.nats(corpus), corpus)) == ["perplexity", "perplexity_known"]


def candidate(run: Any, texts: list[str], folder: Path) -> ComparedModel:
    """A model with its figures, kept in a folder and read again."""
    found = evaluate_by_columns(run, rows_of(texts))
    text_figures.save(folder, found.texts)
    kept = text_figures.load(folder, found.texts["perplexity"].key)
    assert kept["bits_per_byte"].texts == found.texts["bits_per_byte"].texts
    return ComparedModel(folder.name, [found.row], [kept])


def two_units(tmp_path: Path) -> dict[str, Run]:
    for name in ("word", "char"):
        (tmp_path / name).mkdir()
    return {"word": make_run(tmp_path / "run"), "char": make_letters(LETTERS)}


def test_models_of_two_units_are_compared_over_the_texts_that_both_read_whole(tmp_path: Path) -> None:
    runs = two_units(tmp_path)
    word, char = compare_models([candidate(run, TEXTS, tmp_path / name) for name, run in runs.items()])
    both = [text for text in TEXTS if len(text) < 12]
    assert word["bits_per_byte_texts"] == len(TEXTS) > char["bits_per_byte_texts"] == len(both)
    of_word, of_char = (sum(costs) / sum(sizes) for costs, sizes in (bits(run, both) for run in runs.values()))
    assert "gain" not in char
    assert char["bits_per_byte_difference"] == pytest.approx(of_char - of_word, rel=1e-4)
    low, high = char["bits_per_byte_difference_low"], char["bits_per_byte_difference_high"]
    assert low < char["bits_per_byte_difference"] < high
    assert "bits_per_byte_difference" not in word


def test_models_of_different_texts_are_not_compared(tmp_path: Path) -> None:
    runs = two_units(tmp_path)
    others = {"word": ["abc", "cab"] * 6, "char": ["cab", "abc"] * 6}
    models = [candidate(run, others[name], tmp_path / name) for name, run in runs.items()]
    assert "bits_per_byte_difference" not in compare_models(models)[1]
    with pytest.raises(UserError, match="expected two models that read the same texts"):
        perplexity.bits_difference(*(model.texts[0]["bits_per_byte"] for model in models))


def test_two_models_without_a_text_that_both_read_whole() -> None:
    sums = [
        TextSums(key, np.array(above), np.array(below), "c")
        for key, above, below in (("a", [1.0, math.nan], [3.0, math.nan]), ("b", [math.nan, 1.0], [math.nan, 3.0]))
    ]
    assert perplexity.bits_difference(*sums) is None
    models = [ComparedModel(one.key, [{"bits_per_byte": one.ratio}], [{"bits_per_byte": one}]) for one in sums]
    assert [row.get("bits_per_byte_difference") for row in compare_models(models)] == [None, None]


def bounded(name: str, cost: float, bound: bool, key: str = "", trainings: int = 1) -> ComparedModel:
    """A model of so many bits per byte in 50 texts of the same table, read in a way of its own unless `key` says."""
    sizes, noise = np.full(50, 10.0), np.random.default_rng(len(name)).normal(0, 0.01, 50)
    costs = [cost + 0.01 * training for training in range(trainings)]
    rows = [
        {"bits_per_byte": one, "bits_per_byte_bound": bound, "bits_per_byte_texts": 50, "texts": 50} for one in costs
    ]
    figures = [
        {"bits_per_byte": TextSums(key or name, sizes * (one + noise - noise.mean()), sizes, "c")} for one in costs
    ]
    return ComparedModel(name, rows, figures)


@pytest.mark.parametrize(
    ("models", "ahead"),
    [
        ([bounded("char", 2.0, False), bounded("word", 1.5, True)], None),  # it may cost more than it counts
        ([bounded("char", 2.0, False), bounded("word", 2.5, True)], "char"),
        ([bounded("char", 2.0, False), bounded("grapheme", 1.5, False)], "grapheme"),
        ([bounded("one", 2.0, True, "k"), bounded("other", 1.5, True, "k")], "other"),  # both leave out the same bits
        ([bounded("one", 2.0, True), bounded("other", 1.5, True)], None),
    ],
)
def test_a_lower_bound_is_not_better_than_a_model_that_reads_otherwise(
    models: list[ComparedModel], ahead: str | None
) -> None:
    found = compare_models(models)
    assert [row["model"] for row in found if "bits_per_byte" in row["ahead"]] == ([ahead] if ahead else [])
    bounds = [bool(row["bits_per_byte_bound"]) for row in found]
    assert ["≥" in line for line in str(found).splitlines()[1:3]] == bounds
    assert ("≥ marks a lower bound" in str(found)) == any(bounds)
    assert "bits per byte above" in str(found)


def test_several_trainings_have_the_interval_of_their_mean() -> None:
    (several,) = compare_models([bounded("char", 2.0, False, trainings=3)])
    assert several["bits_per_byte"] == pytest.approx(2.01)
    assert several["bits_per_byte_deviation"] == pytest.approx(0.01)
    assert several["bits_per_byte_low"] < 2.0
    assert several["bits_per_byte_high"] > 2.02


def test_evaluate_compares_bits_per_byte_with_a_baseline(tmp_path: Path) -> None:
    runs = two_units(tmp_path)
    texts = rows_of(TEXTS)
    row = evaluate(runs["char"], texts, baseline=runs["word"])
    assert "gain" not in row
    assert "perplexity_without" not in row
    assert row["bits_per_byte_over"] == "run"
    assert row["bits_per_byte_baseline"] == pytest.approx(evaluate(runs["word"], texts)["bits_per_byte"])
    assert row["bits_per_byte_baseline_bound"]
    assert row["bits_per_byte_difference_low"] < row["bits_per_byte_difference"] < row["bits_per_byte_difference_high"]
    same = evaluate(runs["char"], texts, baseline=make_letters(LETTERS, seed=1))
    assert same["gain"] is not None
    assert same["bits_per_byte_difference"] == pytest.approx(same["bits_per_byte"] - same["bits_per_byte_baseline"])
    assert "bits_per_byte_difference" not in evaluate_by_columns(runs["char"], texts, by=["city"]).row
