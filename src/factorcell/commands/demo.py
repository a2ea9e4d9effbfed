"""Place names of the world: a character model whose context is two plain numbers, latitude and longitude.

Trains the four models of the TACL paper side by side, asks them which country a name comes from, invents names for
places, and maps where the model believes given names belong.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from factorcell import files
from factorcell.commands import terminal
from factorcell.config import PAPER_MODELS
from factorcell.evaluation import text_figures
from factorcell.evaluation.bayes_rule import Classification, text_accuracies
from factorcell.evaluation.classification import classify_points, log_likelihoods
from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.evaluation.perplexity import summary_row
from factorcell.evaluation.run_warnings import find_warnings
from factorcell.generation.generate import GenerationOptions, generate
from factorcell.model.run import Run
from factorcell.training.compare import common_plan
from factorcell.training.fit import fit
from factorcell.training.plan import Budget

Row = dict[str, Any]

SAID: dict[str, Row] = {
    "data": {"context": ["lat:number", "lon:number"], "max_tokens": 41},
    "tokenizer": {"kind": "char", "min_count": 10},
}
MINUTES = 0.9  # of a training
COUNTRIES = {
    "CN": "China", "DE": "Germany", "ES": "Spain", "FR": "France", "ID": "Indonesia", "IN": "India",
    "IT": "Italy", "MX": "Mexico", "RO": "Romania", "US": "United States",
}  # fmt: skip
PLACES = {
    "Paris": (48.9, 2.4), "Tuscany": (43.4, 11.1), "Bavaria": (48.7, 11.5), "Lapland": (67.0, 26.0),
    "Kraków": (50.1, 19.9), "Anatolia": (39.0, 34.0), "Kerala": (10.0, 76.5), "Kyoto": (35.0, 135.8),
    "Java": (-7.3, 109.5), "Yucatán": (20.5, -89.0),
}  # fmt: skip
MAPPED = (
    "Villaverde", "Shimomatsumoto", "Uithuizermeeden", "Puttalam", "Vértesszőlős", "Kaustinen", "Güneysöğüt",
    "Si Chiang Mai", "Ixcuinquitlapilco",
)  # fmt: skip
GRID = 2.5  # degrees
INHABITED = 10  # training names in the cell of a grid point that a name can be of
DRAWN = 60  # names drawn for each place, of which the first new ones are shown

Array = NDArray[np.float64]


def run_demo(given: argparse.Namespace) -> None:
    """`factorcell demo`."""
    from factorcell.reports.demo import demo_page

    results = make(given.out, epochs=given.epochs, notify=terminal.notify)
    terminal.show("")
    terminal.show_table(results["models"], ("name", "perplexity", "accuracy", "parameters", "minutes"))
    terminal.show("")
    for place in results["names"]:
        terminal.show(f"{place['place']:>14}  {', '.join(place['samples'])}")
    files.write(given.page, demo_page(results))
    terminal.notify("", f"{results['minutes']:.1f} minutes in all. Open {given.page} in a browser.")


def table(part: str) -> Path:
    """The shipped place names, `part` train or dev (GeoNames, CC BY 4.0)."""
    return Path(str(resources.files("factorcell") / "assets" / f"placenames-{part}.parquet"))


def make(folder: Path, *, epochs: float | None = None, notify: Callable[[str], None]) -> Row:
    """Train and judge the four models in `folder`; the results that `report.demo_page` shows."""
    began = time.perf_counter()
    said, budget = SAID, Budget(MINUTES)
    if epochs is not None:
        said, budget = {**SAID, "training": {"epochs": epochs}}, Budget()
    made = common_plan(table("train"), table("dev"), said, folder, budget, models=PAPER_MODELS, notify=notify)
    places = _rows("train")
    models, curves, runs, earlier = [], [], {}, 0.0
    for name in PAPER_MODELS:
        notify(f"{name} -> {folder / name}")
        earlier += _trained(folder / name)
        run = fit(table("train"), table("dev"), made.for_model(name), folder / name, resume=True, notify=notify)
        models.append(_judge(run, places))
        curves += [{**row, "model": name} for row in run.log() if row["split"] == "dev"]
        runs[name] = run
    notify("drawing the maps")
    final = runs["factorcell"]
    countries, confusion = _countries(final, places)
    return {
        "minutes": earlier + (time.perf_counter() - began) / 60,
        "machine": f"{os.cpu_count()} processor cores ({platform.machine()})",
        "texts": len(places),
        "models": [{**row, "name": row["model"], "title": row["model"]} for row in compare_models(models)],
        "cautions": find_warnings([final]),
        "curves": curves,
        "names": _invent(final, {row["text"] for row in places}),
        "maps": _maps(final, places),
        "countries": countries,
        "confusion": confusion,
        "prior": "all inhabited points of a grid",
    }


def _trained(folder: Path) -> float:
    """Minutes of training so far, those before a stop counted."""
    return max((row["seconds"] for row in files.read_rows(folder / "log.jsonl")), default=0.0) / 60


def _rows(part: str) -> list[Row]:
    rows: list[Row] = pq.read_table(table(part)).to_pylist()
    return rows


def _centres(places: list[Row]) -> dict[str, dict[str, float]]:
    """The middle of the ten countries: the median of their places."""
    centres = {}
    for country in COUNTRIES:
        points = np.array([(row["lat"], row["lon"]) for row in places if row["country"] == country])
        lat, lon = np.median(points, axis=0)
        centres[country] = {"lat": float(lat), "lon": float(lon)}
    return centres


def _judge(run: Run, places: list[Row]) -> ComparedModel:
    """Perplexity on the names held out, and how often a name goes to its country."""
    corpus = run.prepare(table("dev"))
    nats = run.nats(corpus)
    texts = text_figures.figures_from_nats(nats, corpus)
    row = {key: value for key, value in summary_row(nats, corpus).items() if key.startswith("perplexity")}
    row["parameters"] = run.model.parameter_count()
    row |= {"minutes": run.training_minutes(), "accuracy": None}
    if run.model.adapted:
        found = _classified(run, places)
        row["accuracy"], texts["accuracy"] = found.metrics()["accuracy"], text_accuracies(found)
    return ComparedModel(run.folder.name, [row], [texts])


def _classified(run: Run, places: list[Row]) -> Classification:
    """The names of the ten countries in the development table, judged by the coordinates of the countries' centres."""
    rows = [row for row in _rows("dev") if row["country"] in COUNTRIES]
    return classify_points(run, rows, _centres(places), truth=[row["country"] for row in rows], unknown="expected")


