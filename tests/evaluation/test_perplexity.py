"""Perplexity against explicit sums, on a model with random weights."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorcell.data.tokenizers.tokenizer import WordTokenizer
from factorcell.errors import UserError
from factorcell.evaluation.perplexity import (
    MISSING_GROUP,
    QUANTILE_RANGES,
    column_groups,
    evaluate,
    perplexity_of,
    value_groups,
    value_rows,
)
from factorcell.evaluation.text_figures import TextSums
from factorcell.runs.run import Run
from tests.small_runs import ROWS, make_run, nats_of


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", output_bias=["low_rank", "one_hot"])


def test_perplexity_of_a_sum_of_nats() -> None:
    assert perplexity_of(3.0, 3) == pytest.approx(math.e)
    assert math.isnan(perplexity_of(0.0, 0))


def test_perplexity_equals_the_sum_over_single_steps(run: Run) -> None:
    rows = [dict(row) for row in ROWS[:5]]
    rows[0]["text"] = "the zyx is cold"  # zyx is out of vocabulary
    nats = [nats_of(run, row) for row in rows]
    flat = [value for line in nats for value in line]
    in_vocabulary = flat[:1] + flat[2:]
    result = evaluate(run, run.prepare(rows)).row
    assert result["perplexity"] == pytest.approx(math.exp(sum(flat) / len(flat)), rel=1e-5)
    assert result["perplexity_known"] == pytest.approx(math.exp(sum(in_vocabulary) / len(in_vocabulary)), rel=1e-5)
    assert result["targets"] == len(flat)
    assert result["unknown_share"] == pytest.approx(1 / len(flat))


def test_evaluate_accepts_rows_data_frames_files_and_corpora(run: Run, tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = evaluate(run, run.prepare(ROWS)).row
    for source in (ROWS, frame, tmp_path / "rows.csv"):
        assert evaluate(run, source).row == expected
    other = {**ROWS[0], "city": "Rome"}
    with pytest.raises(UserError, match="city 'Rome' was never seen"):
        evaluate(run, [other], unknown="error")
    assert evaluate(run, [other]).row == evaluate(run, run.prepare([other], unknown="group")).row


def test_nats_do_not_depend_on_the_batch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = run.prepare(ROWS)
    once = run.nats(corpus)
    monkeypatch.setattr("factorcell.runs.run.MAX_BATCH_TOKENS", 1)
    assert len(list(run.batches(corpus))) == len(corpus)
    np.testing.assert_allclose(run.nats(corpus), once, atol=1e-5)
    monkeypatch.undo()
    monkeypatch.setattr(
        "factorcell.nn.language_model.MAX_CONTEXT_VALUES", 2 * run.model.backbone.footprint().conditions
    )
    assert max(len(batch.rows) for batch in run.batches(corpus)) == 2
    np.testing.assert_allclose(run.nats(corpus), once, atol=1e-5)
    single = np.concatenate([run.nats(corpus.select(np.array([row]))) for row in range(len(corpus))])
    np.testing.assert_allclose(once, single, atol=1e-5)


def test_groups_have_the_perplexity_of_their_rows(run: Run) -> None:
    rows = {row["value"]: row for row in evaluate(run, ROWS, by=["city"]).by["city"]}
    for city in ("Oslo", "Nice"):
        members = [row for row in ROWS if row["city"] == city]
        without = [{"text": row["text"]} for row in members]
        perplexity = evaluate(run, run.prepare(members)).perplexity
        baseline = evaluate(run, run.prepare(without, unknown="expected")).perplexity
        assert rows[city]["count"] == len(members)
        assert rows[city]["perplexity"] == pytest.approx(perplexity, rel=1e-5)
        assert rows[city]["gain_over_unknown_context"] == pytest.approx(1 - perplexity / baseline, abs=1e-5)


def test_gain_over_a_baseline_run(run: Run, tmp_path: Path) -> None:
    plain = make_run(tmp_path / "plain", ("city",), adapt=[], output_bias=[])
    result = evaluate(run, ROWS, by=["city"], baseline=plain)
    baseline = evaluate(plain, ROWS)
    assert result.row["perplexity_baseline"] == pytest.approx(baseline.perplexity, rel=1e-5)
    assert result.gain is not None
    assert result.gain.point == pytest.approx(1 - result.perplexity / baseline.perplexity)
    assert [row["gain_over_baseline"] is not None for row in result.by["city"]] == [True, True]
    assert result.to_pandas()["perplexity_known"].tolist() == [result.perplexity_known]
    assert (baseline.gain, baseline.bits_per_byte) == (None, None)
    plain.tokenizer = WordTokenizer(plain.tokenizer.options, [*plain.tokenizer.tokens[:-1], "another"])
    with pytest.raises(UserError, match="the vocabularies differ"):
        evaluate(run, ROWS, by=["city"], baseline=plain)


YEARS = [1900 + n for n in range(100)]


def bounds(group: str) -> tuple[float, float]:
    low, high = group.split(" to ")
    return float(low) - 0.5, float(high) + 0.5


def test_categories_keep_their_names() -> None:
    assert column_groups([{"a": 5.0}, {"a": "x"}, {"a": None}], "a") == ["5", "x", MISSING_GROUP]
    with pytest.raises(UserError, match=r"^tags: expected a single value, got \['a', 'b'\]"):
        column_groups([{"tags": ["a", "b"]}, {"tags": ["c"]}], "tags")
    prices = [{"a": f"{price},5"} for price in range(100)]
    assert column_groups(prices, "a", "comma") == column_groups([{"a": price + 0.5} for price in range(100)], "a")
    assert len({*column_groups(prices, "a")}) == 100


def test_a_number_with_many_values_becomes_ranges_that_cover_it() -> None:
    groups = column_groups([{"year": year} for year in YEARS], "year")
    assert len(set(groups)) == QUANTILE_RANGES
    assert all(low <= year <= high for year, group in zip(YEARS, groups, strict=True) for low, high in [bounds(group)])


def test_a_range_includes_its_ends() -> None:
    assert list(dict.fromkeys(value_groups(list(range(1996, 2021))))) == [
        *("1996 to 2000", "2001 to 2005", "2006 to 2010", "2011 to 2015", "2016 to 2020")
    ]
    groups = value_groups(list(range(26)))
    assert (groups[4], groups[5]) == ("0 to 4", "5 to 9"), "the quantile 5 is in the upper one of two ranges"
    numbers = np.random.default_rng(0).normal(1, 1e-4, 200).tolist()
    for number, group in zip(numbers, value_groups(numbers), strict=True):
        low, high = (float(end) for end in group.split(" to "))
        assert low - 5e-5 <= number <= high + 5e-5  # at least five digits are shown
    ends = sorted({tuple(map(float, group.split(" to "))) for group in value_groups(numbers)})
    assert len(ends) == QUANTILE_RANGES
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(ends))


def test_ranges_are_ordered_by_value_and_other_groups_by_count() -> None:
    sums = TextSums("a", np.full(len(YEARS), 20.0), np.full(len(YEARS), 10.0))
    ranges = value_groups([*YEARS[:-1], None])
    values = [row["value"] for row in value_rows(sums, sums, ranges, "gain_over_baseline")]
    assert values == [*sorted(set(ranges) - {MISSING_GROUP}, key=bounds), MISSING_GROUP]
    cities = ["Oslo"] * 20 + ["Nice"] * 50 + ["Rome"] * 30
    assert [row["value"] for row in value_rows(sums, sums, cities, "gain_over_baseline")] == ["Nice", "Rome", "Oslo"]


@pytest.mark.parametrize("missing", [None, float("nan"), "", pd.NA, np.float32("nan")], ids=repr)
def test_missing_values_do_not_change_ranges(missing: Any) -> None:
    groups = value_groups([*YEARS, missing])
    assert groups[:-1] == value_groups(YEARS)
    assert groups[-1] == MISSING_GROUP
