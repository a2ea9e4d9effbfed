"""Splits by a hash of the text, and sums over groups of texts."""

import itertools
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet as pq

import corpora
import study
from factorcell.errors import UserError
from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.evaluation.text_figures import TextSums


@hypothesis.given(st.lists(st.text("ab", max_size=3), max_size=40), st.integers(1, 30))
def test_equal_texts_are_in_the_same_part(texts: list[str], min_texts: int) -> None:
    """No more texts are selected than necessary, and their order does not matter."""
    selected = corpora.select_test(texts, min_texts)
    count = min(min_texts, len(texts) // 4)
    inside = {text for text, is_selected in zip(texts, selected, strict=True) if is_selected}
    assert inside.isdisjoint(text for text, is_selected in zip(texts, selected, strict=True) if not is_selected)
    assert selected.sum() >= count
    if inside:
        last = max(inside, key=corpora.text_hash)
        assert selected.sum() - texts.count(last) < count
    assert list(corpora.select_test(texts[::-1], min_texts)) == list(selected[::-1])


def test_two_writers_of_a_table_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writer begins and ends while the first one writes."""
    path, write = tmp_path / "t.parquet", pq.write_table

    def write_twice(table: pa.Table, file: Path, **options: str) -> None:
        write(table, file, **options)
        monkeypatch.setattr(pq, "write_table", write)
        corpora.write_table(path, pa.table({"n": [2]}))

    monkeypatch.setattr(pq, "write_table", write_twice)
    corpora.write_table(path, pa.table({"n": [1]}))
    assert corpora.read(path)["n"].to_pylist() == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_the_split_is_the_same_on_every_machine() -> None:
    assert corpora.text_hash("a room with a view") == 16561844617689424138
    assert corpora.select_test([f"text {n}" for n in range(20)], 3).nonzero()[0].tolist() == [2, 3, 18]


@hypothesis.given(
    st.lists(st.text("abc", max_size=2), max_size=40), st.integers(1, 9), st.integers(1, 3), st.integers(1, 9)
)
def test_the_three_parts_share_no_value(values: list[str], min_rows: int, fewest: int, most: int) -> None:
    """Every row is in one part; values with too few or too many rows are training data."""
    table = pa.table({"n": range(len(values)), "by": pa.array(values, pa.string())})
    parts = corpora.split(table, "by", min_rows, range(fewest, most + 1))
    assert sorted(n for rows in parts.values() for n in rows["n"].to_pylist()) == list(range(len(values)))
    for part, other in itertools.combinations(parts.values(), 2):
        assert set(part["by"].to_pylist()).isdisjoint(other["by"].to_pylist())
    free = [value for value in values if fewest <= values.count(value) <= most]
    assert set(parts["test"]["by"].to_pylist()) == {
        value for value, part in zip(free, corpora.select_test(free, min_rows), strict=True) if part
    }
    tested = set(parts["test"]["by"].to_pylist())
    rest = [value for value in free if value not in tested]
    assert len(parts["dev"]) >= min(min_rows, len(rest) // 4)
    assert len(parts["dev"]) == 0 or len(parts["dev"]) < min(min_rows, len(rest) // 4) + max(map(rest.count, rest))


def test_an_existing_test_part_is_used(tmp_path: Path) -> None:
    source = tmp_path / "data" / "x"
    source.mkdir(parents=True)
    for part in corpora.PARTS:
        pq.write_table(pa.table({"text": [f"{part} {n}" for n in range(40)]}), source / f"{part}.parquet")
    for part, path in corpora.parts(tmp_path / "data", tmp_path, "x").items():
        assert corpora.read(path)["text"].to_pylist() == [f"{part} {n}" for n in range(40)]


def test_parts_are_written_once(tmp_path: Path) -> None:
    """The second call reads the files of the first; a trial has its own files."""
    data = tmp_path / "data"
    (data / "x").mkdir(parents=True)
    for part in ("train", "dev"):
        pq.write_table(pa.table({"text": [f"{part} {n}" for n in range(400)]}), data / "x" / f"{part}.parquet")
    whole = {part: corpora.read(path)["text"].to_pylist() for part, path in corpora.parts(data, tmp_path, "x").items()}
    assert {part: len(texts) for part, texts in whole.items()} == {"train": 300, "dev": 400, "test": 100}
    trial = corpora.parts(data, tmp_path, "x", 0.01)
    for part, count in {"train": 3, "dev": 40, "test": 10}.items():
        assert corpora.read(trial[part])["text"].to_pylist() == whole[part][:count]
    pq.write_table(pa.table({"text": ["mine"]}), trial["train"])
    assert corpora.read(corpora.parts(data, tmp_path, "x", 0.01)["train"])["text"].to_pylist() == ["mine"]
    with pytest.raises(UserError, match="--data"):
        corpora.parts(data, tmp_path, "y", 0.01)


def test_groups_of_texts_give_the_intervals_of_texts() -> None:
    """Sums are equal, the same texts have the same groups, and intervals hardly differ."""
    random = np.random.default_rng(0)
    below = random.integers(5, 50, size=3000).astype(float)
    first = TextSums("x", below * random.normal(4.0, 0.5, 3000), below)
    second = TextSums("x", first.numerator * random.normal(1.01, 0.05, 3000), below)
    rows = [study.group_sums(sums) for sums in (first, second)]
    assert all(len(row["above"]) == len(row["below"]) == 100 for row in rows)
    grouped = [study.grouped_figures({"sums": {"perplexity": row}})["perplexity"] for row in rows]
    for sums, group in zip((first, second), grouped, strict=True):
        assert group.ratio == pytest.approx(sums.ratio, rel=1e-7)
    assert (grouped[0].denominator == grouped[1].denominator).all()
    whole, small = (
        compare_models(
            [
                ComparedModel(name, [{"perplexity": 1.0}], [{"perplexity": sums}])
                for name, sums in zip("ab", pair, strict=True)
            ]
        )[1]
        for pair in ((first, second), grouped)
    )
    assert small["gain_over_baseline"] == pytest.approx(whole["gain_over_baseline"], rel=1e-6)
    for end in ("gain_over_baseline_low", "gain_over_baseline_high"):
        assert abs(small[end] - whole[end]) < 0.3 * (whole["gain_over_baseline_high"] - whole["gain_over_baseline_low"])
