"""The page of `factorcell demo`."""

from collections.abc import Mapping, Sequence

import numpy as np

from factorcell.reports import charts
from factorcell.reports.elements import MADE, Row, ahead, chart, document, escaped, formatted, picture, table
from factorcell.reports.maps import best_point, grid_of

GEONAMES = (
    'Place names: <a href="https://www.geonames.org/">GeoNames</a>, '
    '<a href="https://creativecommons.org/licenses/by/4.0/">CC BY 4.0</a>.'
)


EARTH = (
    'Coasts and borders: made with <a href="https://www.naturalearthdata.com/">Natural Earth</a>, in the public domain.'
)


def degrees(lat: float, lon: float) -> str:
    """A point as people write it: 36° N 138° E."""
    south, west = round(lat) < 0, round(lon) < 0
    return f"{abs(round(lat))}° {'S' if south else 'N'} {abs(round(lon))}° {'W' if west else 'E'}"


def kilometres(first: Sequence[float], second: Sequence[float]) -> float:
    """Along the great circle between two points (lat, lon in degrees)."""
    lat1, lon1, lat2, lon2 = np.radians([*first, *second])
    chord = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    return float(2 * 6371 * np.arcsin(np.sqrt(min(1.0, float(chord)))))


def demo_page(results: Row) -> str:
    """The page of `factorcell demo`: maps, invented names, the models, their learning curves, the countries.

    `results`: minutes, machine, models, curves, names, maps, countries, confusion; and, if known, texts (how
    many were read), cautions, model (whose maps and names these are), prior ("all points of a grid") and figures_note.
    """
    title = charts.titled(results.get("model") or "factorcell")
    sections = [
        (f"Where {title} believes a name belongs", _demo_maps(results)),
        (
            "Names it invented for ten places" if len(results["names"]) == 10 else "Names it invented",
            _places(results["names"]),
        ),
        ("Four ways to use the context", _demo_models(results)),
        ("Which country?", _demo_countries(results)),
    ]
    texts = f"{int(results['texts']):,} place names" if results.get("texts") else "place names of the world"
    lead = (
        f"Small language models read {texts}, letter by letter, each with its latitude and longitude. "
        "No map and no list of countries was shown to them. Asked how well a name fits every point of a grid, "
        "they draw the world back. "
        f"All of this took {float(results['minutes']):.1f} minutes on {results['machine']}."
    )
    return document(
        "Where in the world does a name belong?",
        sections,
        lead=lead,
        cautions=results.get("cautions", ()),
        credits=(GEONAMES, EARTH, MADE),
    )


def _demo_maps(results: Row) -> str:
    """The first map wide, the others beside each other."""
    maps: Sequence[Row] = results["maps"]
    figures = [figure for entry in maps for figure in _maps_of(entry, first=entry is maps[0])]
    cross = ", the cross where the name really is" if any(entry.get("true") for entry in maps) else ""
    note = (
        '<p class="muted">The brighter, the more probable: the probability of each point given the name, '
        f"{escaped(results.get('prior') or 'all points')} being equally likely beforehand. "
        "Each map has a scale of its own. "
        f"The ring is the most probable point{cross}.</p>"
    )
    return f'{note}\n{figures[0]}\n<div class="grid maps">\n' + "\n".join(figures[1:]) + "\n</div>" if figures else note


def _maps_of(entry: Row, first: bool) -> list[str]:
    """One picture, or one for each model, of a name's posterior."""
    posteriors = entry.get("posteriors") or {"": entry}
    pictures = []
    for model, content in posteriors.items():
        grid = content if isinstance(content, Mapping) else grid_of(content)
        best = best_point(grid)
        words = f"most probable near {degrees(*best)}"
        if entry.get("true"):
            words += f", {kilometres(best, entry['true']):,.0f} km from the true place"
        name = escaped(entry["text"])
        by = f" ({escaped(charts.titled(model))})" if model else ""
        figure = charts.world_map(grid, str(entry["text"]), true=entry.get("true"))
        alt = f"World map of where the name {entry['text']} belongs: {words}"
        pictures.append(picture(figure, alt, f"<b>{name}</b>{by}, {words}", scale=2 if first else 1.2))
    return pictures


def _places(places: Sequence[Row]) -> str:
    cards = []
    for place in places:
        samples = "".join(f"<li>{escaped(sample)}</li>" for sample in place["samples"])
        where = degrees(float(place["lat"]), float(place["lon"]))
        cards.append(f'<div><h3>{escaped(place["place"])}</h3><p class="muted">{where}</p><ul>{samples}</ul></div>')
    note = '<p class="muted">Drawn letter by letter from the model, given nothing but the two coordinates.</p>'
    return f'{note}\n<div class="places">\n' + "\n".join(cards) + "\n</div>"


def _demo_models(results: Row) -> str:
    header = ("model", "perplexity", "known letters only", "accuracy", "parameters", "minutes")
    rows = [
        (
            charts.titled(model.get("title") or model["name"]),
            formatted(model["perplexity"], ".2f"),
            formatted(model.get("perplexity_known"), ".2f"),
            formatted(model.get("accuracy"), ".1%"),
            formatted(model.get("parameters"), ",.0f"),
            formatted(model.get("minutes"), ".1f"),
        )
        for model in results["models"]
    ]
    best = ahead(results["models"], ("perplexity", "perplexity_known", "accuracy"), start=1)
    content = table(header, rows, best)
    figures = [chart(charts.model_comparison(results["models"]), "models", "Perplexity and accuracy of the models")]
    if results.get("curves"):
        figures.append(chart(charts.learning_curves(results["curves"]), "curves", "Learning curves of the models"))
    note = f"<p>{escaped(results['figures_note'])}</p>" if results.get("figures_note") else ""
    return f'{note}{content}\n<div class="grid">\n' + "\n".join(figures) + "\n</div>"


def _demo_countries(results: Row) -> str:
    rows = [
        (row["country"], formatted(row["accuracy"], ".1%"), formatted(row["count"], ",.0f"))
        for row in results["countries"]
    ]
    note = (
        '<p class="muted">An unseen name goes to the country in whose centre it is most probable: '
        "Bayes' rule, and no classifier was trained.</p>"
    )
    content = table(("country", "accuracy", "names"), rows) if rows else ""
    confusion = results.get("confusion")
    if confusion:
        figure = charts.confusion_matrix(confusion["labels"], confusion["counts"])
        shades = chart(figure, "confusion", "Confusion matrix of the countries")
        content = f'<div class="grid">{content}{shades}</div>'
    return note + content
