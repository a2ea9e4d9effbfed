"""Bits per byte against a loop over texts, across tokenizers, and for truncated and empty texts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import UserError
from factorcell.data.vocabulary import UNKNOWN
from factorcell.evaluation import comparison, perplexity, text_figures
from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.evaluation.perplexity import evaluate, evaluate_by_columns
from factorcell.evaluation.text_figures import TextSums
from factorcell.model.ngram import NGram
from factorcell.model.run import Run
from factorcell.model.spelling import spelling_model
from tests.small_runs import make_letters, make_run

LETTERS = ("abc", "cab", "ba", "caf\u00e9", "👩‍👩‍👧", "", "abcabcabcabcabcabc")
TEXTS = [*LETTERS, "cafe\u0301", "xyz"] * 3


def rows_of(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text, "city": "Oslo", "stars": "5", "lat": 59.0, "lon": 10.0} for text in texts]


def bits(run: Any, texts: list[str]) -> tuple[list[float], list[int]]:
    """Return the bits and the bytes of every text that is not truncated, scored and spelled one by one."""
    costs, sizes = [], []
    for text in texts:
        corpus = run.prepare(rows_of([text]))
        if not corpus.truncated.any():
            unknown = [token for token in run.tokenizer.split(text) if run.tokenizer.encode([token]) == [UNKNOWN]]
            nats = run.nats(corpus).astype(np.float64).sum() + spelling_model(run.tokenizer).nats(unknown).sum()
            costs.append(float(nats) / math.log(2))
            sizes.append(len(text.encode()))
    return costs, sizes


@pytest.mark.parametrize("kind", ["char", "grapheme", "word", "ngram"])
def test_bits_per_byte_equal_a_loop_over_texts(kind: str, tmp_path: Path) -> None:
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
    assert {"unit": run.tokenizer.unit, **perplexity.summary_row(run.nats(once), once)} == row


def test_bytes_are_counted_before_unicode_normalization() -> None:
    run = make_letters(LETTERS)
    composed, decomposed = (evaluate(run, rows_of([text] * 12)) for text in ("caf\u00e9", "cafe\u0301"))
    assert composed["perplexity"] == decomposed["perplexity"]
    assert composed["bits_per_byte"] * 5 == pytest.approx(decomposed["bits_per_byte"] * 6)
    assert (composed["bits_per_byte_bound"], decomposed["bits_per_byte_bound"]) == (False, True)


@pytest.mark.parametrize(
    ("texts", "counted", "bound"),
    [
        (["abc"] * 12, 12, False),
        (["abc"] * 12 + ["xyz"], 13, False),  # out of vocabulary, but spelled
        (["abc"] * 12 + ["cafe\u0301"], 13, True),
        (["abc"] * 12 + ["cafe\u0301" * 12], 12, False),  # the only text that NFC changes is truncated
        (["abc"] * 12 + [""], 13, False),
    ],
)
def test_texts_whose_tokens_do_not_determine_them_give_a_lower_bound(
    texts: list[str], counted: int, bound: bool
) -> None:
    row = evaluate(make_letters(), rows_of(texts))
    assert (row["bits_per_byte_texts"], row["bits_per_byte_bound"]) == (counted, bound)


@pytest.mark.parametrize("texts", [[""] * 12, ["abcabcabcabcabc"] * 12, ["", "abcabcabcabcabc"]])
def test_texts_without_counted_bytes_have_no_bits_per_byte(texts: list[str]) -> None:
    row = evaluate(make_letters(), rows_of(texts))
    assert [row[name] for name in ("bits_per_byte", "bits_per_byte_low", "bits_per_byte_high")] == [None] * 3
    assert not row["bits_per_byte_bound"]


def test_texts_without_originals_have_perplexities_only() -> None:
    run = make_letters()
    corpus = replace(run.prepare(rows_of(["abc"] * 12)), originals=None)
    assert not any(name.startswith("bits") for name in evaluate(run, corpus))
    assert list(text_figures.figures_from_nats(run.nats(corpus), corpus)) == ["perplexity", "perplexity_known"]


def comparison_model(run: Any, texts: list[str], folder: Path) -> ComparedModel:
    """Return a model with its figures, which are saved in a folder and loaded again."""
    evaluation = evaluate_by_columns(run, rows_of(texts))
    text_figures.save(folder, evaluation.texts, {})
    saved = text_figures.load(folder, {"texts_key": evaluation.texts["perplexity"].key})
    assert saved["bits_per_byte"].texts == evaluation.texts["bits_per_byte"].texts
    return ComparedModel(folder.name, [evaluation.row], [saved])


def runs_with_two_tokenizers(tmp_path: Path) -> dict[str, Run]:
    for name in ("word", "char"):
        (tmp_path / name).mkdir()
    return {"word": make_run(tmp_path / "run"), "char": make_letters(LETTERS)}


def test_models_with_different_tokenizers_are_compared_over_texts_that_neither_truncated(tmp_path: Path) -> None:
    runs = runs_with_two_tokenizers(tmp_path)

    def model(name: str) -> ComparedModel:
        return comparison_model(runs[name], TEXTS, tmp_path / name)

    word, char = compare_models([model("word"), model("char")])
    untruncated = [text for text in TEXTS if len(text) < 12]
    assert word["bits_per_byte_texts"] == len(TEXTS) > char["bits_per_byte_texts"] == len(untruncated)
    is_bound = text_figures.has_lower_bound(runs["char"].prepare(rows_of(untruncated))).tolist()
    restored = [text for text, is_omitted in zip(untruncated, is_bound, strict=True) if not is_omitted]
    assert len(untruncated) / 2 < len(restored) < len(untruncated)
    word_bits, char_bits = (sum(costs) / sum(sizes) for costs, sizes in (bits(run, restored) for run in runs.values()))
    assert "gain" not in char
    assert char["bits_per_byte_difference"] == pytest.approx(char_bits - word_bits, rel=1e-4)
    ends = [char[f"bits_per_byte_difference_{end}"] for end in ("bound", "low", "high")]
    assert ends == ["at most", None, None]  # only the characters determine the texts
    assert f"at most {char['bits_per_byte_difference']:+.3f}" in str(compare_models([model("word"), model("char")]))
    assert compare_models([model("char"), model("word")])[1]["bits_per_byte_difference_bound"] == "at least"
    assert "bits_per_byte_difference" not in word


def test_models_of_different_texts_are_not_compared(tmp_path: Path) -> None:
    runs = runs_with_two_tokenizers(tmp_path)
    others = {"word": ["abc", "cab"] * 6, "char": ["cab", "abc"] * 6}
    models = [comparison_model(run, others[name], tmp_path / name) for name, run in runs.items()]
    assert "bits_per_byte_difference" not in compare_models(models)[1]
    with pytest.raises(UserError, match="expected two models that read the same texts"):
        comparison.bits_per_byte_difference(*(model.texts[0] for model in models))


def test_two_models_without_a_common_untruncated_text() -> None:
    sums = [
        TextSums(key, np.array(above), np.array(below), "c")
        for key, above, below in (("a", [1.0, math.nan], [3.0, math.nan]), ("b", [math.nan, 1.0], [math.nan, 3.0]))
    ]
    figures = [{"bits_per_byte": model_sums, "bits_per_byte_exact": model_sums} for model_sums in sums]
    assert comparison.bits_per_byte_difference(*figures) == {}
    models = [
        ComparedModel(model_sums.key, [{"bits_per_byte": model_sums.ratio}], [{"bits_per_byte": model_sums}])
        for model_sums in sums
    ]
    assert [row.get("bits_per_byte_difference") for row in compare_models(models)] == [None, None]


def model_with_bits(name: str, cost: float, bound: bool, key: str = "", trainings: int = 1) -> ComparedModel:
    """Return a model with `cost` bits per byte on 50 texts of the same table; a common `key` means equal tokens."""
    sizes, noise = np.full(50, 10.0), np.random.default_rng(len(name)).normal(0, 0.01, 50)
    costs = [cost + 0.01 * training for training in range(trainings)]
    rows = [
        {"bits_per_byte": bits, "bits_per_byte_bound": bound, "bits_per_byte_texts": 50, "texts": 50} for bits in costs
    ]
    all_sums = [TextSums(key or name, sizes * (bits + noise - noise.mean()), sizes, "c") for bits in costs]
    is_omitted = np.full(50, bound)
    figures = [{"bits_per_byte": sums, "bits_per_byte_exact": sums.omit(is_omitted)} for sums in all_sums]
    return ComparedModel(name, rows, figures)


@pytest.mark.parametrize(
    ("models", "best"),
    [
        (
            [model_with_bits("char", 2.0, False), model_with_bits("word", 1.5, True)],
            None,
        ),  # the true figure may be higher
        ([model_with_bits("char", 2.0, False), model_with_bits("word", 2.5, True)], "char"),
        ([model_with_bits("char", 2.0, False), model_with_bits("grapheme", 1.5, False)], "grapheme"),
        (
            [model_with_bits("one", 2.0, True, "k"), model_with_bits("other", 1.5, True, "k")],
            "other",
        ),  # both omit the same bits
        ([model_with_bits("one", 2.0, True), model_with_bits("other", 1.5, True)], None),
    ],
)
def test_a_lower_bound_is_not_better_than_a_model_that_reads_texts_differently(
    models: list[ComparedModel], best: str | None
) -> None:
    compared = compare_models(models)
    assert [row["model"] for row in compared if "bits_per_byte" in row["ahead"]] == ([best] if best else [])
    bounds = [bool(row["bits_per_byte_bound"]) for row in compared]
    assert ["≥" in line for line in str(compared).splitlines()[1:3]] == bounds
    assert ("≥ marks a lower bound" in str(compared)) == any(bounds)
    has_equal_tokens = len({model.texts[0]["bits_per_byte"].key for model in models}) == 1
    has_difference = has_equal_tokens or not all(bounds)  # two lower bounds of other tokens have no direction
    assert ("bits per byte above" in str(compared)) == has_difference
    is_bound = has_difference and not has_equal_tokens and any(bounds)
    assert compared[1].get("bits_per_byte_difference_bound") == ("at least" if is_bound else None)
    assert ("at least +" in str(compared) or "at least -" in str(compared)) == is_bound


def test_bits_per_byte_of_several_trainings_are_a_mean_with_an_interval() -> None:
    (several,) = compare_models([model_with_bits("char", 2.0, False, trainings=3)])
    assert several["bits_per_byte"] == pytest.approx(2.01)
    assert several["bits_per_byte_deviation"] == pytest.approx(0.01)
    assert several["bits_per_byte_low"] < 2.0
    assert several["bits_per_byte_high"] > 2.02


def test_evaluate_compares_bits_per_byte_with_a_baseline(tmp_path: Path) -> None:
    runs = runs_with_two_tokenizers(tmp_path)
    texts = rows_of(TEXTS)
    row = evaluate(runs["char"], texts, baseline=runs["word"])
    assert "gain" not in row
    assert "perplexity_without" not in row
    assert row["bits_per_byte_over"] == "run"
    assert row["bits_per_byte_baseline"] == pytest.approx(evaluate(runs["word"], texts)["bits_per_byte"])
    assert row["bits_per_byte_baseline_bound"]
    assert row["bits_per_byte_difference_bound"] == "at most"
    assert row["bits_per_byte_difference_low"] is row["bits_per_byte_difference_high"] is None
    same_vocabulary = evaluate(runs["char"], texts, baseline=make_letters(LETTERS, seed=1))
    assert same_vocabulary["gain"] is not None
    assert same_vocabulary["bits_per_byte_difference_low"] is not None
    assert same_vocabulary["bits_per_byte_difference"] == pytest.approx(
        same_vocabulary["bits_per_byte"] - same_vocabulary["bits_per_byte_baseline"]
    )
    assert "bits_per_byte_difference" not in evaluate_by_columns(runs["char"], texts, by=["city"]).row
