"""The tables about n-gram mixtures, from made-up rows."""

from typing import Any

import mixture_pages
from aggregate import Rows


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
