"""Results to one self-contained HTML page: text, tables, charts as SVG and maps as images, all inside the file.

A page asks nothing of the network, follows the reader's light or dark theme and can be read on a telephone.
"""

import base64
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from factorcell import files
from factorcell.model.run import Run
from factorcell.reports import plots
from factorcell.reports.maps import best_point, grid_of

Row = Mapping[str, Any]

THEME = {plots.INK: "var(--ink)", plots.MUTED: "var(--muted)", plots.RULE: "var(--rule)"}
MADE = "Made with factorcell, language models that adapt to context (Jaech and Ostendorf 2018)."
GEONAMES = (
    'Place names: <a href="https://www.geonames.org/">GeoNames</a>, '
    '<a href="https://creativecommons.org/licenses/by/4.0/">CC BY 4.0</a>.'
)
EARTH = (
    'Coasts and borders: made with <a href="https://www.naturalearthdata.com/">Natural Earth</a>, in the public domain.'
)


def page(
    title: str,
    sections: Iterable[tuple[str, str]],
    *,
    kicker: str = "factorcell",
    lead: str = "",
    credits: Sequence[str] = (MADE,),
) -> str:
    """The page of `sections`, pairs of a heading and HTML. All but the HTML and `credits` is plain text."""
    head = f'<p class="kicker">{_text(kicker)}</p>\n<h1>{_text(title)}</h1>'
    if lead:
        head += f'\n<p class="lead">{_text(lead)}</p>'
    body = "\n".join(f"<section>\n<h2>{_text(name)}</h2>\n{content}\n</section>" for name, content in sections)
    foot = "\n".join(f"<p>{line}</p>" for line in credits)
    return Template(_asset("page.html")).substitute(
        title=_text(title), css=_asset("page.css").strip(), head=head, body=body, foot=foot
    )


def _asset(name: str) -> str:
    return (resources.files("factorcell") / "assets" / name).read_text(encoding="utf-8")


def _text(value: object) -> str:
    return html.escape(str(value))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], best: Mapping[int, bool] | None = None) -> str:
    """An HTML table; numbers are set right. `best`: columns whose best cell is marked, True for highest.

    A cell is text, None (a dash), or a pair of a number and how it reads.
    """
    numeric = [any(_number(row[j]) is not None for row in rows) for j in range(len(header))]
    marked = set()
    for j, high in (best or {}).items():
        known = [(value, i) for i, row in enumerate(rows) if (value := _number(row[j])) is not None]
        if len(known) > 1:
            target = (max if high else min)(known)[0]
            marked |= {(i, j) for value, i in known if value == target}
    lines = ["<tr>" + "".join(_cell("th", name, numeric[j]) for j, name in enumerate(header)) + "</tr>"]
    for i, row in enumerate(rows):
        cells = (_cell("td", value, numeric[j], (i, j) in marked) for j, value in enumerate(row))
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return '<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _number(cell: Any) -> float | None:
    """The number in a cell, None where there is none."""
    value = cell[0] if isinstance(cell, tuple) else cell
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _cell(tag: str, value: Any, numeric: bool, best: bool = False) -> str:
    names = " ".join(name for name, given in (("num", numeric), ("best", best)) if given)
    shown = value[1] if isinstance(value, tuple) else value
    kind = f' class="{names}"' if names else ""
    return f"<{tag}{kind}>{'–' if shown is None else _text(shown)}</{tag}>"


def shown(value: Any, form: str) -> tuple[float, str] | None:
    """A number with how it reads, for a cell; None where there is no number."""
    return None if _number(value) is None else (float(value), format(float(value), form))


def chart(figure: Figure, name: str, alt: str, caption: str = "") -> str:
    """A figure as SVG in the page's own type and theme. `name` is unlike any other chart's."""
    content = plots.svg(figure, name)
    content = content[content.index("<svg") :]
    content = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", content, flags=re.DOTALL)
    content = re.sub(r' (width|height)="[\d.]+pt"', "", content)
    content = re.sub(r'\bid="', f'id="{name}-', content)
    content = content.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    # Letters that stand under a curve keep the width they were set in; all others are of the page.
    fonts = {True: "font-family: ui-monospace, monospace", False: "font-family: var(--text)"}
    content = re.sub(r"font-family: [^;\"]*", lambda found: fonts["Mono'" in found[0]], content)
    for colour, variable in THEME.items():
        content = content.replace(colour, variable)
    content = content.replace("<svg ", f'<svg role="img" aria-label="{_text(alt)}" ', 1)
    return f'<figure class="chart">{content.strip()}{_caption(caption)}</figure>'


def _caption(content: str) -> str:
    return f"<figcaption>{content}</figcaption>" if content else ""


