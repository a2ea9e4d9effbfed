"""The figures of the papers as pictures: points and lines out of the same rows as the tables beside them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

import tacl
import tacl_trials
from factorcell.config import PAPER_MODELS
from factorcell.reports import charts
from pages import completion, overview, specificity, trials, words
from pages.results import Results, rows_of
from study import Row
from thesis_queries import LENGTHS, PLACES

FOLDER = "figures"  # beside the page
WIDTH, HEIGHT = 3.3, 2.9  # inches of a panel
LEAST, MOST = 1.35, 3  # the panels that a picture is wide
OUTLINE = 73  # points along an ellipse
RANKS, LARGEST = (1, 8, 15, 22), 31  # where the ranges of figure 4.5 begin, and where all end
CELLS = {"concat": "concatcell", "factor": "factorcell"}  # what the models of completion are called elsewhere
SETS = {"4.2": tacl_trials.WORDS, "4.4": tacl_trials.CHARACTERS, "4.5": tacl_trials.DRAWN}

Point = tuple[float, ...]  # x and y, or x, y and both ends of its interval


class Panel(NamedTuple):
    """Points of several kinds over two axes; those with an interval are joined, those of outlines are lines alone."""

    title: str
    x: str
    y: str
    points: Mapping[str, Sequence[Point]]
    by_ratio: bool = False  # of the axis x
    outlines: bool = False


class Picture(NamedTuple):
    """What stands in a file, and what is said of it to who cannot see it."""

    name: str
    told: str
    panels: Sequence[Panel]

    def __bool__(self) -> bool:
        return bool(self.panels)

    def line(self) -> str:
        """The picture in a page."""
        return f"![{self.told}]({FOLDER}/{self.file})\n"

    @property
    def file(self) -> str:
        """Its name in the folder."""
        return f"figure-{self.name}.svg"

    def svg(self) -> str:
        """The file."""
        with matplotlib.rc_context({"font.size": 8.5}):
            return charts.svg(self.figure(), self.name) + self.key()

    def key(self) -> str:
        """The last line of the file, by which it is known whether it is of these points, whatever has drawn it."""
        points = [
            (panel.title, kind, [[f"{value:.6g}" for value in point] for point in own])
            for panel in self.panels
            for kind, own in panel.points.items()
        ]
        return f"<!-- {hashlib.sha256(repr(points).encode()).hexdigest()[:16]} -->\n"

    def figure(self) -> Figure:
        """The panels side by side, in lines of as many, on white ground, below what their colours mean."""
        lines = math.ceil(len(self.panels) / MOST)
        across = math.ceil(len(self.panels) / lines)
        figure = Figure(figsize=(WIDTH * max(LEAST, across), HEIGHT * lines))
        figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - 0.1 / lines)))
        figure.add_artist(Rectangle((0, 0), 1, 1, transform=figure.transFigure, color="white", zorder=-2))
        kinds = list(dict.fromkeys(kind for panel in self.panels for kind in panel.points))
        colours = charts.colours(kinds)
        for number, panel in enumerate(self.panels, 1):
            drawn(figure.add_subplot(lines, across, number), panel, colours)
        marks = [Line2D([], [], color=colours[kind], marker="o", ls="", label=charts.titled(kind)) for kind in kinds]
        charts.legend(figure, marks, len(marks), 1.0, 0.2, 1.0)
        return figure


def drawn(axes: Axes, panel: Panel, colours: Mapping[str, str]) -> None:
    """Draw a panel."""
    for kind, points in panel.points.items():
        x, y, *ends = np.array(points, dtype=np.float64).T
        axes.plot(
            x, y, "-" if panel.outlines else "o-" if ends else "o", color=colours[kind], ms=3.5, lw=1.2, alpha=0.85
        )
        if ends:
            axes.fill_between(x, *ends, color=colours[kind], alpha=0.15, lw=0)
    if panel.by_ratio:
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


def pictures(read: overview.Read) -> dict[str, list[Picture]]:
    """Heading -> the pictures of the figures that have rows."""
    sets = {name: rows_of(read(f"tacl_trials_{name}")) for names in SETS.values() for name in names}
    made = {
        "Figures 4.2, 4.4 and 4.5": of_sizes(sets),
        "Figures 4.6 and 4.7": of_maps(read("tacl_hotels")),
        **of_completion(read("queries"), rows_of(read("queries_trials"))),
        "Figures 6.1 to 6.4": of_texts(overview.written(read)),
    }
    return {heading: [picture for picture in own if picture] for heading, own in made.items()}


def of_sizes(sets: Mapping[str, Sequence[Row]]) -> list[Picture]:
    """Figures 4.2 and 4.4, perplexity and accuracy of models of random sizes, and 4.5, perplexity by size and rank."""
    apart = {name: [_apart(one, sets[one]) for one in SETS[name] if sets[one]] for name in ("4.2", "4.4")}
    told = "Accuracy against perplexity of models of random sizes"
    ranked = [_ranked(one, sets[one]) for one in SETS["4.5"] if sets[one]]
    return [
        *(Picture(name, f"{told}: {', '.join(SETS[name])}", panels) for name, panels in apart.items()),
        Picture("4.5", "Perplexity against the weights of W, by rank", ranked),
    ]


def _apart(name: str, rows: Sequence[Row]) -> Panel:
    """Perplexity and accuracy of the trials of each class."""
    points = {
        model: [(row["perplexity_known"], 100 * row["accuracy"]) for row in trials.of_class(rows, model)]
        for model in PAPER_MODELS[1:]
    }
    return Panel(name, perplexity(name), "accuracy, %", _there(points), by_ratio=True)


def perplexity(name: str) -> str:
    """The axis of a set's perplexities."""
    return f"perplexity per {tacl.SETS[name].unit}, known targets"


