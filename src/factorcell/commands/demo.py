"""The work of the command `demo`: the four models of the TACL paper for place names in the context of coordinates.

They classify names by country; the FactorCell model generates names for places, and gives the probability of each point
on a map given a name. A page shows the results.
"""

import base64
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import scipy.special
from numpy.typing import NDArray

from factorcell.config import PAPER_MODELS, options_by_section
from factorcell.evaluation.bayes_rule import Classification, text_accuracies
from factorcell.evaluation.classification import classify_points, great_circle_distances
from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.diagnostics import run_findings
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.evaluation.perplexity import evaluate_corpus
from factorcell.generation.generate import GenerationOptions, generate
from factorcell.io.findings import LOG
from factorcell.options.columns import Number
from factorcell.reports import charts
from factorcell.reports.maps import best_point, world_map
from factorcell.reports.page import Chart, Page, make_table
from factorcell.runs.run import Run
from factorcell.runs.saved_results import FIGURES
from factorcell.training.compare import train_models

Row = dict[str, Any]

OPTIONS: Any = {"context": [Number("lat"), Number("lon")], "max_tokens": 41, "tokenizer": "char", "min_count": 10}
TRAINING_MINUTES = 0.9  # time limit of each training
COUNTRIES = {
    "CN": "China", "DE": "Germany", "ES": "Spain", "FR": "France", "ID": "Indonesia", "IN": "India",
    "IT": "Italy", "MX": "Mexico", "RO": "Romania", "US": "United States",
}  # fmt: skip
PLACES = {
    "Paris": (48.9, 2.4), "Tuscany": (43.4, 11.1), "Bavaria": (48.7, 11.5), "Lapland": (67.0, 26.0),
    "Kraków": (50.1, 19.9), "Anatolia": (39.0, 34.0), "Kerala": (10.0, 76.5), "Kyoto": (35.0, 135.8),
    "Java": (-7.3, 109.5), "Yucatán": (20.5, -89.0),
}  # fmt: skip
MAPPED_NAMES = (
    "Villaverde", "Shimomatsumoto", "Uithuizermeeden", "Puttalam", "Vértesszőlős", "Kaustinen", "Güneysöğüt",
    "Si Chiang Mai", "Ixcuinquitlapilco",
)  # fmt: skip
GRID_STEP = 2.5  # degrees between the grid points of a map
MIN_POINT_NAMES = 10  # a map has a grid point only if it is the nearest one to at least this many training names
GENERATED_COUNT = 60  # number of names generated for each place
MAX_SHOWN_COUNT = 6  # maximum number of generated names that are shown for each place
SHOWN_LENGTHS = range(4, 20)  # lengths in characters of the generated names that are shown
MAP_SCALE = 1.2  # resolution of maps, in 100 pixels per inch

Array = NDArray[np.float64]


def table_path(part: str) -> Path:
    """Return the path of the included place names, `part` train or dev (GeoNames, CC BY 4.0)."""
    return Path(str(resources.files("factorcell") / "assets" / f"placenames-{part}.parquet"))


