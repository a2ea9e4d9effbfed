"""Section A.2 of the thesis: what penalties on how far weights move gain where a model is fine-tuned on few texts."""

from collections.abc import Sequence

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.evaluation.statistics import LEVEL, gain
from factorcell.evaluation.text_figures import TextSums
from pages.markdown import shown, with_none
from pages.results import Results
from tacl_baselines import NGRAM
from thesis_finetuning import DOMAINS, KINDS, PENALTIES, TUNED, WAYS

STILL = "nothing moved"  # where no step bettered dev
CASES = [(name, way) for name in DOMAINS for way in WAYS]


def table(found: Results) -> str:
    """A line for each domain and way: perplexities before, without and with penalties, and what the best one gains."""
    lines = []
    for name, way in CASES if TUNED in found else ():
        keys = [f"{name}, {way}, {l1}" for l1 in PENALTIES]
        beside = [f"{name}, {NGRAM}, {WAYS[way][1]}", f"{name}, before"]
        perplexities = [_perplexity(sums(found, key)) for key in (*beside, *keys)]
        gains = [gained(found, name, way, kind) for kind in KINDS]
        told = ["" if one is None else one.told(".1f", 100.0, "%") for one in gains]
        told = told if moved(found, name, way) else [STILL] * len(told)
        lines.append([name, way, str(found.first(TUNED)["finetuned"][keys[0]]["texts"]), *perplexities, *told])
    scorers = ("n-grams of these texts", "before", *(f"l1 {l1}" for l1 in PENALTIES))
    header = ["texts", "what moves", "test texts", *(f"{name}: perplexity per word, all targets" for name in scorers)]
    return with_none([*header, "gain of the penalty that suits dev best, all targets", "known targets"], lines)


def _perplexity(own: Sequence[TextSums]) -> str:
    """The geometric mean over seeds; nothing without any."""
    return shown(float(np.exp(np.mean([one.ratio for one in own]))) if own else None)


def sums(found: Results, key: str) -> list[TextSums]:
    """What the test's texts add to a figure, for each seed."""
    return [texts[key] for one in found.candidates for texts in one.texts if key in texts]


def moved(found: Results, name: str, way: str) -> bool:
    """Whether fine-tuning without a penalty bettered dev, so that a penalty had anything to hold back."""
    both = (sums(found, f"{name}, {key}") for key in ("before", f"{way}, {PENALTIES[0]}"))
    return any(float(before.ratio) != float(after.ratio) for before, after in zip(*both, strict=True))


def gained(found: Results, name: str, way: str, kind: str = "perplexity", level: float = LEVEL) -> Interval | None:
    """What the penalty above zero that suits dev best gains over none in perplexity of a `kind`; None without rows.

    A seed's run is tuned in both ways.
    """
    if TUNED not in found:
        return None
    rows = [row["finetuned"] for row in found.trainings(TUNED)]
    keys = [f"{name}, {way}, {l1}" for l1 in PENALTIES]
    best = min(keys[1:], key=lambda key: float(np.mean([row[key]["dev"] for row in rows])))
    without, tuned = (f"{key}{KINDS[kind]}" for key in (keys[0], best))
    saved = found.within(TUNED, without, tuned, level)
    return None if saved is None else gain(saved)
