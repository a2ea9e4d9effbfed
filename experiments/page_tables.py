"""Tables of other pages: exposure of canaries, advice, and rescoring."""

from typing import Any

import numpy as np

from aggregate import Rows, interval, spread
from columns import KNOWN, SETS, SPECS, gathered, lower, markdown, mean, points, system, table
from factorcell.evaluation.exposure import READERS, SOURCES, uniformity
from factorcell.evaluation.statistics import rank_correlation
from figures import Read
from study import Row


def exposure(read: Read) -> str:
    """The exposure of canaries by training options, in bits, with the probability of such ranks by chance."""
    alternatives, times = 1000, 3

    def chance(bits: Any) -> str:
        return f"{uniformity((alternatives + 1) / 2**bits, alternatives):.3f}"

    lines = []
    for name, own in sorted(read("exposure").trainings.items(), key=lambda item: item[0] != "as it is"):
        every = [np.array([canary[1:] for canary in row["canaries"]]) for row in own]
        repeated = np.array([canary[1:] for row in own for canary in row["canaries"] if canary[0] == times])
        line = [name, spread([row["perplexity"] for row in own]), spread([row["audited"]["mrr"] for row in own], ".3f")]
        for place in range(len(READERS)):
            line += [spread([float(bits[:, place].mean()) for bits in every]), chance(np.concatenate(every)[:, place])]
        for place in range(2):
            line += [f"{repeated[:, place].mean():.2f}", chance(repeated[:, place])]
        groups = [next(one for one in row["exposure"] if one["times"] == "all") for row in own]
        lines.append([*line, str(sum(int(max(one.get(source, 0) for source in SOURCES)) for one in groups))])
    heads = [
        head for reader in (*READERS, *(f"{reader}, {times} ×" for reader in READERS[:2])) for head in (reader, "p")
    ]
    return markdown(["options", "perplexity per character, all targets", "MRR", *heads, "suggested"], lines)


def advice(read: Read) -> str:
    """What the advice expects of each context, next to what trained models gain."""
    expected: dict[str, Row] = {row["row"]: row["advice"] for row in read("advice").all()}
    spec = next(spec for spec in SPECS["table"] if spec["name"] == "Table 3.8")
    scotus = gathered(read, spec["from"])
    gains = [(name, "", read(f"tacl_{name}").lower("factorcell", KNOWN, "unadapted")) for name in SETS]
    for column, row in (("case", "case"), ("speaker", "speaker"), ("role", "role"), ("", "case+speaker+role")):
        gains.append(("scotus", column, scotus.lower(row, KNOWN, "none")))
    gains = [line for line in gains if line[0] in expected and line[2] is not None]
    lines, keys = [], ("least", "expected", "most")
    for name, column, gained in gains:
        columns = column or ", ".join(key for key in expected[name] if key)
        lines.append([name, columns, *(f"{100 * expected[name][column][key]:.1f}" for key in keys), interval(gained)])
    both = [(expected[name][column]["expected"], gained.point) for name, column, gained in gains if gained]
    r = rank_correlation(*zip(*both, strict=True))
    text = f"Rank correlation of expected and measured gains: {interval(r, '.2f', 1.0)} (n = {r['n']}).\n"
    return f"{markdown(['texts', 'columns', *(f'{key}, %' for key in keys), 'measured gain, %'], lines)}\n{text}"


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