def train_and_evaluate(folder: Path, *, epochs: float | None = None) -> Row:
    """Train and evaluate the four models in `folder`, and return the results that `demo_page` shows."""
    start_time = time.perf_counter()
    minutes = TRAINING_MINUTES if epochs is None else None
    specified = options_by_section(OPTIONS if epochs is None else {**OPTIONS, "epochs": epochs})
    train, dev = table_path("train"), table_path("dev")
    places = _read_rows("train")
    compared_models: list[ComparedModel] = []
    curve_rows: list[Row] = []
    for model, run in train_models(train, dev, specified, folder, PAPER_MODELS, minutes=minutes, resume=True):
        evaluation = evaluate_corpus(run, run.prepare(dev))
        row, figures = {key: value for key, value in evaluation.row.items() if key in FIGURES}, evaluation.figures
        row |= {"parameters": run.model.parameter_count(), "minutes": run.training_minutes(), "accuracy": None}
        if run.model.is_adapted:
            countries = _classify(run, places)
            row |= {name: value for name, value in countries.metrics().items() if name in ("accuracy", "majority")}
            figures["accuracy"] = text_accuracies(countries)
        compared_models.append(ComparedModel(model, [row], [figures]))
        curve_rows += [{**row, "model": model} for row in run.log() if row["split"] == "dev"]
    LOG.info("computing the maps")  # with the last model, FactorCell
    labels = [COUNTRIES[code] for code in countries.names]
    values = zip(labels, countries.metrics()["values"], strict=True)
    return {
        "minutes": (time.perf_counter() - start_time) / 60,
        "texts": len(places),
        "models": compare_models(compared_models),
        "cautions": [finding.text for finding in run_findings(run)],
        "curves": curve_rows,
        "names": _generate_names(run, {row["text"] for row in places}),
        "maps": _compute_maps(run, places),
        "countries": [{"country": label, "accuracy": row["recall"], "count": row["count"]} for label, row in values],
        "confusion": {"labels": labels, "counts": countries.confusion().tolist()},
    }


def _read_rows(part: str) -> list[Row]:
    """Read the included place names, `part` train or dev: rows with text, country, lat, lon and population."""
    rows: list[Row] = pq.read_table(table_path(part)).to_pylist()
    return rows


def _classify(run: Run, places: list[Row]) -> Classification:
    """Classify the development names of the ten countries; the candidates are the median coordinates of countries."""
    centres = {}
    for country in COUNTRIES:
        coordinates = np.array([(row["lat"], row["lon"]) for row in places if row["country"] == country])
        lat, lon = np.median(coordinates, axis=0)
        centres[country] = {"lat": float(lat), "lon": float(lon)}
    rows = [row for row in _read_rows("dev") if row["country"] in COUNTRIES]
    return classify_points(run, rows, centres, truth=[row["country"] for row in rows], unknown="expected")


def _generate_names(run: Run, training_names: set[str]) -> list[Row]:
    """Generate names for each place; return the first ones of a suitable length that training did not see."""
    rows = []
    for seed, (place, (lat, lon)) in enumerate(PLACES.items()):
        settings = GenerationOptions(temperature=0.75, max_tokens=24, seed=seed)
        generated_rows = generate(run, [{"lat": lat, "lon": lon}], number=GENERATED_COUNT, options=settings)
        distinct_names = dict.fromkeys(row["text"] for row in generated_rows)
        new_names = [name for name in distinct_names if name not in training_names and len(name) in SHOWN_LENGTHS]
        rows.append({"place": place, "lat": lat, "lon": lon, "samples": new_names[:MAX_SHOWN_COUNT]})
    return rows


def _compute_maps(run: Run, places: list[Row]) -> list[Row]:
    """Compute the posterior of the inhabited grid points given each of `MAPPED_NAMES`, with a uniform prior."""
    latitudes, longitudes = np.arange(-57.5, 75.1, GRID_STEP), np.arange(-180.0, 180.0, GRID_STEP)
    is_inhabited = _inhabited_points(latitudes, longitudes, places)
    rows, columns = np.nonzero(is_inhabited)
    points = [
        {"lat": lat, "lon": lon}
        for lat, lon in zip(latitudes[rows].tolist(), longitudes[columns].tolist(), strict=True)
    ]
    dev_rows = {row["text"]: row for row in _read_rows("dev")}
    corpus = run.prepare([{"text": text} for text in MAPPED_NAMES], unknown="expected")
    maps = []
    for text, log_probs in zip(MAPPED_NAMES, log_likelihoods(run, corpus, points), strict=True):
        grid = np.full(is_inhabited.shape, np.nan)
        grid[is_inhabited] = scipy.special.softmax(log_probs)  # log p(name | point) of each point
        entry = {"lat": latitudes.tolist(), "lon": longitudes.tolist(), "probability": grid.tolist()}
        maps.append({**entry, "text": text, "true": (dev_rows[text]["lat"], dev_rows[text]["lon"])})
    return maps


