"""The page of `factorcell demo`."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from factorcell.evaluation.classification import great_circle_distances
from factorcell.evaluation.comparison import BEST_MARK
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
FIGURES = {"perplexity": ".2f", "perplexity_known": ".2f", "accuracy": ".1%", "parameters": ",.0f", "minutes": ".1f"}


def degrees(lat: float, lon: float) -> str:
    """Return a point as text: 36° N 138° E."""
    south, west = round(lat) < 0, round(lon) < 0
    return f"{abs(round(lat))}° {'S' if south else 'N'} {abs(round(lon))}° {'W' if west else 'E'}"


def demo_page(results: Row) -> str:
    """Return the page of `factorcell demo`: maps, invented names, the models, their learning curves, the countries.

    `results`: minutes, machine, texts (how many were read), models, curves, names, maps, countries, confusion, prior
    (over which points the maps are), cautions.
    """
    sections = [
        ("Where FactorCell believes a name belongs", _maps(results)),
        ("Names it invented", _places(results["names"])),
        ("Four ways to use the context", _models(results)),
        ("Which country?", _countries(results)),
    ]
    lead = (
        f"Small language models read {int(results['texts']):,} place names, letter by letter, each with its latitude "
        "and longitude. No map and no list of countries was shown to them. The maps show how well a name fits every "
        "point of a grid. "
        f"All of this took {float(results['minutes']):.1f} minutes on {results['machine']}."
    )
    return document(
        "Where in the world does a name belong?",
        sections,
        lead=lead,
        cautions=results["cautions"],
        credits=(GEONAMES, EARTH, CREDIT),
    )


def _maps(results: Row) -> str:
    """Return the first map wide, the others side by side."""
    figures = [_map(entry, scale=1.2 if place else 2.0) for place, entry in enumerate(results["maps"])]
    text = (
        "The brighter, the more probable: the probability of each point given the name, with equal prior probabilities "
        f"of {results['prior']}. Each map has its own scale. The ring is the most probable point, the cross the true "
        "place."
    )
    others = '<div class="grid maps">\n' + "\n".join(figures[1:]) + "\n</div>"
    return "\n".join([note(text), *figures[:1], others])


def _map(entry: Row, scale: float) -> str:
    """Return the map of a name's posterior as an image inside the page."""
    best = best_point(entry)
    away = float(great_circle_distances(np.array([best]), np.array([entry["true"]]))[0, 0])
    words = f"most probable near {degrees(*best)}, {away:,.0f} km from the true place"
    data = base64.b64encode(charts.png(world_map(entry, entry["text"], entry["true"]), scale)).decode()
    name = escape(entry["text"])
    return (
        f'<figure class="map"><img alt="World map of where the name {name} belongs: {words}" '
        f'src="data:image/png;base64,{data}"><figcaption><b>{name}</b>, {words}</figcaption></figure>'
    )


def _places(places: Sequence[Row]) -> str:
    cards = []
    for place in places:
        samples = "".join(f"<li>{escape(sample)}</li>" for sample in place["samples"])
        where = note(degrees(float(place["lat"]), float(place["lon"])))
        cards.append(f"<div><h3>{escape(place['place'])}</h3>{where}<ul>{samples}</ul></div>")
    text = "Drawn letter by letter from the model, which was given the two coordinates only."
    return note(text) + '\n<div class="places">\n' + "\n".join(cards) + "\n</div>"


def _models(results: Row) -> str:
    rows = [{**row, "model": charts.display_name(row["name"])} for row in results["models"]]
    for row in rows:
        for name in set(row.get("ahead", ())) & FIGURES.keys():
            row[name] = format(row[name], FIGURES[name]) + BEST_MARK
    curves = chart(charts.learning_curves(results["curves"], "minutes"), "curves", "Learning curves of the models")
    mark = note(f"{BEST_MARK}: better than all other models by more than the 95 % interval over texts.")
    return table(rows, {"model": "", **FIGURES}) + mark + curves


def _countries(results: Row) -> str:
    text = (
        "An unseen name is assigned to the country in whose centre it is most probable, by Bayes' rule; no classifier "
        "was trained."
    )
    rows = [{**row, "names": row["count"]} for row in results["countries"]]
    content = table(rows, {"country": "", "accuracy": ".1%", "names": ","})
    figure = charts.confusion_matrix(results["confusion"]["labels"], results["confusion"]["counts"])
    return note(text) + grid(content, chart(figure, "confusion", "Confusion matrix of the countries"))
