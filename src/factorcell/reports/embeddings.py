"""The page of `factorcell contexts`: what a model has learned about contexts."""

from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.reports.charts import word_bars
from factorcell.reports.page import Chart, Page, Table, make_table

Row = Mapping[str, Any]

WORDS_REMARK = (
    "words: each bar is the change of the adapted softmax bias of a token, in nats; the effect of the context on the "
    "recurrent layer is not included"
)


def embeddings_page(name: str, results: Row) -> str:
    """Return the page with the results of `factorcell contexts` for the run `name`.

    `results` has variable (the name of the context variable), values (their number) and cautions (sentences). Its other
    items are empty if they were not requested: neighbours (rows) and words (entries with context, against and rows). If
    the variable was chosen automatically, other_variables has the names of the others.
    """
    page = Page(f"What {name} has learned about contexts", "factorcell contexts", figures=_key_figures(results))
    page.lead = f"{results['values']:,} values of {results['variable']}." if results["variable"] else ""
    page.add_findings(results.get("cautions", ()))
    titled_words = [(entry, f"{entry['context']} against {entry['against']}") for entry in results["words"]]
    words = [Chart(word_bars(entry["rows"]), title) for entry, title in titled_words if entry["rows"]]
    page.add("Words that a context raises and lowers", words)
    page.add("Neighbours", tables=[_neighbours(results["neighbours"])] if results["neighbours"] else [])
    page.remarks += [WORDS_REMARK] if words else []
    page.remarks += [
        f"{title}: no word with evidence in the training texts" for entry, title in titled_words if not entry["rows"]
    ]
    if others := results.get("other_variables"):
        page.remarks.append(f"{results['variable']} has the most values; --variable chooses {' or '.join(others)}")
    return page.render()


def _key_figures(results: Row) -> list[tuple[str, str]]:
    """Return the cosine of the first neighbours."""
    first = results["neighbours"][:1]
    return [(f"{row['cosine']:.2f}", f"cosine of {row['value']} and {row['near']}") for row in first]


def _neighbours(rows: Sequence[Row]) -> Table | None:
    """Return a table of the nearest neighbours of each value, the nearest first."""
    title = "nearest neighbours (cosine of the embeddings)"
    neighbours: dict[str, list[str]] = {}  # by value
    for row in rows:
        neighbours.setdefault(row["value"], []).append(f"{row['near']} ({row['cosine']:.2f})")
    lines = [{"value": value, title: ", ".join(names)} for value, names in neighbours.items()]
    return make_table(lines, ("value", title))
