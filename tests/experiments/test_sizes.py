"""The sizes of texts and models: what a table has, from the rows of two of its models."""

from typing import Any

from pages import sizes
from pages.results import Results
from tests.experiments.test_tables import by_name


def test_a_line_for_each_table_that_has_both_models() -> None:
    """Targets by batches and passes, printed sizes in brackets; a rank only where there is a FactorCell."""

    def row(name: str, adapt: list[str], **model: Any) -> dict[str, Any]:
        own = {"embedding_size": 5, "hidden_size": 6, "context_size": 7, "rank": 3, "adapt": adapt, **model}
        training = {"batch_tokens": 1000, "epochs": 2.5}
        made = {"row": name, "seed": 0, "texts": 2000, "targets": 9000, "parameters": 1234, "sums": {}}
        return {**made, "dev": {"steps": 5000}, "config": {"model": own, "training": training}}

    rows = {
        "tacl_hotels": [row("unadapted", [], context_size=9), row("factorcell", ["concat", "factor"])],
        "sparse": [row("none", []), row("low_rank_each+sparse-1", [])],
        "scotus": [row("unadapted", [])],
    }
    lines = by_name(
        sizes.table(lambda name: Results.of(rows.get(name, [])), {"TripAdvisor": {"rank": "12", "all": "9"}})
    )
    figures = ["2.0", "2,000", "9,000", "5", "6", "7"]
    assert lines["TripAdvisor: hotels"] == [*figures, "3 (12)", "2.5", "1,234", "1,234 (9)"]
    assert lines["table A.1: hotels"] == [*figures, "", "2.5", "1,234", "1,234"]
    assert len(lines) == 2
    assert sizes.table(lambda name: Results.of([]), {}).endswith("No row yet.\n")
