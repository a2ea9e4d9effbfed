"""The tables of the documentation about n-gram mixtures and about the combination with a linear classifier."""

from aggregate import interval
from columns import markdown
from factorcell.bootstrap import Interval
from figures import Read
from study import Row

NAMES = {
    "agnews": "AG News",
    "dbpedia": "DBpedia",
    "hotels": "hotel reviews",
    "hotels13": "long hotel reviews",
    "imdb": "film reviews (IMDB)",
    "clothing": "clothing reviews",
    "languages": "nine languages (characters)",
    "tweets": "tweets with places (characters)",
    "places": "names of places (characters)",
}


def rows_of(read: Read) -> list[Row]:
    """Return the rows of the data sets in the order of `NAMES`."""
    rows = {row["row"]: row for row in read("mixtures").all()}
    return [rows[name] for name in NAMES if name in rows]


def difference(row: Row, key: str, form: str = ".3f", scale: float = 1.0) -> str:
    """Format a difference of a row with its interval."""
    return interval(Interval.from_row(row, key), form, scale)


def perplexities(read: Read) -> str:
    """Format perplexity, accuracy with a uniform prior and reading time, without and with the mixture."""
    lines = [
        [
            NAMES[row["row"]],
            ", ".join(row["components"]),
            f"{row['perplexity_neural']:.2f}",
            f"{row['perplexity']:.2f}",
            difference(row, "gain", ".1f", 100.0),
            f"{row['accuracy_neural']:.3f}",
            f"{row['accuracy']:.3f}",
            difference(row, "accuracy_difference"),
            f"{row['time']:.2f}",
        ]
        for row in rows_of(read)
    ]
    accuracies = ("accuracy, neural", "accuracy, mixture", "difference")
    return markdown(["data", "components besides `neural`", "neural", "mixture", "gain, %", *accuracies, "time"], lines)


def combinations(read: Read) -> str:
    """Format the accuracies of the model, of the linear classifier and of their combination."""
    lines = [
        [
            NAMES[row["row"]],
            f"{row['judged']:,}",
            row["priors"],
            *(f"{row[f'accuracy_{name}']:.3f}" for name in ("model", "linear", "combined")),
            difference(row, "combined_minus_model"),
            difference(row, "combined_minus_linear"),
        ]
        for row in rows_of(read)
        if "accuracy_combined" in row
    ]
    differences = ("combination minus model", "combination minus linear")
    return markdown(["data", "texts", "priors", "model", "linear", "combination", *differences], lines)


def completions(read: Read) -> str:
    """Format the mean reciprocal rank and the time of completion, without and with the mixture."""
    lines = [
        [
            NAMES[row["row"]].removesuffix(" (characters)"),
            f"{row['mrr_neural']:.3f}",
            f"{row['mrr']:.3f}",
            difference(row, "mrr_difference"),
            *(f"{row[f'milliseconds{suffix}']:.0f} ms" for suffix in ("_neural", "")),
        ]
        for row in rows_of(read)
        if "mrr" in row
    ]
    times = ("time, neural model", "time, mixture")
    return markdown(["texts", "MRR, neural model", "MRR, mixture", "difference", *times], lines)
