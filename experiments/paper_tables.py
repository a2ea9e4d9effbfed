"""Tables that need code: ranges, correlations, communities, exposure and advice."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import figures
import random_sizes
from aggregate import Rows, interval, number, relative_gain, spread
from columns import (
    ALL_ADAPTATIONS,
    KNOWN_PERPLEXITY,
    MODELS,
    PAPER,
    SETS,
    SPECS,
    gather_rows,
    group,
    markdown,
    mean,
    paper,
    system,
    table,
)
from correlations import NORMAL_QUANTILE, rank_correlation
from factorcell.bootstrap import Interval
from factorcell.evaluation.text_figures import gain_from_nats
from figures import Read
from memorization import COMPLETION_SOURCES, READERS, uniformity_p_value
from random_sizes import CHANGES, correlation_over_models, of_class
from study import Row


def completion_systems(read: Read) -> Rows:
    rows = read("queries")
    keys = {
        name: {f"mrr{kind}": f"{name}{kind}" for kind in ("", "_seen", "_unseen", "_late")} for name in SYSTEM_SOURCES
    }
    every = rows
    for name, source in SYSTEM_SOURCES.items():
        every |= system(rows, source, name, keys[name])
    return every


SYSTEM_SOURCES = {"mpc": "unadapted", "history": "factor", "blend": "factor"}  # system -> the row that has its figures
SYSTEMS = ("mpc", "history", "unadapted", "concat", "factor", "factor, no joint layer", "prefix", "ngram", "blend")


def table_5_2(read: Read) -> str:
    """Table 5.2: mean reciprocal ranks of completions for unseen users."""
    published = [paper(f"completion.{size}", 2, f"all, {size}", ".3f") for size in ("small", "large")]
    columns = [*group("completed"), *published]
    return table(completion_systems(read), columns, SYSTEMS, "system") + online_learning_note(read)


def online_learning_note(read: Read) -> str:
    """Report the gain of the blend over the FactorCell, and the perplexity of each rule on the tuning users."""
    rows = read("queries")
    rules = {
        "none": "without online learning",
        "adadelta": "with Adadelta",
        "adadelta with a bound": "with Adadelta and a limit on the length of user vectors",
        "adagrad": "with Adagrad",
    }
    lines = [f"- {description}: {mean(f'dev_{rule}', '').cell(rows, 'factor')}" for rule, description in rules.items()]
    perplexities = "\n".join(lines)
    more = interval(rows.difference_within("factor", "blend", "mrr"), ".4f", 1.0)
    text = f"\nThe mean reciprocal rank of the blend minus that of the FactorCell alone is {more}.\n"
    return f"{text}Perplexity of the FactorCell on the tuning users:\n\n{perplexities}\n" if more else ""


def range_labels(begins: Sequence[int]) -> dict[int, str]:
    return {**{begin: f"{begin} to {end - 1}" for begin, end in pairwise(begins)}, begins[-1]: f"{begins[-1]} or more"}


def completion_gains(read: Read, names: Mapping[str, Sequence[int]], head: str) -> str:
    """Figures 5.2 and 5.3: reciprocal ranks of the unadapted model and gains of the others, in each range."""
    pairs = (("concat", "unadapted"), ("factor", "unadapted"), ("factor", "concat"))
    rows, lines = read("queries"), []
    for name, begins in names.items():
        for begin, span in range_labels(begins).items():
            key = f"mrr_{name}_{begin}"
            gains = [interval(rows.relative_increase(model, key, base)) for model, base in pairs]
            unit = "" if name == "after" else f" of a {name}"
            lines.append([f"{span}{unit}", mean(key, "", ".3f").cell(rows, "unadapted"), *gains])
    return markdown([head, "unadapted", *(f"gain of {model} over {base}, %" for model, base in pairs)], lines)


def neighbours(read: Read) -> str:
    """Table 3.4: the nearest neighbours of communities, with the first seed."""
    near: dict[str, list[str]] = next((row["nearest"] for row in read("subreddits").all() if row["nearest"]), {})
    return markdown(["community", "1", "2", "3", "4"], [[name, *names] for name, names in near.items()])


def communities(read: Read) -> str:
    """Table 3.5: perplexities of communities with the largest and smallest gains, and of those in the paper."""
    models, shown, min_titles = ("unadapted", "concat+low_rank+hash", "prefix", "ngram"), 5, 50
    rows, values = read("subreddits"), PAPER["subreddits"]
    titles = {
        community["value"]: community["count"]
        for community in rows.first(models[0])["by"]
        if community["count"] >= min_titles
    }
    tables = {
        name: [{community["value"]: community["perplexity"] for community in row["by"]} for row in rows.trainings[name]]
        for name in models
    }
    means = {
        model: {
            name: float(np.exp(np.mean([np.log(community[name]) for community in tables_of_model]))) for name in titles
        }
        for model, tables_of_model in tables.items()
    }
    gains = {
        model: {name: relative_gain(means[model][name], means[models[0]][name]) for name in titles} for model in models
    }
    order = sorted(titles, key=lambda name: -gains[models[1]][name])

    def line(name: str) -> list[str]:
        paper_gain = number(100 * relative_gain(values[name][1], values[name][0]), ".1f") if name in values else ""
        perplexities = [number(means[model][name], ".1f") for model in models]
        return [name, *perplexities, number(100 * gains[models[1]][name], ".1f"), paper_gain]

    header = ["community", *(f"{model}: perplexity" for model in models), "gain, %", "paper: gain, %"]
    selected = [name for name in order if name in {*order[:shown], *order[-shown:], *values}]
    average = [f"{model} {interval(mean_interval([*gains[model].values()]))}" for model in models[1:]]
    common = [name for name in order if name in values]
    paper_gains = [relative_gain(values[name][1], values[name][0]) for name in common]
    r = rank_correlation([gains[models[1]][name] for name in common], paper_gains)
    return (
        f"{markdown(header, [line(name) for name in selected])}\n"
        f"Mean gain of {len(titles)} communities, %:\n{', '.join(average)}.\n"
        f"Rank correlation with the gains of the paper: {interval(r, '.2f', 1.0)} (n = {r['n']}).\n"
    )


def mean_interval(values: Sequence[float]) -> Interval:
    point, half_width = float(np.mean(values)), NORMAL_QUANTILE * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Interval(point, point - half_width, point + half_width)


def trials(read: Read) -> str:
    """Figures 4.2 and 4.4: correlation of log perplexity and accuracy within kinds of biases; figure 4.5: effects."""
    correlations, changes = [], []
    for name in ("agnews", "dbpedia", "hotels", "imdb", "languages", "places"):
        rows = read(f"tacl_trials_{name}").all()
        correlations.append(
            [name, *(interval(_bias_correlation(of_class(rows, model)), ".2f", 1.0) for model in MODELS[1:])]
        )
        effects = random_sizes.effects(rows)
        changes.append([name, *(interval(pair) for change in CHANGES for pair in effects.get(change, (None, None)))])
    effect_header = ["data set", *(f"{change}: {head}" for change in CHANGES for head in ("gain, %", "points"))]
    return f"{markdown(['correlation', *MODELS[1:]], correlations)}\n{markdown(effect_header, changes)}"


def _bias_correlation(models: Sequence[Row]) -> Mapping[str, Any]:
    logs, accuracies = zip(*((float(np.log(row[KNOWN_PERPLEXITY])), row["accuracy"]) for row in models), strict=True)
    groups = [random_sizes.has_one_hot_bias(row) for row in models]
    return random_sizes.correlation_within_groups(logs, accuracies, groups)


def embedding_groups(read: Read) -> str:
    """Figures 4.6 and 4.7: how often the nearest hotel has the same region or class, and how well it is predicted."""
    rows, lines = read("tacl_hotels"), []
    for column in ("region", "class"):
        for name in MODELS[1:]:
            cells = [row[column] for row in rows.trainings[name]]
            keys = (
                ("neighbours", "same"),
                ("neighbours", "chance"),
                ("predicted", "accuracy"),
                ("predicted", "majority"),
            )
            shares = [f"{100 * float(np.mean([row[part][key] for row in cells])):.1f}" for part, key in keys]
            lines.append([name, column, str(cells[0]["neighbours"]["values"]), *shares])
    heads = ["nearest neighbour has the same, %", "by chance, %", "predicted, %", "majority class, %"]
    return markdown(["model", "column", "hotels", *heads], lines)


def rank_against_perplexity(read: Read) -> str:
    """Figure 5.1: correlation of log perplexity and mean reciprocal rank."""
    every = read("queries_trials").all()
    lines = []
    for kind in ("unadapted", "concat", "factor", "all"):
        models = [row for row in every if kind in ("all", random_sizes.model_of(row))]
        logs = [float(np.log(row["perplexity_online"])) for row in models]
        r = correlation_over_models(logs, [row["mrr"] for row in models], models)
        best = max(models, key=lambda row: float(row["mrr"]))
        lines.append(
            [kind, str(len(models)), interval(r, ".2f", 1.0), f"{best['mrr']:.3f}", f"{best['perplexity_online']:.2f}"]
        )
    return markdown(["model", "models", "correlation", "best rank", "its perplexity"], lines)


def sampled(read: Read, name: str) -> str:
    rows = read(f"sampled_{name}")
    return table(rows, group("judged"), MODELS) + real_texts_line(rows)


def real_texts_line(rows: Rows, *more: str) -> str:
    """Return the line of real texts, from the training that has the most figures of them."""
    known: list[Row] = [row.get("real", {}) for row in rows.all()]
    judged = max(known, key=len, default={})
    cells = [
        f"{100 * judged['accuracy']:.1f}",
        "",
        f"{judged['deviation']:.2f}",
        f"{100 * judged['copied_5']:.1f}",
        *more,
    ]
    return f"| {' | '.join(['real texts', *cells])} |\n"


def specificity(read: Read, name: str, paper_set: str) -> str:
    """Tables 6.4 and 6.5: the share of generated and real texts that fit, with the figures of the thesis."""
    rows, (fit, deviation) = read(f"specificity_{name}", f"specificity_prefix_{name}"), PAPER["real"][paper_set]
    heads = {"fit, %": ".1f", "deviation": ".2f", "perplexity": ".2f"}
    columns = [paper(f"generation.{paper_set}", place, head, form) for place, (head, form) in enumerate(heads.items())]
    columns = [*group("judged"), mean(KNOWN_PERPLEXITY, "perplexity"), *columns]
    return table(rows, columns, [*MODELS, "prefix"]) + real_texts_line(rows, "", f"{fit:.1f}", f"{deviation:.2f}", "")


def correlations(read: Read) -> str:
    """Figures 6.1 to 6.4: correlation of the share of texts that fit with accuracy, rank and log perplexity."""
    lines = []
    for name, rows in figures.generated_text_rows(read).items():
        title, _, accuracy, rank = figures.SPECIFICITY_FIGURES[name]
        factorcells = of_class(rows, "factorcell")
        values: dict[str, list[float]] = {
            "rank": [row["config"]["model"]["rank"] for row in factorcells],
            "log perplexity": [float(np.log(row[KNOWN_PERPLEXITY])) for row in factorcells],
        }
        r = correlation_over_models([row["accuracy"] for row in rows], [row["specificity"] for row in rows], rows)
        lines.append([accuracy, title, "accuracy", str(len(rows)), interval(r, ".2f", 1.0)])
        for what, column in values.items():
            r = correlation_over_models(column, [row["specificity"] for row in factorcells], factorcells)
            lines.append([rank, title, what, str(len(factorcells)), interval(r, ".2f", 1.0)])
    return markdown(["figure", "judged by", "correlated with", "models", "correlation"], lines)


def finetuned(read: Read) -> str:
    """Section A.2: perplexities before fine-tuning, without and with penalties, and the gain of the best penalty."""
    rows, lines, penalties = read("finetuned"), [], ("0", "1e-5", "1e-4")
    trainings = [row["finetuned"] for row in rows.trainings["none"]]
    for domain in ("a word", "a region", "films", "films of a kind"):
        for way, texts in (("all", 1000), ("all, 100 texts", 100), ("bias", 1000)):
            keys = [f"{domain}, {way}, {penalty}" for penalty in penalties]
            best = min(keys[1:], key=lambda key: float(np.mean([row[key]["dev"] for row in trainings])))
            ratios = [
                [sums.ratio for sums in rows.sums(name, key)]
                for name, key in (
                    ("ngram", f"{domain}, ngram, {texts}"),
                    ("none", f"{domain}, before"),
                    *(("none", key) for key in keys),
                )
            ]
            difference = rows.difference_within("none", keys[0], best)
            is_changed = ratios[1] != ratios[2]
            cells = [f"{np.exp(np.mean(values)):.2f}" for values in ratios]
            gain_text = interval(gain_from_nats(difference)) if is_changed and difference else "no change"
            lines.append([domain, way, str(trainings[0][keys[0]]["texts"]), *cells, gain_text])
    heads = ["n-grams", "before", *(f"penalty {penalty}" for penalty in penalties), "gain of the best penalty, %"]
    return markdown(["texts", "fine-tuned", "test texts", *heads], lines)


def sizes(read: Read) -> str:
    models = {f"tacl_{name}": ("unadapted", "factorcell") for name in SETS}
    models |= dict.fromkeys(("reddit_titles", "commonvoice9", "scotus"), ("unadapted", ALL_ADAPTATIONS))
    models |= {"subreddits": ("unadapted", "concat+low_rank+hash"), "queries": ("unadapted", "factor")}
    lines = []
    for name, (plain, adapted) in {**models, "sparse": ("none", "low_rank_each-2")}.items():
        first, last = read(name).first(plain), read(name).first(adapted)
        training, model = first["config"]["training"], {**last["config"]["backbone"], **last["config"]["model"]}
        targets = first["dev"]["steps"] * training["batch_tokens"] / training["epochs"] / 1e6
        shape = [str(model[f"{part}_size"]) for part in ("embedding", "hidden", "context")]
        shape.append(str(model["rank"]) if "factor" in model["adapt"] else "")
        counts = [f"{first['texts']:,}", f"{first['targets']:,}", *shape, f"{training['epochs']:g}"]
        lines.append([name, f"{targets:.1f}", *counts, *(f"{row['parameters']:,}" for row in (first, last))])
    heads = (
        "training targets, millions; test texts; test targets; embedding; hidden units; context vector; rank; passes"
    )
    return markdown(["experiment", *heads.split("; "), "parameters, unadapted", "parameters, adapted"], lines)


def exposure(read: Read) -> str:
    """Format the exposure of canaries in bits by training options, with the probability of such ranks by chance."""
    alternatives, times = 1000, 3

    def chance_probability(bits: Any) -> str:
        return f"{uniformity_p_value((alternatives + 1) / 2**bits, alternatives):.3f}"

    lines = []
    for name, trainings in sorted(read("exposure").trainings.items(), key=lambda item: item[0] != "as it is"):
        every = [np.array([canary[1:] for canary in row["canaries"]]) for row in trainings]
        repeated = np.array([canary[1:] for row in trainings for canary in row["canaries"] if canary[0] == times])
        line = [name, spread([row["perplexity"] for row in trainings])]
        for place in range(len(READERS)):
            line += [
                spread([float(bits[:, place].mean()) for bits in every]),
                chance_probability(np.concatenate(every)[:, place]),
            ]
        for place in range(2):
            line += [f"{repeated[:, place].mean():.2f}", chance_probability(repeated[:, place])]
        groups = [next(group_row for group_row in row["exposure"] if group_row["times"] == "all") for row in trainings]
        lines.append(
            [
                *line,
                str(sum(int(max(group_row.get(source, 0) for source in COMPLETION_SOURCES)) for group_row in groups)),
            ]
        )
    heads = [
        head for reader in (*READERS, *(f"{reader}, {times} ×" for reader in READERS[:2])) for head in (reader, "p")
    ]
    return markdown(["options", "perplexity per character, all targets", *heads, "suggested"], lines)


def advice(read: Read) -> str:
    """Format the estimated gain of each context next to the measured gain of trained models."""
    expected: dict[str, Row] = {row["row"]: row["advice"] for row in read("advice").all()}
    spec = next(spec for spec in SPECS["table"] if spec["name"] == "Table 3.8")
    scotus = gather_rows(read, spec["from"])
    gains = [(name, "", read(f"tacl_{name}").gain("factorcell", KNOWN_PERPLEXITY, "unadapted")) for name in SETS]
    for column, row in (("case", "case"), ("speaker", "speaker"), ("role", "role"), ("", "case+speaker+role")):
        gains.append(("scotus", column, scotus.gain(row, KNOWN_PERPLEXITY, "none")))
    gains = [line for line in gains if line[0] in expected and line[2] is not None]
    lines = []
    for name, column, gain_text in gains:
        columns = column or ", ".join(key for key in expected[name] if key)
        lines.append([name, columns, f"{100 * expected[name][column]:.1f}", interval(gain_text)])
    common = [(expected[name][column], gain_text.point) for name, column, gain_text in gains if gain_text]
    r = rank_correlation(*zip(*common, strict=True))
    text = f"Rank correlation of expected and measured gains: {interval(r, '.2f', 1.0)} (n = {r['n']}).\n"
    return f"{markdown(['texts', 'columns', 'expected gain, %', 'measured gain, %'], lines)}\n{text}"
