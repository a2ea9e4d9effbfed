"""Elements of self-contained HTML pages: text, tables, charts as SVG and maps as images inside the file.

A page loads nothing from the network, follows the light or dark theme of the browser and is readable on a phone.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from matplotlib.figure import Figure

from factorcell.escapes import escape_hidden_lines
from factorcell.evaluation.comparison import BEST_MARK
from factorcell.finite import is_number
from factorcell.reports import charts

Row = Mapping[str, Any]

# CSS variables that replace the colours of charts, so that a dark theme can change them.
THEME = {charts.INK: "var(--ink)", charts.MUTED: "var(--muted)", charts.RULE: "var(--rule)"}
# A browser may apply the styles and show the images of the page itself; it runs no scripts and loads nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
CREDIT = "Made with factorcell, language models that adapt to context (Jaech and Ostendorf 2018)."
# Cells that count as numbers: 1,234; 72.00*; 3.5 ± 0.1; +1.2 pt [+0.9, +1.5].
NUMBER = re.compile(r"(≥ )?[-+−]?\d\S*( [±+\[p].*)?")


def document(
    title: str,
    sections: Iterable[tuple[str, str]],
    *,
    kicker: str = "factorcell",
    lead: str = "",
    cautions: Sequence[str] = (),
    credits: Sequence[str] = (CREDIT,),
) -> str:
    """Return a page of `sections`, which are pairs of a heading and HTML.

    The contents of `sections` and the `credits` are HTML; all other arguments are plain text. The `cautions`, sentences
    without a full stop about the reliability of the results, come first. Characters that hide or reverse other
    characters are shown as escapes.
    """
    head = f'<p class="kicker">{escape(kicker)}</p>\n<h1>{escape(title)}</h1>'
    if lead:
        head += f'\n<p class="lead">{escape(lead)}</p>'
    head += "".join(f'\n<p class="caution">{escape(line)}.</p>' for line in cautions)
    body = "\n".join(f"<section>\n<h2>{escape(name)}</h2>\n{content}\n</section>" for name, content in sections)
    page = Template(_asset("page.html")).substitute(
        title=escape(title),
        css=_asset("page.css").strip(),
        policy=POLICY,
        head=head,
        body=body,
        foot="\n".join(f"<p>{line}</p>" for line in credits),
    )
    return escape_hidden_lines(page)


def _asset(name: str) -> str:
    """Return the text of a file in the folder `assets` of the package."""
    return (resources.files("factorcell") / "assets" / name).read_text(encoding="utf-8")


def escape(value: object) -> str:
    """Return HTML that shows a value as text, with the special characters of HTML escaped."""
    return html.escape(str(value))


def note(text: str) -> str:
    """Return plain text as a paragraph in a muted colour, for explanations of tables and charts."""
    return f'<p class="muted">{escape(text)}</p>'


def grid(*parts: str) -> str:
    """Return HTML elements in columns where the screen is wide enough."""
    return '<div class="grid">\n' + "\n".join(parts) + "\n</div>"


def collapsible(title: str, content: str) -> str:
    """Return HTML that is hidden until the reader opens its title."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def table(rows: Sequence[Row], columns: Iterable[str] | Mapping[str, str]) -> str:
    """Return an HTML table without empty columns; `columns` may map each name to the format of its numbers.

    Columns of numbers are aligned right; numbers with `BEST_MARK` are highlighted.
    """
    formats = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, "")
    texts_by_column = {
        name: [_cell_text(row.get(name), number_format) for row in rows] for name, number_format in formats.items()
    }
    texts_by_column = {name: texts for name, texts in texts_by_column.items() if any(text != "–" for text in texts)}
    numeric = {
        name for name, texts in texts_by_column.items() if all(text == "–" or NUMBER.fullmatch(text) for text in texts)
    }
    numeric -= {next(iter(formats), "")}  # the first column names the rows, also if the names are numbers
    content = "".join(_cell("th", name.replace("_", " "), is_numeric=name in numeric) for name in texts_by_column)
    for row_texts in zip(*texts_by_column.values(), strict=True):
        named_texts = zip(texts_by_column, row_texts, strict=True)
        cells = (_cell("td", text, is_numeric=name in numeric) for name, text in named_texts)
        content += "</tr>\n<tr>" + "".join(cells)
    return f'<div class="table"><table>\n<tr>{content}</tr>\n</table></div>'


def _cell_text(value: Any, number_format: str) -> str:
    """Return the text of a value; a dash for a missing value and for a number that is not finite."""
    is_missing = value is None or value == ""
    if is_missing or (isinstance(value, float) and not is_number(value)):
        return "–"
    return value if isinstance(value, str) else format(value, number_format)


def _cell(tag: str, text: str, *, is_numeric: bool) -> str:
    """Return an HTML cell, with the CSS classes `num` and `best` if they apply."""
    if not is_numeric:
        return f"<{tag}>{escape(text)}</{tag}>"
    classes = "num best" if BEST_MARK in text else "num"
    return f'<{tag} class="{classes}">{escape(text)}</{tag}>'


def chart(figure: Figure, name: str, alt: str, caption: str = "") -> str:
    """Return a figure as SVG in the fonts and theme of the page.

    `name` must be unique on the page; `alt` (for readers who cannot see the figure) and `caption` are plain text.
    """
    content = charts.svg(figure, name)
    content = content[content.index("<svg") :]  # without the XML declaration
    content = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", content, flags=re.DOTALL)
    content = re.sub(r' (width|height)="[\d.]+pt"', "", content)  # the page determines the size
    # Ids and references to them must differ between the figures of a page.
    content = re.sub(r'\bid="', f'id="{name}-', content)
    content = content.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    content = re.sub(r"font-family: [^;\"]*", _page_font, content)
    for colour, variable in THEME.items():
        content = content.replace(colour, variable)
    content = content.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
    caption = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="chart">{content.strip()}{caption}</figure>'


def _page_font(match: re.Match[str]) -> str:
    """Return the CSS of the page's font for a matched font of matplotlib.

    Tokens below a curve stay monospaced, so that they are as wide as in the layout of matplotlib.
    """
    is_monospaced = "Mono'" in match[0]
    return "font-family: ui-monospace, monospace" if is_monospaced else "font-family: var(--text)"
