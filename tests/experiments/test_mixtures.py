"""The measurements of n-gram mixtures, with tiny texts: options, figures, resuming and tables."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import corpora
import mixture_pages
import mixtures
from aggregate import Rows
from factorcell import evaluate
from factorcell.evaluation.classification import classify
from factorcell.io import files
from factorcell.runs.run import Run

WORDS = {"sea": ["blue wave", "salt boat", "cold fish"], "sun": ["gold heat", "noon sand", "dry dust"]}
TINY = mixtures.DataSet("tiny", "section", ("section",), "char", judged_texts=30)


def text_table(count: int, offset: int) -> pa.Table:
    sections = ["sea" if number % 2 else "sun" for number in range(count)]
    texts = [f"{WORDS[name][number % 3]} {offset + number}" for number, name in enumerate(sections)]
    return pa.table({"text": texts, "section": sections})


def test_sets_have_the_columns_of_their_recipes() -> None:
    assert mixtures.SETS["hotels"].context == ("hotel", "rating")
    assert mixtures.SETS["places"].tokenizer == "char"
    assert [name for name, data_set in mixtures.SETS.items() if data_set.completes] == ["languages", "tweets", "places"]


@pytest.mark.slow
def test_a_set_is_trained_and_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, results = tmp_path / "data", tmp_path / "results"
    for part, count, offset in (("train", 600, 0), ("dev", 60, 1000), ("test", 60, 2000)):
        corpora.write_table(data / "tiny" / f"{part}.parquet", text_table(count, offset))
    monkeypatch.setattr(mixtures, "SETS", {"tiny": TINY})
    command = ["--data", str(data), "--out", str(tmp_path), "--results", str(results), "--minutes", "0.2"]
    results.mkdir()
    assert mixtures.main(command) == 0
    (row,) = files.read_rows(results / "mixtures.jsonl")

    run, test = Run.open(tmp_path / "mixtures" / "tiny"), tmp_path / "tables" / "tiny-test-1.parquet"
    assert run.mixture is not None
    assert row["perplexity"] == pytest.approx(evaluate(run, test).perplexity)
    neural = Run.open(run.folder, mixture=False)
    assert row["perplexity_neural"] == pytest.approx(evaluate(neural, test).perplexity)
    assert row["gain"] == pytest.approx(1 - row["perplexity"] / row["perplexity_neural"])
    judged = corpora.first(test, 30)
    metrics = classify(run, judged, "section", priors="uniform").metrics()
    assert (row["judged"], row["accuracy"]) == (30, metrics["accuracy"])
    assert row["combined_minus_linear"] == pytest.approx(row["accuracy_combined"] - row["accuracy_linear"])
    assert row["mrr_difference"] == pytest.approx(row["mrr"] - row["mrr_neural"])
    assert row["completed"] == 60

    monkeypatch.setattr(mixtures, "measure", lambda *_: pytest.fail("the set is measured again"))
    assert mixtures.main(command) == 0
    assert mixtures.main(["unknown", *command]) == 2


def test_tables_have_the_sets_in_order_and_leave_out_what_was_not_measured() -> None:
    shared: dict[str, Any] = {"seed": 0, "components": ["ngram", "cache"], "judged": 1000, "time": 1.031}
    shared |= {"perplexity_neural": 50.0, "perplexity": 40.0, "gain": 0.2, "gain_low": 0.19, "gain_high": 0.21}
    shared |= {"accuracy_neural": 0.5, "accuracy": 0.52, "accuracy_difference": 0.02}
    shared |= {"accuracy_difference_low": -0.01, "accuracy_difference_high": 0.05}
    combined = {"priors": "conditional", "accuracy_model": 0.7, "accuracy_linear": 0.8, "accuracy_combined": 0.82}
    for name, value in (("model", 0.12), ("linear", 0.02)):
        combined |= {f"combined_minus_{name}{end}": value + shift for end, shift in (("", 0), ("_low", -0.01))}
        combined[f"combined_minus_{name}_high"] = value + 0.01
    completed = {"mrr_neural": 0.04, "mrr": 0.05, "mrr_difference": 0.01, "milliseconds_neural": 3, "milliseconds": 25}
    rows = Rows([{"row": "places", **shared, **completed}, {"row": "agnews", **shared, **combined}])

    def lines(table: str) -> list[str]:
        return table.splitlines()[2:]

    news, places = lines(mixture_pages.perplexities(lambda *_: rows))
    assert news.startswith("| AG News | ngram, cache | 50.00 | 40.00 | +20.0 [+19.0, +21.0] | 0.500 | 0.520 | +0.020 [")
    assert places.startswith("| names of places (characters) |")
    (line,) = lines(mixture_pages.combinations(lambda *_: rows))
    assert line == (
        "| AG News | 1,000 | conditional | 0.700 | 0.800 | 0.820 | +0.120 [+0.110, +0.130] | +0.020 [+0.010, +0.030] |"
    )
    (line,) = lines(mixture_pages.completions(lambda *_: rows))
    assert line == "| names of places | 0.040 | 0.050 | +0.010 | 3 ms | 25 ms |"
