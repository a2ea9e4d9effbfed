"""The page of `factorcell demo`."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from factorcell.evaluation.comparison import Comparison
from factorcell.evaluation.point_classification import great_circle_distances
from factorcell.reports import charts
from factorcell.reports.elements import CREDIT, chart, document, escape, grid, note, table
from factorcell.reports.maps import best_point, world_map

Row = Mapping[str, Any]

GEONAMES = (
    'Place names: <a href="https://www.geonames.org/">GeoNames</a>, '
    '<a href="https://creativecommons.org/licenses/by/4.0/">CC BY 4.0</a>.'
)
EARTH = (
    'Coasts and borders: made with <a href="https://www.naturalearthdata.com/">Natural Earth</a>, in the public domain.'
)


def degrees(lat: float, lon: float) -> str:
    """Return a latitude and a longitude in whole degrees as text, such as 36° N 138° E."""
    north_or_south = "S" if round(lat) < 0 else "N"
    east_or_west = "W" if round(lon) < 0 else "E"
    return f"{abs(round(lat))}° {north_or_south} {abs(round(lon))}° {east_or_west}"


def demo_page(results: Row) -> str:
    """Return the page of `factorcell demo`: maps, generated names, models, learning curves and countries.

    Args:
        results: The results that `commands.demo.train_and_evaluate` returns: minutes, machine, texts (the number of
            training texts), models (a `Comparison`), curves (rows of evaluations), names (generated for each place),
            maps, countries (rows of accuracies), confusion (labels and counts), prior (in words, the points that the
            maps cover) and cautions (sentences).

    Returns:
        A self-contained HTML page.
    """
    sections = [
        ("Where a name is most probable, according to FactorCell", _maps(results)),
        ("Generated names", _places(results["names"])),
        ("Four ways to use the context", _models(results)),
        ("Classification by country", _countries(results)),
    ]
    lead = (
        f"Small language models were trained on {int(results['texts']):,} place names, letter by letter, each with its "
        "latitude and longitude, without a map or a list of countries. The maps show the probability of each point of "
        "a grid given a name. "
        f"Training and evaluation took {float(results['minutes']):.1f} minutes on {results['machine']}."
    )
    return document(
        "Place names of the world",
        sections,
        lead=lead,
        figures=_key_figures(results["models"]),
        cautions=results["cautions"],
        credits=(GEONAMES, EARTH, CREDIT),
    )


def _key_figures(models: Comparison) -> list[tuple[str, str]]:
    """Return the perplexity and the accuracy of the last model, FactorCell, with those of the first."""
    first, *_, last = models
    name = charts.display_name(last["model"])
    label = f"perplexity of {name}; {charts.display_name(first['model'])}: {first['perplexity']:.2f}"
    figures = [(f"{last['perplexity']:.2f}", label)]
    if last.get("accuracy") is not None:
        label = f"of held-out names assigned to their country by {name}; majority class: {last['majority']:.1%}"
        figures.append((f"{last['accuracy']:.1%}", label))
    return figures


def _maps(results: Row) -> str:
    """Return the first map at full width and the others in a grid."""
    full_width, in_grid = 2.0, 1.2  # scales of images
    figures = [_map(entry, scale=in_grid if index else full_width) for index, entry in enumerate(results["maps"])]
    text = (
        "Brightness is the posterior probability of each point given the name, with a uniform prior over "
        f"{results['prior']}. Each map has its own scale. The ring marks the most probable point, the cross the true "
        "place."
    )
    others = '<div class="grid maps">\n' + "\n".join(figures[1:]) + "\n</div>"
    return "\n".join([note(text), *figures[:1], others])


def _map(entry: Row, scale: float) -> str:
    """Return the map of a name's posterior as an image inside the page."""
    best = best_point(entry)
    [[distance]] = great_circle_distances(np.array([best]), np.array([entry["true"]])).tolist()
    description = f"most probable near {degrees(*best)}, {distance:,.0f} km from the true place"
    data = base64.b64encode(charts.png(world_map(entry, entry["text"], entry["true"]), scale)).decode()
    name = escape(entry["text"])
    return (
        f'<figure class="map"><img alt="World map of the posterior probability of places for the name {name}: '
        f'{description}" src="data:image/png;base64,{data}">'
        f"<figcaption><b>{name}</b>, {description}</figcaption></figure>"
    )


def _places(places: Sequence[Row]) -> str:
    """Return a card for each place, with the names that the model generated for it."""
    cards = []
    for place in places:
        samples = "".join(f"<li>{escape(sample)}</li>" for sample in place["samples"])
        coordinates = note(degrees(float(place["lat"]), float(place["lon"])))
        cards.append(f"<div><h3>{escape(place['place'])}</h3>{coordinates}<ul>{samples}</ul></div>")
    text = "The model sampled each name letter by letter, given only the two coordinates."
    return note(text) + '\n<div class="places">\n' + "\n".join(cards) + "\n</div>"


def _models(results: Row) -> str:
    """Return the table of models and their learning curves."""
    comparison = results["models"]
    curves = ""
    if charts.has_curve(results["curves"]):
        figure = charts.learning_curves(results["curves"], "minutes")
        curves = chart(figure, "curves", "Learning curves of the models")
    return table(*comparison.table()) + "".join(map(note, comparison.notes())) + curves


def _countries(results: Row) -> str:
    """Return the accuracies of the classification by country and its confusion matrix."""
    text = (
        "Each held-out name is assigned to the country at whose centre the name is most probable (Bayes' rule with a "
        "uniform prior). No classifier was trained."
    )
    rows = [{**row, "names": row["count"]} for row in results["countries"]]
    content = table(rows, {"country": "", "accuracy": ".1%", "names": ","})
    figure = charts.confusion_matrix(results["confusion"]["labels"], results["confusion"]["counts"])
    return note(text) + grid(content, chart(figure, "confusion", "Confusion matrix of the countries"))
