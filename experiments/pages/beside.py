"""Our models beside the printed ones: perplexities with their unit, gains with their intervals, what else print has."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

import family
import switches
import tacl_baselines
from factorcell.bootstrap import Interval
from factorcell.choices import PROPOSALS
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.statistics import INTERVAL
from factorcell.evaluation.statistics import gain as gain_of
from measures import PRINTED, SAMPLES
from pages.markdown import NO_ROW, markdown, shown, spread, with_none
from pages.results import LEAST, OTHERS, Published, Results, accuracies, chosen, communities, gain, perplexities
from ranks import RANKS, of_rank
from thesis_queries import LATE, NOT_PRINTED, RULES
from thesis_sixteen import PARTS, WHOLE
from thesis_sixteen import sixteen as subsets
from thesis_sparse import EXPERIMENT as SPARSE
from thesis_sparse import VARIABLES as VARIED
from thesis_speakers import LEARNED
from thesis_speakers import OURS as SPEAKERS
from thesis_subreddits import ADAPTED, NEAREST, NEIGHBOURS_OF, UNADAPTED
from thesis_subreddits import ROWS as SUBREDDITS
from thesis_variables import SUBSETS, VARIABLES

BESIDE = {"mpc": "unadapted", "history": "factor", "blend": "factor"}  # figures of their own -> the row that has them
SHOWN = 9  # communities at each end of table 3.5
KNOWN, ALL = "known targets", "all targets"


def ours(unit: str = "word", counted: str = KNOWN) -> list[str]:
    """The heads of what `own` has: perplexities with their unit and the targets that they count."""
    return [f"perplexity per {unit}, {ALL}", f"perplexity per {unit}, {KNOWN}", f"gain, {counted}"]


def theirs(source: str, unit: str = "word", counted: str = KNOWN) -> list[str]:
    """The heads of what `printed_gain` has; which targets a paper counts: docs/scoring.md."""
    return [f"{source}: perplexity per {unit}, {counted}", f"gain, {counted}"]


def own(found: Results, name: str, scores: Sequence[str] = (), counted: str = KNOWN) -> list[str]:
    """What we have of a row: the columns `ours`, and some scores in per cent."""
    gained = found.gain(name, "gain_known" if counted == KNOWN else "gain")
    figures = [found.shown(name, "perplexity"), found.shown(name, "perplexity_known"), gained]
    return figures + [found.shown(name, score, ".1f", 100.0) for score in scores]


def ahead(found: Results, name: str, base: str, key: str = "accuracy") -> str:
    """By how many points a share of a row lies above that of the row `base`; nothing of that row itself."""
    above = found.difference(name, key, base) if name != base else None
    return "" if above is None else above.told(".1f", 100.0)


def printed_gain(published: Published, name: str, base: str) -> list[str]:
    """The printed perplexity of a row and its gain over the row `base`."""
    value = published[name][0]
    return [shown(value), "" if name == base else shown(gain(value, published[base][0]), ".1%")]


def four(found: Results, published: Published, unit: str = "word") -> str:
    """A set of tables 3 and 4 of the TACL paper, and what its models are held against."""
    lines = []
    for model in (*PAPER_MODELS, *tacl_baselines.ROWS):
        parameters = shown(found.row(model).get("parameters"), ",.0f")
        printed = printed_gain(published, model, "unadapted") if model in published else []
        printed += [shown(one, ".1f") for one in published.get(model, ())[1:]]
        figures = [*own(found, model, ["accuracy"]), ahead(found, model, PAPER_MODELS[-1])]
        lines.append([model, parameters, *figures, *printed, *[""] * (3 - len(printed))])
    heads = [*ours(unit), "accuracy, %", f"above {PAPER_MODELS[-1]}, points"]
    header = ["model", "parameters", *heads, *theirs("TACL", unit), "accuracy, %"]
    return markdown(header, lines) + "\n" + told(found, published, KNOWN) + printed_cities(found)


def printed_cities(found: Results) -> str:
    """How often the nearest of the cities that the paper tells apart is told; nothing of a set without cities."""
    key = f"accuracy{PRINTED}"
    shares = [f"{name} {share} %" for name in PAPER_MODELS if (share := found.shown(name, key, ".1f", 100.0))]
    if not shares:
        return ""
    _, texts = found.units(PAPER_MODELS[-1], key)
    return f"Of {texts} texts near one of the paper's six cities these are told:\n{', '.join(shares)}.\n"


def told(found: Results, published: Published, counted: str) -> str:
    """In how many pairs of rows the orders of perplexity and of accuracy are those of print."""
    orders = {
        "Perplexity": found.orders("perplexity_known" if counted == KNOWN else "perplexity", perplexities(published)),
        "Accuracy": found.orders("accuracy", accuracies(published)),
    }
    every = "".join(f"{name}: {one}" for name, one in orders.items() if one.printed)
    return every if found.candidates else NO_ROW


def sixteen(found: Results, published: Published, scores: Mapping[str, str], unit: str = "word") -> str:
    """Tables 3.3, 3.6 and 3.7. `scores` are keys of ours, in the order of the published columns, and their headings.

    All subsets, in the order of print, which lacks one of them in table 3.3.
    """
    names = [f"{score}, %" for score in scores.values()]
    judged = "accuracy" in scores  # of other scores no texts are kept
    above = ["accuracy above all four, points"] if judged else []
    header = ["×", "+", "LR", "Hash", *ours(unit, ALL), *names, *above, *theirs("thesis", unit, ALL), *names]

    def figures(name: str) -> list[str]:
        return [*own(found, name, list(scores), ALL), *([ahead(found, name, WHOLE)] if judged else [])]

    lines = []
    for name in subsets():
        marks = ["Y" if part in name.split("+") else "N" for part in PARTS]
        printed = printed_gain(published, name, "unadapted") if name in published else []
        printed += [shown(value, ".1f") for value in published.get(name, ())[1 : len(scores) + 1]]
        lines.append([*marks, *figures(name), *printed, *[""] * (2 + len(scores) - len(printed))])
    for name in tacl_baselines.ROWS:
        if name in found:
            lines.append([name, "", "", "", *figures(name), *[""] * (2 + len(scores))])
    of = published if judged else {name: row[:1] for name, row in published.items()}
    return markdown(header, lines) + "\n" + told(found, of, ALL)


def variables(found: Results, published: Published) -> str:
    """Table 3.8."""
    lines = []
    for subset in SUBSETS:
        name = "+".join(subset) or "none"
        marks = ["Y" if variable in subset else "N" for variable in VARIABLES]
        lines.append([*marks, *own(found, name, counted=ALL), *printed_gain(published, name, "none")])
    lines += [[name, "", "", *own(found, name, counted=ALL), "", ""] for name in OTHERS if name in found]
    header = ["case", "speaker", "role", *ours(counted=ALL), *theirs("thesis", counted=ALL)]
    return markdown(header, lines) + "\n" + told(found, published, ALL)


def subreddits(found: Results, published: Published) -> str:
    """Table 3.5: the communities that gain most and least, and those of the thesis."""
    if any(name not in found for name in (UNADAPTED, ADAPTED)):
        return "Not trained yet.\n"
    every = communities(found)
    if not every:
        return f"No community has {LEAST} titles.\n"
    models = [name for name in SUBREDDITS if name in found]
    order = sorted(every, key=lambda name: -every[name].gain(ADAPTED, UNADAPTED))

    def line(name: str) -> list[str]:
        one = every[name]
        printed = shown(gain(published[name][1], published[name][0]), ".1%") if name in published else ""
        means = [shown(one.perplexities[model], ".1f") for model in models]
        return [name, str(one.titles), *means, shown(one.gain(ADAPTED, UNADAPTED), ".1%"), printed]

    heads = [f"{model}: perplexity per word, {ALL}" for model in models]
    header = ["community", "titles", *heads, f"gain, {ALL}", f"thesis: gain, {ALL}"]
    ends = markdown(header, [line(name) for name in order[:SHOWN] + order[SHOWN:][-SHOWN:]])
    printed = markdown(header, [line(name) for name in order if name in published])
    gains = {model: [one.gain(model, UNADAPTED) for one in every.values()] for model in models[1:]}
    said = ",\n".join(f"{mean_of(own).told('.1f', 100.0, '%')} by {model}" for model, own in gains.items())
    told = f"Of {len(every)} communities the mean gain is\n{said};\nintervals are over communities."
    return f"{ends}\n{told}\nThose of the thesis:\n\n{printed}"


def mean_of(values: Sequence[float]) -> Interval:
    """A mean, and where it would lie of other values drawn likewise."""
    point, reach = float(np.mean(values)), INTERVAL * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Interval(point, point - reach, point + reach)


def neighbours(found: Results) -> str:
    """Table 3.4: what lies near chosen communities, with the first seed."""
    rows = [candidate.rows[0] for candidate in found.candidates]
    near: dict[str, list[str]] = next((row["nearest"] for row in rows if row["nearest"]), {})
    names = [name for name in NEIGHBOURS_OF if name in near]
    return with_none(["community", *map(str, range(1, NEAREST + 1))], [[name, *near[name]] for name in names])


def sparse(found: Results, published: Published) -> str:
    """Table A.1: each kind of bias, with the penalties that suit dev best, and all that were tried."""

    def figures(name: str) -> list[str]:
        options = SPARSE.rows.get(name, {})
        penalty = [one.partition("=")[2] for one in options.get("training", {}).get("sparse_l1", ())]
        size = str(options.get("model", {}).get("context_size", ""))
        shares = [found.shown(name, "top_3", ".1f", 100.0), not_zero(found, name, ".2f")]
        return [", ".join(penalty), size, *own(found, name), *shares]

    best = {kind: chosen(found, kind) for kind in published}
    lines = []
    for kind in published:
        top = published[kind][1] if len(published[kind]) > 1 else None
        lines.append([kind, *figures(best[kind] or kind), *printed_gain(published, kind, "none"), shown(top)])
    columns = [f"λ of {', '.join(VARIED)}", "embedding", *ours(), "top-3, %", "not zero, %"]
    every = [[candidate.name, *figures(candidate.name)] for candidate in found.candidates]
    text = markdown(["softmax bias", *columns, *theirs("thesis"), "top-3, %"], lines)
    said = sparse_told(found, published, {kind: name for kind, name in best.items() if name})
    return f"{text}\n{said}\n{markdown(['all that was trained', *columns], every)}"


def sparse_told(found: Results, published: Published, best: Mapping[str, str]) -> str:
    """Whether the orders are the printed ones, and what a sparse bias adds to top-3 beside a low-rank one."""
    if not found.candidates:
        return NO_ROW
    orders = found.orders("perplexity_known", perplexities(published), best)
    both, base = (best.get(kind, "") for kind in ("low_rank_each+sparse", "low_rank_each"))
    more = found.difference(both, "top_3", base)
    told = "" if more is None else more.told(".2f", 100.0, " points")
    added = told and f"Top-3 with a sparse bias beside a low-rank one: {told}.\n"
    return f"Perplexity: {orders}{added}"


def system(name: str) -> tuple[str, str]:
    """The row that has the reciprocal ranks of what completes, and how they are called there."""
    return (BESIDE[name], name) if name in BESIDE else (name, "mrr")


def queries(found: Results, published: Mapping[str, Published]) -> str:
    """Table 5.2: mean reciprocal ranks, over the texts of all users that no model was trained on."""
    kinds = ("seen", "unseen", "")
    lines = []
    for name in (*published["large"], *NOT_PRINTED, "history", "blend"):
        row, figure = system(name)
        own = [found.shown(row, f"{figure}_{kind}".rstrip("_"), ".3f") for kind in kinds]
        own += [found.shown(row, f"{figure}_late", ".3f"), above_unadapted(found, row, figure)]
        own.append(found.shown(name, "perplexity_online"))
        every = [published[size].get(name, [None] * 3) for size in ("small", "large")]
        lines.append([name, *own, *(shown(value, ".3f") for values in every for value in values)])
    sizes = [f"thesis, {size}: {kind or 'all'}" for size in ("small", "large") for kind in kinds]
    own = [f"after {LATE} texts", "all, above unadapted", f"perplexity per character, {ALL}"]
    header = ["model", "seen", "unseen", "all", *own, *sizes]
    printed = {name: row[-1] for name, row in published["small"].items() if name != "mpc"}
    said = f"All: {found.orders('mrr', printed)}{blended(found)}{learned(found)}" if found.candidates else NO_ROW
    return markdown(header, lines) + "\n" + said


def above_unadapted(found: Results, row: str, figure: str) -> str:
    """By how much a reciprocal rank of the trainings of a row lies above that of the unadapted model."""
    if row == "unadapted":
        above = found.within(row, figure, "mrr") if figure != "mrr" else None
    else:
        above = found.difference(row, figure, "unadapted", "mrr")
    return "" if above is None else above.told(".3f")


def blended(found: Results) -> str:
    """What the blend brings to the FactorCell."""
    more = found.within("factor", "blend", "mrr")
    return "" if more is None else f"\nThe blend beside the FactorCell alone: {more.told('.4f')}.\n"


def learned(found: Results) -> str:
    """What learning users brings on dev to the FactorCell, by the printed rule and by ours."""
    shown = {how: found.shown("factor", f"dev_{how}") for how in ("none", *RULES)}
    if not all(shown.values()):
        return ""
    told = ", ".join(f"{value} by {how}" for how, value in shown.items() if how != "none")
    nothing = f"perplexity {shown['none']} where nothing is learned"
    return f"\nThe FactorCell on the users of dev: {nothing},\n{told}.\n"


def mechanisms(found: Results) -> str:
    """Every mechanism that was trained, and what it gains over the row that it is held against."""
    lines = []
    for name in (name for name in family.EXPERIMENT.rows if name in found):
        against = "" if name == family.UNADAPTED else family.HELD_AGAINST.get(name, family.UNADAPTED)
        more = found.lower(name, "perplexity_known", against) if against in found else None
        figures = [found.shown(name, key) for key in ("perplexity", "perplexity_known")]
        told = "" if more is None else more.told(".1f", 100.0, "%")
        shares = [found.shown(name, "accuracy", ".1f", 100.0), ahead(found, name, family.FACTORCELL)]
        lines.append(
            [name, against, *figures, told, *shares, not_zero(found, name), found.shown(name, "minutes", ".1f")]
        )
    shares = ["accuracy, %", f"above {family.FACTORCELL}, points"]
    return with_none(["model", "beside", *ours(), *shares, "not zero, %", "minutes"], lines)


def not_zero(found: Results, name: str, form: str = ".1f") -> str:
    """The share of the coefficients of a sparse bias that are not zero, as `shown` has it; nothing without one."""
    rows = [row["sparse_bias"] for row in found.trainings(name) if "sparse_bias" in row]
    shares = [sum(one["nonzero"] for one in row) / sum(one["coefficients"] for one in row) for row in rows]
    return spread(shares, form, 100.0)


def beside(name: str) -> tuple[str, ...]:
    """The rows that a part as printed is held against; ours against none."""
    return ("",) if name == switches.OURS else switches.HELD_AGAINST.get(name, (switches.OURS,))


def switched(found: Results, unit: str) -> str:
    """Parts as printed beside ours: what each gains over the row that it is held against."""
    lines = []
    pairs = [(one.name, base) for one in found.candidates for base in beside(one.name)]
    for name, against in pairs:
        told = found.lower(name, "perplexity_known", against) if against in found else None
        apart = found.difference(name, "accuracy", against) if against in found else None
        figures = [found.shown(name, "perplexity_known"), "" if told is None else told.told(".1f", 100.0, "%")]
        figures += [found.shown(name, "accuracy", ".1f", 100.0), "" if apart is None else apart.told(".1f", 100.0)]
        lines.append([name, against, *figures])
    header = [
        "model",
        "beside",
        f"perplexity per {unit}, {KNOWN}",
        f"gain, {KNOWN}",
        "accuracy, %",
        "above, points",
    ]
    drawn = {how: found.shown(switches.OURS, f"accuracy_{how}", ".1f", 100.0) for how in PROPOSALS}
    said = ", ".join(f"{value}% by {how}" for how, value in drawn.items() if value)
    sampled = f"\nAccuracy of ours by {SAMPLES:,} samples of the vocabulary: {said}.\n" if said else ""
    return with_none(header, lines) + sampled


def restrained(found: Results) -> str:
    """What a context that is restrained in another way gains over the FactorCell of a set, on dev and on the test."""
    base = PAPER_MODELS[-1]
    lines = []
    for name in (one.name for one in found.candidates):
        told = [found.lower(name, "perplexity_known", base), found.difference(name, "accuracy", base)]
        ends = ["" if one is None or name == base else one.told(".1f", 100.0) for one in told]
        shares = found.shown(name, "accuracy", ".1f", 100.0)
        lines.append([name, shown(found.dev(name)), found.shown(name, "perplexity_known"), ends[0], shares, ends[1]])
    perplexity = f"perplexity per word, {KNOWN}"
    heads = [f"dev: {perplexity}", f"test: {perplexity}", f"gain in per cent, {KNOWN}", "accuracy, %", "above, points"]
    return with_none(["model", *heads], lines)


def ranked(every: Mapping[str, Results]) -> str:
    """FactorCells of the two ranks on each set, and how much training text there is, in all and of a value."""
    low, high = map(of_rank, RANKS)
    lines = []
    for name, found in every.items():
        about = next((row for rank in (low, high) for row in found.trainings(rank) if "values" in row), None)
        if about is None:
            continue
        told = [found.lower(high, "perplexity_known", low), found.difference(high, "accuracy", low)]
        sizes = [f"{about[key]:,.0f}" for key in ("trained_targets", "values", "texts_per_value")]
        figures = [found.shown(rank, "perplexity_known") for rank in (low, high)]
        lines.append([name, *sizes, *figures, *("" if one is None else one.told(".1f", 100.0) for one in told)])
    heads = [f"{rank}: perplexity per unit, {KNOWN}" for rank in (low, high)]
    heads += [f"gain of {high} in per cent, {KNOWN}", "accuracy above, points"]
    return with_none(["set", "training targets", "values", "texts of a value", *heads], lines)


def speakers(found: Results) -> str:
    """What speakers cost that are learned by each rule, and what no layer over their vector brings."""
    still, *_ = LEARNED
    lines = []
    for name, how in itertools.product((one.name for one in found.candidates), LEARNED):
        key = f"said_{how}"
        learned = found.within(name, f"said_{still}", key) if how != still else None
        told = "" if learned is None else gain_of(learned).told(".1f", 100.0, "%")
        layer = found.lower(name, key, SPEAKERS) if name != SPEAKERS else None
        lines.append([name, how, found.shown(name, key), told, "" if layer is None else layer.told(".1f", 100.0, "%")])
    heads = [f"perplexity per word, {ALL}", f"gain over learning nothing, {ALL}", f"gain over {SPEAKERS}, {ALL}"]
    return with_none(["model", "learned by", *heads], lines)
