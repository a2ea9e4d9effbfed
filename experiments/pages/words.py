"""Tables and figures of words and of maps: tables 3.9 and 4.5 of the thesis, figures 3.1, 4.3, 4.6 and 4.7."""

import math
from collections.abc import Sequence

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.statistics import INTERVAL, widened
from hotels import REVIEW
from pages.markdown import markdown, shown, spread, with_none
from pages.results import Results
from study import Row
from thesis_sixteen import WHOLE

ADAPTED = PAPER_MODELS[1:]


def tables(scotus: Results, languages: Results, hotels: Results) -> dict[str, str]:
    """Heading -> table."""
    return {
        "Table 3.9": roles(scotus),
        "Figure 3.1": units(languages),
        "Figure 4.3": ratios(hotels),
        "Figures 4.6 and 4.7": maps(hotels),
        "Table 4.5": boosted(hotels),
    }


def roles(found: Results) -> str:
    """Table 3.9: sentences of speakers in their roles."""
    told = found.first(WHOLE).get("sentences", [])
    lines = [[one["context"]["speaker"], one["context"]["role"], one["text"]] for one in told]
    return with_none(["speaker", "role", "sentence"], lines)


def units(found: Results) -> str:
    """Figure 3.1: the unit that best indicates each language, and that for Spanish after each word of mixed texts."""
    row = found.first("unadapted")
    names = sorted(row.get("indicators", ()), key=lambda one: -one["auc"])
    lines = [[one["value"], str(one["hidden_unit"]), shown(100 * one["auc"], ".1f")] for one in names]
    text = with_none(["language", "hidden unit", "AUC, %"], lines)
    if not names:
        return text
    sign = next(one["sign"] for one in names if one["value"] == "es")
    along = [[_words(one["tokens"], sign)] for one in row["along"]]
    few = row["few_examples"]
    learned = (
        f"From {few['examples']} examples of each language logistic regression tells {few_told(found)} of the "
        f"others by the state after them.\nOf these {few['chance']:.1%} are of the most frequent language.\n"
    )
    return f"{text}\n{learned}\n{markdown(['the unit for Spanish after each word'], along)}"


def few_told(found: Results) -> str:
    """How many of the texts logistic regression tells from a few: the mean over seeds; nothing without a row."""
    rows = [row["few_examples"]["accuracy"] for row in found.trainings("unadapted") if "few_examples" in row]
    return f"{spread(rows, '.1f', 100.0)} %" if rows else ""


def _words(tokens: Sequence[Row], sign: int) -> str:
    """Each word of a text of characters, and the value of a unit after it."""
    words, word = [], ""
    for place, token in enumerate(tokens):
        word += token["token"]
        if place + 1 == len(tokens) or tokens[place + 1]["token"] == " ":
            words.append(f"{word.strip()} {sign * token['value']:+.2f}")
            word = ""
    return ", ".join(words)


def ratios(found: Results) -> str:
    """Figure 4.3: by how many nats each word of a review is likelier with five stars than with one, over seeds."""
    told = {name: _ratios(found, name) for name in ADAPTED}
    words = next((one for one in told.values() if one), [])
    values = {name: [shown(value, "+.2f") for _, value in one] or [""] * len(words) for name, one in told.items()}
    lines = [[word, *(values[name][place] for name in ADAPTED)] for place, (word, _) in enumerate(words)]
    return f"“{REVIEW}”\n\n" + with_none(["word", *(f"{name}, nats" for name in ADAPTED)], lines)


def _ratios(found: Results, name: str) -> list[tuple[str, float]]:
    rows = [row["ratios"] for row in found.trainings(name) if isinstance(row.get("ratios"), list)]
    if not rows:
        return []
    means = np.mean([[value for _, value in row] for row in rows], axis=0).tolist()
    return [(word.replace("</s>", "(end)"), mean) for (word, _), mean in zip(rows[0], means, strict=True)]


def maps(found: Results) -> str:
    """Figures 4.6 and 4.7: how alike hotels are that lie together, and where the groups of the FactorCell lie."""
    header = [
        "model",
        "column",
        "hotels",
        "neighbours alike, %",
        "by chance, %",
        "hotels that are told",
        "told from embeddings, %",
        "largest, %",
    ]
    lines = [[name, column, *alike(found, name, column)] for column in ("region", "class") for name in ADAPTED]
    lines = [line for line in lines if line[2]]
    text = with_none(header, lines)
    places = [
        [column, one["group"], str(one["count"]), *(shown(one[key]) for key in ("x", "y", "wide", "high", "angle"))]
        for column in ("region", "class")
        for one in groups(found, column)
    ]
    columns = ["column", "group", "hotels", "x", "y", "half axis", "half axis across", "angle, degrees"]
    return text + (f"\n{markdown(columns, places)}" if places else "")


def groups(found: Results, column: str) -> Sequence[Row]:
    """Where the groups of a column lie among the embeddings of the first FactorCell, as ellipses."""
    own: Sequence[Row] = found.first("factorcell").get(column, {}).get("ellipses", ())
    return own


def nearer(found: Results, name: str, column: str) -> Interval | None:
    """By how much neighbours are alike more often than by chance, over hotels and trainings; None where none are known.

    As if hotels were drawn one by one.
    """
    rows = [row[column]["neighbours"] for row in found.trainings(name) if "neighbours" in row.get(column, {})]
    if not rows:
        return None
    shares, chance, hotels = np.array([row["same"] for row in rows]), rows[0]["chance"], rows[0]["values"]
    mean = float(shares.mean())
    reach = INTERVAL * math.sqrt(mean * (1 - mean) / hotels)
    return widened(Interval(mean - chance, mean - chance - reach, mean - chance + reach), shares, np.array([]))


def alike(found: Results, name: str, column: str) -> list[str]:
    """Nearest neighbours that agree, and hotels told from embeddings: of how many, the share, and that by chance."""
    rows = [row[column] for row in found.trainings(name) if "neighbours" in row.get(column, {})]
    if not rows:
        return [""] * 6

    def shares(part: str, *keys: str) -> list[str]:
        means = [shown(100 * float(np.mean([row[part][key] for row in rows])), ".1f") for key in keys]
        return [str(rows[0][part]["values"]), *means]

    return [*shares("neighbours", "same", "chance"), *shares("predicted", "accuracy", "majority")]


def boosted(found: Results) -> str:
    """Table 4.5: the words that the softmax bias of the FactorCell raises most."""
    told = found.first("factorcell").get("boosted", [])
    told = told if isinstance(told, list) else []
    lines = [[one["context"]["hotel"], one["context"]["rating"], ", ".join(one["words"])] for one in told]
    return with_none(["hotel", "rating", "words"], lines)