def _ranked(name: str, rows: Sequence[Row]) -> Panel:
    """The size of W and the perplexity, by ranges of the rank; that of a ConcatCell is 0."""
    points = {"rank 0": [_sized(row) for row in trials.of_class(rows, "concatcell")]}
    own = [(row["config"]["model"]["rank"], row) for row in trials.of_class(rows, "factorcell")]
    for begin, end in pairwise((*RANKS, LARGEST)):
        points[f"{begin} to {end - 1}"] = [_sized(row) for rank, row in own if begin <= rank < end]
    return Panel(name, "weights of W, thousands", perplexity(name), _there(points), by_ratio=True)


def _sized(row: Row) -> Point:
    return trials.recurrent_weights(row) / 1000, row["perplexity_known"]


def of_maps(found: Results) -> list[Picture]:
    """Figures 4.6 and 4.7: where hotels of a region, or of a class, lie among the embeddings of the FactorCell."""
    pictures = []
    for name, column in (("4.6", "region"), ("4.7", "class")):
        groups = words.groups(found, column)
        panel = Panel(
            "", "first principal axis", "second", {one["group"]: outline(one) for one in groups}, outlines=True
        )
        pictures.append(Picture(name, f"Hotels by {column}, as ellipses among their embeddings", _any([panel])))
    return pictures


def outline(ellipse: Row) -> list[Point]:
    """Points along an ellipse, the first one again at its end."""
    turns, angle = np.linspace(0, 2 * np.pi, OUTLINE), np.radians(ellipse["angle"])
    along, across = ellipse["wide"] * np.cos(turns), ellipse["high"] * np.sin(turns)
    x = ellipse["x"] + along * np.cos(angle) - across * np.sin(angle)
    y = ellipse["y"] + along * np.sin(angle) + across * np.cos(angle)
    return list(zip(x.tolist(), y.tolist(), strict=True))


def of_completion(found: Results, rows: Sequence[Row]) -> dict[str, list[Picture]]:
    """Figures 5.1 to 5.3 by their headings."""
    kinds = {CELLS.get(kind, kind): own for kind, own in completion.kinds(rows).items() if kind != "all"}
    points = _there({kind: [(row["perplexity_online"], row["mrr"]) for row in own] for kind, own in kinds.items()})
    many = Panel("", "perplexity per character, all targets", "mean reciprocal rank", points, by_ratio=True)
    seen = [("texts seen before", "after", PLACES)]
    long = [(f"characters of the {name}", name, begins) for name, begins in LENGTHS.items()]
    over = "Gain in reciprocal ranks over the unadapted model"
    return {
        "Figure 5.1": [Picture("5.1", "Reciprocal rank against perplexity of models of random sizes", _any([many]))],
        "Figure 5.2": [Picture("5.2", f"{over} by the texts that were seen", _gains(found, seen))],
        "Figure 5.3": [Picture("5.3", f"{over} by characters typed and in all", _gains(found, long))],
    }


def _gains(found: Results, axes: Sequence[tuple[str, str, Sequence[int]]]) -> list[Panel]:
    """What those that learn gain over the unadapted model, in per cent, in each range."""
    panels = []
    for x, name, begins in axes:
        points: dict[str, list[Point]] = {}
        for kind in completion.LEARNING:
            gains = {begin: found.above(kind, f"mrr_{name}_{begin}", "unadapted") for begin in begins}
            points[CELLS[kind]] = [
                (begin, 100 * one.point, 100 * one.low, 100 * one.high)
                for begin, one in gains.items()
                if one is not None and one.low is not None and one.high is not None
            ]
        panels.append(Panel("", x, "gain, %", _there(points)))
    return _any(panels)


def of_texts(sets: Mapping[str, Sequence[Row]]) -> list[Picture]:
    """Figures 6.1 to 6.4: texts that fit, by the accuracy of all models, by rank and perplexity of FactorCells."""
    panels: dict[str, list[Panel]] = {}
    for name, rows in sets.items():
        drawn = specificity.DRAWN[name]
        points = {
            model: [(100 * row["accuracy"], 100 * row["specificity"]) for row in trials.of_class(rows, model)]
            for model in PAPER_MODELS[1:]
        }
        own = [(100 * row["specificity"], row) for row in trials.of_class(rows, PAPER_MODELS[-1])]
        ranks = {PAPER_MODELS[-1]: [(row["config"]["model"]["rank"], fit) for fit, row in own]}
        perplexities = {PAPER_MODELS[-1]: [(row["perplexity_known"], fit) for fit, row in own]}
        drawn_by = (drawn.by_accuracy, "accuracy, %", points), (drawn.by_rank, "rank", ranks)
        for place, axis, one in (*drawn_by, (drawn.by_rank, perplexity("hotels"), perplexities)):
            panel = Panel(drawn.fit, axis, "texts that fit, %", _there(one), by_ratio=one is perplexities)
            panels.setdefault(place, []).append(panel)
    return [Picture(place, _against(own), _any(own)) for place, own in sorted(panels.items())]


def _against(panels: Sequence[Panel]) -> str:
    """What panels of texts that fit show, in words."""
    fit = " and the ".join(dict.fromkeys(one.title for one in panels))
    against = " and the ".join(dict.fromkeys(one.x.partition(",")[0].partition(" per ")[0] for one in panels))
    return f"Texts that fit the {fit} against the {against}"


def _there(points: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """The kinds that have points."""
    return {kind: own for kind, own in points.items() if own}


def _any(panels: Sequence[Panel]) -> list[Panel]:
    """The panels with points."""
    return [panel for panel in panels if panel.points]
