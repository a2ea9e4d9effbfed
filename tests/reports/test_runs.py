"""Which table a figure of a report is of, and over what a gain is."""

import re

from factorcell.model.kept_results import Gains
from factorcell.reports import runs
from tests.reports.test_report import Page, two_runs


def test_every_figure_names_its_table_and_its_baseline() -> None:
    """Also the same table over several baselines; a gain over a baseline is not taken for one over another row."""
    plain, adapted = two_runs()
    rows = [{"value": "5", "count": 30, "perplexity": 6.5, "gain": 0.1, "gain_low": 0.05, "gain_high": 0.15}]
    gain = {"gain": 0.04, "gain_low": 0.03, "gain_high": 0.05, "over": "ngram"}
    run = {
        **adapted,
        "evaluation": {**adapted["evaluation"], "table": "ht.parquet", **gain},
        "by": [Gains("ht.csv", "rating", None, rows), Gains("ht.parquet", "rating", "ngram", rows)],
        "classification": {**adapted["classification"], "table": "other.csv"},
    }
    content = runs.run_report([run])
    page = Page(content)
    assert "+4.0% [+3.0, +5.0] over ngram" in page.text
    assert "gain over hotels FactorCell" not in page.text
    for words in (
        "Perplexity of ht.csv by rating, gain over itself without context",
        "Perplexity of ht.parquet by rating, gain over ngram",
        "Classification of rating, other.csv by value",
    ):
        assert words in page.text, words
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", content)
    assert heads[:5] == ["run", "folder", "perplexity of", "accuracy of", "gain"]
    assert {"ht.parquet", "rating, other.csv"} <= set(re.findall(r"<td>([^<]*)</td>", content))
    labels = [str(attributes["aria-label"]) for attributes in page.named("svg")]
    assert {"Gain over itself without context by rating, ht.csv", "Gain over ngram by rating, ht.parquet"} <= {*labels}
    both = Page(runs.run_report([{**plain, "evaluation": {**plain["evaluation"], "table": "ht.parquet"}}, run]))
    assert "gain over hotels unadapted" in both.text
    assert "+10.1% [+10.1, +10.1]" in both.text
