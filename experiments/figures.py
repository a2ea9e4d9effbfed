"""The figures of the papers, drawn from the same rows as the tables."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

from aggregate import Rows
from factorcell.reports import charts
from random_sizes import of_class, recurrent_weights
from study import Row

FOLDER = "figures"  # relative to the page
WIDTH, HEIGHT = 3.3, 2.9  # inches of a panel
NARROWEST, WIDEST = 1.35, 3  # limits of the width of a picture, in panels
OUTLINE = 73  # points per ellipse
ADAPTED = ("softmaxbias", "concatcell", "factorcell")
RANKS = (1, 8, 15, 22, 31)  # bounds of the ranges in figure 4.5
TEXTS_SEEN = (0, 5, 10, 20, 50, 100)  # texts of a user seen before: starts of the ranges in figure 5.2
LENGTHS = {"prefix": (2, 4, 7, 13, 25), "query": (3, 16, 31, 46, 61)}  # characters: starts of the ranges in figure 5.3
CHARACTER_SETS = ("languages", "tweets", "places")
# kind of generated texts -> title, experiment, number of the figure by accuracy, of that by rank and perplexity
SPECIFICITY_FIGURES = {
    "ratings": ("rating", "specificity_trials_ratings", "6.1", "6.2"),
    "sampled": ("rating, sampled", "sampled_trials_hotels", "6.1", "6.2"),
    "hotels": ("class", "specificity_trials_hotels", "6.4", "6.3"),
}

Read = Callable[..., Rows]
Points = Mapping[str, Sequence[tuple[float, ...]]]  # kind -> (x, y), or (x, y, low, high)


class Panel(NamedTuple):
    """A diagram: points of several kinds over two axes."""

    title: str
    x: str
    y: str
    points: Points
    log_x: bool = False
    outlines: bool = False


class Picture(NamedTuple):
    name: str
    description: str
    panels: Sequence[Panel]

    @property
    def file(self) -> str:
        return f"figure-{self.name}.svg"

    def link(self) -> str:
        return f"![{self.description}]({FOLDER}/{self.file})\n"

    def svg(self) -> str:
        with matplotlib.rc_context({"font.size": 8.5}):
            return charts.svg(self.figure(), self.name) + self.key()

    def key(self) -> str:
        """Return the last line of the file: a digest of the points, independent of the version of matplotlib."""
        points = [
            (panel.title, kind, [[f"{value:.6g}" for value in point] for point in points_of_kind])
            for panel in self.panels
            for kind, points_of_kind in panel.points.items()
        ]
        return f"<!-- {hashlib.sha256(repr(points).encode()).hexdigest()[:16]} -->\n"

    def figure(self) -> Figure:
        lines = math.ceil(len(self.panels) / WIDEST)
        across = math.ceil(len(self.panels) / lines)
        figure = Figure(figsize=(WIDTH * max(NARROWEST, across), HEIGHT * lines), layout="constrained")
        figure.add_artist(Rectangle((0, 0), 1, 1, transform=figure.transFigure, color="white", zorder=-2))
        kinds = list(dict.fromkeys(kind for panel in self.panels for kind in panel.points))
        colours = charts.colours(kinds)
        for number, panel in enumerate(self.panels, 1):
            draw(figure.add_subplot(lines, across, number), panel, colours)
        for kind in kinds:
            figure.axes[0].plot([], [], "o", color=colours[kind], label=kind)
        charts.add_legend(figure)
        return figure


def draw(axes: Axes, panel: Panel, colours: Mapping[str, str]) -> None:
    for kind, points in panel.points.items():
        x, y, *ends = np.array(points, dtype=np.float64).T
        style = "-" if panel.outlines else "o-" if ends else "o"
        axes.plot(x, y, style, color=colours[kind], ms=3.5, lw=1.2, alpha=0.85)
        if ends:
            axes.fill_between(x, *ends, color=colours[kind], alpha=0.15, lw=0)
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(panel.x, color=charts.INK)
    axes.set_ylabel(panel.y, color=charts.INK)
    axes.set_title(panel.title, loc="left", fontsize=9, color=charts.MUTED)
    axes.grid(color=charts.RULE, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


# ---- points of the figures ----


def perplexity(name: str) -> str:
    return f"perplexity per {'character' if name in CHARACTER_SETS else 'word'} (in vocabulary)"


def known_perplexity(row: Row) -> float:
    return float(row["perplexity_known"])


def by_class(rows: Sequence[Row], x: Callable[[Row], float], y: str, models: Iterable[str] = ADAPTED) -> Points:
    """Return the points (x, 100 y) of each class of models."""
    points = {model: [(x(row), 100 * row[y]) for row in of_class(rows, model)] for model in models}
    return {model: model_points for model, model_points in points.items() if model_points}


def by_rank(rows: Sequence[Row]) -> Points:
    """Group the points (size of W in thousands, perplexity) by ranges of the rank; ConcatCells have rank 0."""

    def points(models: Iterable[Row]) -> list[tuple[float, ...]]:
        return [(recurrent_weights(row) / 1000, row["perplexity_known"]) for row in models]

    factorcells = [(row["config"]["model"]["rank"], row) for row in of_class(rows, "factorcell")]
    groups = {"rank 0": points(of_class(rows, "concatcell"))}
    for begin, end in pairwise(RANKS):
        groups[f"{begin} to {end - 1}"] = points(row for rank, row in factorcells if begin <= rank < end)
    return {kind: group for kind, group in groups.items() if group}


def outline(ellipse: Row) -> list[tuple[float, ...]]:
    """Return the points of an ellipse, the first one repeated at the end."""
    angles, rotation = np.linspace(0, 2 * np.pi, OUTLINE), np.radians(ellipse["angle"])
    along, across = ellipse["wide"] * np.cos(angles), ellipse["high"] * np.sin(angles)
    x = ellipse["x"] + along * np.cos(rotation) - across * np.sin(rotation)
    y = ellipse["y"] + along * np.sin(rotation) + across * np.cos(rotation)
    return list(zip(x.tolist(), y.tolist(), strict=True))


def gains(queries: Rows, label: str, name: str, begins: Sequence[int]) -> Panel:
    """Return a panel of gains in reciprocal rank over the unadapted model (per cent) in each range."""
    points: dict[str, list[tuple[float, ...]]] = {}
    for row, model in (("factor", "factorcell"), ("concat", "concatcell")):
        for begin in begins:
            gain = queries.relative_increase(row, f"mrr_{name}_{begin}", "unadapted")
            if gain is not None and gain.low is not None and gain.high is not None:
                points.setdefault(model, []).append((begin, 100 * gain.point, 100 * gain.low, 100 * gain.high))
    return Panel("", label, "gain, %", points)


def generated_text_rows(read: Read) -> dict[str, list[Row]]:
    """Return the rows of generated texts of models of random sizes, with the accuracy of each model as a classifier."""
    accuracy = {row["row"]: row["accuracy"] for row in read("tacl_trials_hotels").all() if "accuracy" in row}
    return {
        name: [
            {**row, "accuracy": accuracy[row["row"]]}
            for row in read(experiment).all()
            if "specificity" in row and row["row"] in accuracy
        ]
        for name, (_, experiment, _, _) in SPECIFICITY_FIGURES.items()
    }


def pictures(read: Read) -> dict[str, Picture]:
    """Return every figure that has rows, by its number in the thesis."""
    trials = {
        name: read(f"tacl_trials_{name}").all()
        for name in ("agnews", "dbpedia", "hotels", "imdb", "languages", "places")
    }
    words, characters = list(trials)[:4], list(trials)[4:]
    hotels, queries = read("tacl_hotels"), read("queries")

    def accuracy(name: str) -> Panel:
        points = by_class(trials[name], known_perplexity, "accuracy")
        return Panel(name, perplexity(name), "accuracy, %", points, log_x=True)

    def groups(column: str) -> list[Panel]:
        ellipses = hotels.first("factorcell").get(column, {}).get("ellipses", ())
        points = {ellipse["group"]: outline(ellipse) for ellipse in ellipses}
        return [Panel("", "first principal axis", "second", points, outlines=True)]

    kinds = {"unadapted": "unadapted", "concat": "concatcell", "factor": "factorcell"}
    many: dict[str, list[tuple[float, ...]]] = {}
    for row in read("queries_trials").all():
        many.setdefault(kinds[row["row"].rpartition(" ")[0]], []).append((row["perplexity_online"], row["mrr"]))
    axes = "perplexity per character, all targets", "mean reciprocal rank"
    against, over = (
        "Accuracy against perplexity of models of random sizes",
        "Gain in reciprocal rank over the unadapted model",
    )
    sizes = [
        Panel(name, "weights of W, thousands", perplexity(name), by_rank(rows), True) for name, rows in trials.items()
    ]
    every = [
        Picture("4.2", f"{against}: {', '.join(words)}", [accuracy(name) for name in words]),
        Picture("4.4", f"{against}: {', '.join(characters)}", [accuracy(name) for name in characters]),
        Picture("4.5", "Perplexity against the weights of W, by rank", sizes),
        Picture("4.6", "Hotels by region, as ellipses in the embedding space", groups("region")),
        Picture("4.7", "Hotels by class, as ellipses in the embedding space", groups("class")),
        Picture("5.1", "Reciprocal rank against perplexity of models of random sizes", [Panel("", *axes, many, True)]),
        Picture("5.2", f"{over}, by texts seen before", [gains(queries, "texts seen before", "after", TEXTS_SEEN)]),
        Picture(
            "5.3",
            f"{over}, by characters typed and of the query",
            [gains(queries, f"characters of the {name}", name, begins) for name, begins in LENGTHS.items()],
        ),
        *specificity_pictures(generated_text_rows(read)),
    ]
    drawn = [picture._replace(panels=[panel for panel in picture.panels if panel.points]) for picture in every]
    return {picture.name: picture for picture in drawn if picture.panels}


def specificity_pictures(sets: Mapping[str, Sequence[Row]]) -> list[Picture]:
    """Return figures 6.1 to 6.4: the share of texts that fit, against accuracy, rank and perplexity."""
    panels: dict[str, list[Panel]] = {}
    for name, rows in sets.items():
        title, _, accuracy, rank = SPECIFICITY_FIGURES[name]
        axes: Sequence[tuple[str, str, Callable[[Row], float], Sequence[str]]] = (
            (accuracy, "accuracy, %", lambda row: 100 * float(row["accuracy"]), ADAPTED),
            (rank, "rank", lambda row: float(row["config"]["model"]["rank"]), ["factorcell"]),
            (rank, perplexity("hotels"), known_perplexity, ["factorcell"]),
        )
        for number, label, x, models in axes:
            points = by_class(rows, x, "specificity", models)
            panels.setdefault(number, []).append(
                Panel(title, label, "texts that fit, %", points, x is known_perplexity)
            )
    against = {"6.1": "accuracy", "6.4": "accuracy"}
    return [
        Picture(number, f"Texts that fit, against {against.get(number, 'rank and perplexity')}", panels[number])
        for number in sorted(panels)
    ]