def _countries(run: Run, places: list[Row]) -> tuple[list[Row], Row]:
    result = _classified(run, places)
    rows = [
        {"country": COUNTRIES[row["value"]], "accuracy": row["recall"], "count": row["count"]}
        for row in result.metrics()["values"]
    ]
    return rows, {"labels": [COUNTRIES[name] for name in result.names], "counts": result.confusion().tolist()}


def _invent(run: Run, known: set[str]) -> list[Row]:
    """Names that the model makes up for places, none of which it has read."""
    names = []
    for number, (place, (lat, lon)) in enumerate(PLACES.items()):
        chosen = GenerationOptions(temperature=0.75, max_tokens=24, seed=number)
        rows = generate(run, [{"lat": lat, "lon": lon}], number=DRAWN, options=chosen)
        texts = dict.fromkeys(row["text"] for row in rows)
        new = [text for text in texts if text not in known and 3 < len(text) < 20]
        names.append({"place": place, "lat": lat, "lon": lon, "samples": new[:6]})
    return names


def _maps(run: Run, places: list[Row]) -> list[Row]:
    """p(coordinates given name) over the inhabited points of a grid, all of them equally likely beforehand."""
    lat, lon = np.arange(-57.5, 75.1, GRID), np.arange(-180.0, 180.0, GRID)
    inhabited = _inhabited(lat, lon, places)
    grid = [{"lat": float(lat[row]), "lon": float(lon[column])} for row, column in np.argwhere(inhabited)]
    dev = {row["text"]: row for row in _rows("dev")}
    corpus = run.prepare([{"text": text} for text in MAPPED], unknown="expected")
    likelihoods = log_likelihoods(run, corpus, grid)
    posterior = np.exp(likelihoods - likelihoods.max(1, keepdims=True))
    posterior /= posterior.sum(1, keepdims=True)
    maps = []
    for text, row in zip(MAPPED, posterior, strict=True):
        shares = np.full(inhabited.shape, np.nan)
        shares[inhabited] = row
        true = (dev[text]["lat"], dev[text]["lon"])
        maps.append(
            {"text": text, "lat": lat.tolist(), "lon": lon.tolist(), "probability": shares.tolist(), "true": true}
        )
    return maps


def _inhabited(lat: Array, lon: Array, places: list[Row]) -> NDArray[np.bool_]:
    """Which points of a grid (n, m) have names in their cell: where there are none, the model could only guess."""
    rows = np.round((np.array([row["lat"] for row in places]) - lat[0]) / GRID).astype(int).clip(0, len(lat) - 1)
    columns = np.round((np.array([row["lon"] for row in places]) - lon[0]) / GRID).astype(int) % len(lon)
    names = np.zeros((len(lat), len(lon)), dtype=np.int64)
    np.add.at(names, (rows, columns), 1)
    return names >= INHABITED
