"""The page of `factorcell demo`: maps, generated names, models, learning curves and countries."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from factorcell.evaluation.classification import great_circle_distances
from factorcell.evaluation.comparison import Comparison
from factorcell.reports import charts
from factorcell.reports.maps import best_point, world_map
from factorcell.reports.page import Chart, Page, make_table

Row = Mapping[str, Any]

MAP_SCALE = 1.2  # resolution of maps, in 100 pixels per inch


def degrees(lat: float, lon: float) -> str:
    """Return a latitude and a longitude in whole degrees as text, such as 36° N 138° E."""
    north_or_south = "S" if round(lat) < 0 else "N"
    east_or_west = "W" if round(lon) < 0 else "E"
    return f"{abs(round(lat))}° {north_or_south} {abs(round(lon))}° {east_or_west}"


def demo_page(results: Row) -> str:
    """Return the page of `factorcell demo` from the results of `commands.demo.train_and_evaluate`."""
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