def picture(figure: Figure, alt: str, caption: str = "", scale: float = 1.5) -> str:
    """A figure as PNG inside the page. `caption` is HTML."""
    data = base64.b64encode(plots.png(figure, scale)).decode()
    return (
        f'<figure class="map"><img alt="{_text(alt)}" src="data:image/png;base64,{data}">{_caption(caption)}</figure>'
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
    many were read), model (whose maps and names these are), prior ("all points of a grid") and figures_note.
    """
    title = plots.titled(results.get("model") or "factorcell")
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
    return page("Where in the world does a name belong?", sections, lead=lead, credits=(GEONAMES, EARTH, MADE))


def _demo_maps(results: Row) -> str:
    """The first map wide, the others beside each other."""
    maps: Sequence[Row] = results["maps"]
    figures = [figure for entry in maps for figure in _maps_of(entry, first=entry is maps[0])]
    cross = ", the cross where the name really is" if any(entry.get("true") for entry in maps) else ""
    note = (
        '<p class="muted">The brighter, the more probable: the probability of each point given the name, '
        f"{_text(results.get('prior') or 'all points')} being equally likely beforehand. "
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
        name = _text(entry["text"])
        by = f" ({_text(plots.titled(model))})" if model else ""
        figure = plots.world_map(grid, str(entry["text"]), true=entry.get("true"))
        alt = f"World map of where the name {entry['text']} belongs: {words}"
        pictures.append(picture(figure, alt, f"<b>{name}</b>{by}, {words}", scale=2 if first else 1.2))
    return pictures


def _places(places: Sequence[Row]) -> str:
    cards = []
    for place in places:
        samples = "".join(f"<li>{_text(sample)}</li>" for sample in place["samples"])
        where = degrees(float(place["lat"]), float(place["lon"]))
        cards.append(f'<div><h3>{_text(place["place"])}</h3><p class="muted">{where}</p><ul>{samples}</ul></div>')
    note = '<p class="muted">Drawn letter by letter from the model, given nothing but the two coordinates.</p>'
    return f'{note}\n<div class="places">\n' + "\n".join(cards) + "\n</div>"


def _demo_models(results: Row) -> str:
    header = ("model", "perplexity", "known letters only", "accuracy", "parameters", "minutes")
    rows = [
        (
            plots.titled(model.get("title") or model["name"]),
            shown(model["perplexity"], ".2f"),
            shown(model.get("perplexity_known"), ".2f"),
            shown(model.get("accuracy"), ".1%"),
            shown(model.get("parameters"), ",.0f"),
            shown(model.get("minutes"), ".1f"),
        )
        for model in results["models"]
    ]
    content = table(header, rows, best={1: False, 2: False, 3: True})
    figures = [chart(plots.model_comparison(results["models"]), "models", "Perplexity and accuracy of the models")]
    if results.get("curves"):
        figures.append(chart(plots.learning_curves(results["curves"]), "curves", "Learning curves of the models"))
    note = f"<p>{_text(results['figures_note'])}</p>" if results.get("figures_note") else ""
    return f'{note}{content}\n<div class="grid">\n' + "\n".join(figures) + "\n</div>"


def _demo_countries(results: Row) -> str:
    rows = [
        (row["country"], shown(row["accuracy"], ".1%"), shown(row["count"], ",.0f")) for row in results["countries"]
    ]
    note = (
        '<p class="muted">An unseen name goes to the country in whose centre it is most probable: '
        "Bayes' rule, and no classifier was trained.</p>"
    )
    content = table(("country", "accuracy", "names"), rows) if rows else ""
    confusion = results.get("confusion")
    if confusion:
        figure = plots.confusion_matrix(confusion["labels"], confusion["counts"])
        shades = chart(figure, "confusion", "Confusion matrix of the countries")
        content = f'<div class="grid">{content}{shades}</div>'
    return note + content


def report_page(folders: Sequence[str | Path]) -> str:
    """The HTML page about run folders: their last results, logs and options."""
    runs = []
    for folder in map(Path, folders):
        run = Run.open(folder)
        results = files.read_rows(folder / "results.jsonl")
        last = {row["kind"]: row for row in results}
        evaluated = last.get("evaluate", {})
        classified = last.get("classify")
        runs.append(
            {
                "folder": str(folder),
                "title": folder.name,
                "config": run.config.to_dict(),
                "schema": [v.describe() for v in run.schema.variables],
                "evaluation": evaluated.get("evaluation") or last.get("compare") or run.best(),
                "log": run.log(),
                "by": {name: rows for row in results if row["kind"] == "evaluate" for name, rows in row["by"].items()},
                "classification": classified and {**classified, **classified["confusion"]},
            }
        )
    return run_report(runs)


def run_report(runs: Sequence[Row]) -> str:
    """Runs side by side: numbers, options, learning curves, gains by value, confusion matrices."""
    titles = [str(run.get("title") or run["folder"]) for run in runs]
    sections = [("Side by side", _run_table(runs, titles))]
    curves = [
        {**row, "model": title}
        for run, title in zip(runs, titles, strict=True)
        for row in run.get("log") or []
        if row.get("split") == "dev"
    ]
    if curves:
        figures = [
            chart(plots.learning_curves(curves, x), f"curves-{x}", f"Learning curves over {x}")
            for x in ("minutes", "tokens")
        ]
        sections.append(("Learning curves", '<div class="grid">' + "\n".join(figures) + "</div>"))
    for index, (run, title) in enumerate(zip(runs, titles, strict=True)):
        sections += _run_details(run, title, index)
    sections.append(("Options", _options(runs, titles)))
    name = titles[0] if len(runs) == 1 else f"{len(runs)} runs side by side"
    return page(name, sections, kicker="factorcell report")


# A column of the table of runs: its title, where its number is, how it reads, whether higher is better.
COLUMNS: tuple[tuple[str, str, str, bool | None], ...] = (
    ("perplexity", "perplexity", ".2f", False),
    ("without unknown tokens", "perplexity_known", ".2f", False),
    ("targets", "targets", ",.0f", None),
    ("accuracy", "accuracy", ".1%", True),
    ("macro F1", "macro_f1", ".3f", True),
    ("AUC", "auc", ".3f", True),
    ("minutes", "minutes", ".1f", None),
)


def _run_table(runs: Sequence[Row], titles: Sequence[str]) -> str:
    """The numbers that there are, one row a run."""
    numbers = []
    for run in runs:
        seconds = max((row["seconds"] for row in run.get("log") or [] if "seconds" in row), default=None)
        minutes = None if seconds is None else seconds / 60
        numbers.append({**(run.get("classification") or {}), **(run.get("evaluation") or {}), "minutes": minutes})
    kept = [column for column in COLUMNS if any(_number(row.get(column[1])) is not None for row in numbers)]
    rows = [
        (title, str(run["folder"]), *(shown(row.get(key), form) for _, key, form, _ in kept))
        for run, title, row in zip(runs, titles, numbers, strict=True)
    ]
    best = {j: high for j, (*_, high) in enumerate(kept, start=2) if high is not None}
    return table(("run", "folder", *(column[0] for column in kept)), rows, best)


def _run_details(run: Row, title: str, index: int) -> list[tuple[str, str]]:
    """The sections of one run: what its context is, gains by value, the confusion matrix."""
    content = ""
    if run.get("schema"):
        content += "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in run["schema"]) + "</ul>"
    figures: list[str] = []
    for variable, rows in (run.get("by") or {}).items():
        gains = [row for row in rows if _number(row.get("gain")) is not None]
        if gains:
            figure = plots.gains_by_value(gains)
            alt = f"Gain over the unadapted model by {variable}"
            figures.append(chart(figure, f"gains-{index}-{len(figures)}", alt, f"by {_text(variable)}"))
        content += _folded(f"Perplexity by {variable}", rows, ("value", "count", "targets", "perplexity", "gain"))
    classes = run.get("classification") or {}
    confusion = classes.get("confusion") or classes
    target = str(classes.get("target") or "the context")
    if confusion.get("labels") and confusion.get("counts") is not None:
        figure = plots.confusion_matrix(confusion["labels"], confusion["counts"])
        figures.append(chart(figure, f"confusion-{index}", f"Confusion matrix of {target}", _text(target)))
    names = ("value", "count", "precision", "recall", "f1", "auc")
    content += _folded(f"Classification of {target} by value", classes.get("values") or [], names)
    if figures:
        content += '<div class="grid">' + "\n".join(figures) + "</div>"
    return [(title, content)] if content else []


def _folded(title: str, rows: Sequence[Row], names: Sequence[str]) -> str:
    """A table of those of the columns `names` that the rows have, folded away."""
    if not rows:
        return ""
    forms = {"count": ",.0f", "targets": ",.0f", "perplexity": ".2f", "gain": "+.1%"}
    kept = [name for name in names if any(row.get(name) is not None for row in rows)]
    cells = [
        [str(row[name]) if name == "value" else shown(row.get(name), forms.get(name, ".3f")) for name in kept]
        for row in rows
    ]
    return f"<details><summary>{_text(title)}</summary>{table(kept, cells)}</details>"


def _options(runs: Sequence[Row], titles: Sequence[str]) -> str:
    """The options that differ between the runs, and all of them folded away."""
    flat = [
        {f"{section}.{key}": value for section, options in run["config"].items() for key, value in options.items()}
        for run in runs
    ]
    keys = list(dict.fromkeys(key for options in flat for key in options))
    rows = [(key, *(_plain(options.get(key)) for options in flat)) for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    content = table(("option", *titles), differing) if differing else ""
    return content + f"<details><summary>All options</summary>{table(('option', *titles), rows)}</details>"


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else str(value)
