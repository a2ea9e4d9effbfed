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

from factorcell.evaluation.comparison import BEST_MARK
from factorcell.io.escapes import escape_hidden_lines
from factorcell.io.finite import is_number
from factorcell.reports import charts

Row = Mapping[str, Any]

# CSS variables that replace the colours of charts, so that a dark theme can change them.
THEME = {charts.INK: "var(--ink)", charts.MUTED: "var(--muted)", charts.RULE: "var(--rule)"}
# A browser may apply the styles and show the images of the page itself; it runs no scripts and loads nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
CREDIT = "Made with factorcell, language models that adapt to context (Jaech and Ostendorf 2018)."
# Cells that count as numbers: 1,234; 72.00*; 3.5 ± 0.1; 3.2 per character; +1.2 pt [+0.9, +1.5].
NUMBER = re.compile(r"[-+−]?\d\S*( [±+\[pn].*)?")
INTERVAL = re.compile(r" (\[[^\[\]]*\].*)")  # the interval after a number, and a remark
MAX_COLUMNS = 4  # of tables that keep their columns on a phone; each row of a wider table becomes a list there
MAX_TITLE_LETTERS = 60  # most letters of the titles of a table that fits on a phone
MAX_KEY_FIGURES = 4


def document(
    title: str,
    sections: Iterable[tuple[str, str]],
    *,
    kicker: str = "factorcell",
    lead: str = "",
    figures: Sequence[tuple[str, str]] = (),
    cautions: Sequence[str] = (),
    credits: Sequence[str] = (CREDIT,),
) -> str:
    """Return a page of `sections`, which are pairs of a heading and HTML.

    The contents of `sections` and the `credits` are HTML; all other arguments are plain text. The `figures` are the
    most important results, each with a label; the first `MAX_KEY_FIGURES` are shown below the title, so that they are
    visible without scrolling. The `cautions`, sentences without a full stop about the reliability of the results,
    follow. Characters that hide or reverse other characters are shown as escapes.
    """
    head = f'<p class="kicker">{escape(kicker)}</p>\n<h1>{escape(title)}</h1>'
    if figures:
        shown = figures[:MAX_KEY_FIGURES]
        items = "".join(f"<div><dt>{escape(label)}</dt><dd>{_small_interval(text)}</dd></div>" for text, label in shown)
        head += f'\n<dl class="figures">{items}</dl>'
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

    Columns of numbers are aligned right; numbers with `BEST_MARK` are highlighted, and intervals are on a second line.
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
    titles = {name: name.replace("_", " ") for name in texts_by_column}
    classes_by_column = {name: _class_attribute("num" if name in numeric else "") for name in titles}
    content = "".join(f"<th{classes_by_column[name]}>{escape(title)}</th>" for name, title in titles.items())
    is_wide = len(titles) > MAX_COLUMNS or sum(map(len, titles.values())) > MAX_TITLE_LETTERS
    for row_texts in zip(*texts_by_column.values(), strict=True):
        named_texts = zip(texts_by_column, row_texts, strict=True)
        cells = (_cell(titles[name] if is_wide else "", text, name in numeric) for name, text in named_texts)
        content += "</tr>\n<tr>" + "".join(cells)
    classes = _class_attribute("wide" if is_wide else "")
    return f'<div class="table"><table{classes}>\n<tr>{content}</tr>\n</table></div>'


def _cell_text(value: Any, number_format: str) -> str:
    """Return the text of a value; a dash for a missing value and for a number that is not finite."""
    if value in (None, "", "-") or (isinstance(value, float) and not is_number(value)):
        return "–"
    return value if isinstance(value, str) else format(value, number_format)


def _cell(title: str, text: str, is_numeric: bool) -> str:
    """Return an HTML cell with the CSS classes `num` and `best` if they apply, and with a title for lists on phones."""
    content = _small_interval(text) if is_numeric else escape(text)
    classes = ("num best" if BEST_MARK in text else "num") if is_numeric else ""
    if title and text == "–":
        classes = f"{classes} none".strip()  # a list on a phone omits the cell
    title_attribute = f' data-title="{escape(title)}"' if title else ""
    return f"<td{_class_attribute(classes)}{title_attribute}>{content}</td>"


def _small_interval(text: str) -> str:
    """Return HTML of a number, with its interval, if there is one, in small type on a second line."""
    return INTERVAL.sub(r" <small>\1</small>", escape(text))


def _class_attribute(classes: str) -> str:
    return f' class="{classes}"' if classes else ""


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
