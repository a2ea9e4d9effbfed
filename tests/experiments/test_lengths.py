"""Texts of free length, chosen by the sum of log probability or by its mean: who writes them, and what is told."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import lengths
import tacl
from factorcell.data.schema import RARE, ContextSchema, Variable
from tests.small import make_run


@pytest.mark.parametrize("name", lengths.EXPERIMENTS)
def test_factorcells_of_other_tables_write_them(name: str) -> None:
    """Three trainings with the same options; their texts may end anywhere between two lengths."""
    made, of = lengths.EXPERIMENTS[name], tacl.EXPERIMENTS[name]
    assert made.trainings() == of.trainings(["factorcell"])
    assert (made.runs, made.recipe, made.rows["factorcell"]) == (of.name, of.recipe, of.rows["factorcell"])
    options = lengths.OPTIONS[name]
    assert options.method == "stochastic"
    assert options.min_tokens < options.max_tokens


def test_texts_are_written_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the sum and by the mean, each into its file, for the same contexts; figures of both are kept apart."""
    run = make_run(tmp_path / "run", ("stars",), adapt=("concat",), output_bias=("low_rank",))
    run.schema = ContextSchema((Variable("rating", "category", (RARE, "1", "5"), (1, 9, 9)),))
    words = {"1": "the sea is cold", "5": "sun and sand"}
    rows = [{"text": words[value], "rating": value} for value in "15" for _ in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    seen = list[Any]()

    def write(run: Any, contexts: Any, options: Any, path: Path) -> list[dict[str, Any]]:
        seen.append((contexts, options.length_penalty, path.name))
        texts = words if options.length_penalty else dict.fromkeys(words, words["5"])
        return [{"text": texts[one["rating"]], "context": one} for one in contexts]

    monkeypatch.setattr(lengths, "write", write)
    monkeypatch.setitem(lengths.TEXTS, "imdb", 4)
    found = lengths.measure(run, dict.fromkeys(("train", "test"), tmp_path / "t.parquet"), "imdb")
    assert [(penalty, name) for _, penalty, name in seen] == [(0.0, "run-sum-4.jsonl"), (1.0, "run-mean-4.jsonl")]
    assert seen[0][0] == seen[1][0] == [{"rating": value} for value in "1155"]
    assert (found.row["specificity_sum"], found.row["specificity_mean"]) == (0.5, 1.0)
    assert found.row["tokens_sum"] < found.row["tokens_mean"]
    assert found.row["real"] == {"accuracy": 1.0, "deviation": 0.0}
    assert found.figures["specificity_sum"].above.tolist() == [0, 0, 1, 1]
    assert found.figures["specificity_mean"].key == found.figures["specificity_sum"].key