def _inhabited_points(latitudes: Array, longitudes: Array, places: list[Row]) -> NDArray[np.bool_]:
    """Return a mask of a grid, latitudes by longitudes, of the points that are the nearest to enough training names."""
    place_latitudes, place_longitudes = (np.array([row[key] for row in places]) for key in ("lat", "lon"))
    lat_indices = np.round((place_latitudes - latitudes[0]) / GRID_STEP).astype(int).clip(0, len(latitudes) - 1)
    lon_indices = np.round((place_longitudes - longitudes[0]) / GRID_STEP).astype(int) % len(longitudes)
    name_counts = np.zeros((len(latitudes), len(longitudes)), dtype=np.int64)
    np.add.at(name_counts, (lat_indices, lon_indices), 1)
    return name_counts >= MIN_POINT_NAMES


def degrees(lat: float, lon: float) -> str:
    """Return a latitude and a longitude in whole degrees as text, such as 36° N 138° E."""
    north_or_south = "S" if round(lat) < 0 else "N"
    east_or_west = "W" if round(lon) < 0 else "E"
    return f"{abs(round(lat))}° {north_or_south} {abs(round(lon))}° {east_or_west}"


def demo_page(results: Row) -> str:
    """Return the page of `factorcell demo` from the results of `train_and_evaluate`."""
    page = Page("Place names of the world", figures=_key_figures(results["models"]))
    page.lead = f"Models that read {results['texts']:,} place names with their coordinates, and no map."
    page.add_findings(results["cautions"])
    has_curve = charts.has_curve(results["curves"])
    curves = Chart(charts.learning_curves(results["curves"]), "Perplexity on held-out names") if has_curve else None
    confusion = charts.confusion_matrix(results["confusion"]["labels"], results["confusion"]["counts"])
    caption = "Rows: true countries. Columns: predicted countries, in % of the row."
    page.add("Four ways to use the context", [curves, Chart(confusion, "Classification by country", caption)])
    countries = [{**row, "names": row["count"]} for row in results["countries"]]
    country_formats = {"country": "", "accuracy": ".1%", "names": ","}
    page.add("Models", tables=[make_table(*results["models"].table())])
    page.add("Countries", tables=[make_table(countries, country_formats)])
    page.remarks += [
        f"training and evaluation took {results['minutes']:.1f} minutes",
        "maps show the posterior probability of each point given the name, with a uniform prior over all inhabited "
        "points of a grid; each map has its own scale of brightness",
        "a name is assigned to the country at whose centre it is most probable (Bayes' rule with a uniform prior); no "
        "classifier was trained",
        *results["models"].notes(),
    ]
    places = [
        {"name": row["place"], "coordinates": degrees(row["lat"], row["lon"]), "samples": row["samples"]}
        for row in results["names"]
    ]
    return page.render("demo.html", maps=list(map(_map, results["maps"])), places=places)


def _key_figures(models: Comparison) -> list[tuple[str, str]]:
    first, *_, last = models
    figures = [(f"{row['perplexity']:.2f}", f"perplexity, {row['model']}") for row in (last, first)]
    if last.get("accuracy") is not None:
        figures.append((f"{last['accuracy']:.1%}", "of held-out names assigned to their country"))
        figures.append((f"{last['majority']:.1%}", "accuracy of the majority class"))
    return figures


def _map(entry: Row) -> Row:
    best = best_point(entry)
    [[distance]] = great_circle_distances(np.array([best]), np.array([entry["true"]])).tolist()
    image = charts.png(world_map(entry, entry["text"], entry["true"]), MAP_SCALE)
    return {
        "name": entry["text"],
        "caption": f"most probable near {degrees(*best)}, {distance:,.0f} km from the true place",
        "png": base64.b64encode(image).decode(),
    }
