"""Tables of rescoring and of online learning of speakers."""

from aggregate import Rows, interval
from columns import lower, markdown, mean, points, system, table
from factorcell.evaluation.statistics import gain
from figures import Read

SYSTEMS = {  # what rescores -> the row that has its figures, and the ending of their names
    "first pass (bigram)": ("first pass", ""),
    "own scores, reweighted": ("reweighted", ""),
    "n-grams": ("n-grams", ""),
    "unadapted": ("unadapted", ""),
    "FactorCell without its context": ("factorcell", "_bare"),
    "FactorCell in context": ("factorcell", ""),
    "FactorCell, learning the speaker": ("factorcell", "_learned"),
    "oracle": ("oracle", ""),
}
SPEAKERS = {"": "all", "_new": "new speakers", "_known": "known speakers"}


def rescorers(read: Read) -> Rows:
    """Every system as a row of its own."""
    every = Rows([])
    for label, (source, ending) in SYSTEMS.items():
        keys = {f"{key}{kind}": f"{key}{ending}{kind}" for key in ("wer", "likelihood", "said") for kind in SPEAKERS}
        every |= system(read("rescoring"), source, label, keys)
    return every


def word_errors(read: Read) -> str:
    """Word error rates of all speakers, of new and of known ones."""
    columns = [mean(f"wer{kind}", f"{who}, %", ".2f", 100.0) for kind, who in SPEAKERS.items()]
    columns.append(points("wer", "unadapted", "above unadapted, points", form=".2f"))
    columns.append(mean("likelihood", "by likelihood, %", ".2f", 100.0))
    return table(rescorers(read), columns, head="system")


def said(read: Read) -> str:
    """Perplexities of what was said, and their gains."""
    columns = [mean(f"said{kind}", who) for kind, who in SPEAKERS.items()]
    columns += [lower(f"said{kind}", "unadapted", f"{who}: gain, %") for kind, who in SPEAKERS.items()]
    return table(rescorers(read), columns, ["n-grams", *list(SYSTEMS)[3:7]], "system")


def speakers(read: Read) -> str:
    """What users cost who are learned by each rule, with and without a layer over their vector."""
    rows, lines = read("speakers"), []
    for name in ("ours", "no joint layer"):
        for rule in ("none", "adadelta", "adadelta with a bound", "adagrad"):
            saved = rows.within(name, "said_none", f"said_{rule}") if rule != "none" else None
            layer = interval(rows.lower(name, f"said_{rule}", "ours")) if name != "ours" else ""
            cost = mean(f"said_{rule}", "").cell(rows, name)
            lines.append([name, rule, cost, interval(gain(saved)) if saved else "", layer])
    return markdown(["model", "rule", "perplexity", "gain over no learning, %", "gain over ours, %"], lines)
