"""Results to one self-contained HTML page: text, tables, charts as SVG and maps as images, all inside the file.

A page asks nothing of the network, follows the reader's light or dark theme and can be read on a telephone.
"""

import base64
import html
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from matplotlib.figure import Figure

from factorcell.reports import charts
from factorcell.visible import visible_lines

Row = Mapping[str, Any]

THEME = {charts.INK: "var(--ink)", charts.MUTED: "var(--muted)", charts.RULE: "var(--rule)"}
# What a browser may do with a page: apply its own styles and show its own images. Nothing runs, nothing is fetched.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
MADE = "Made with factorcell, language models that adapt to context (Jaech and Ostendorf 2018)."


def document(
    title: str,
    sections: Iterable[tuple[str, str]],
    *,
    kicker: str = "factorcell",
    lead: str = "",
    cautions: Sequence[str] = (),
    credits: Sequence[str] = (MADE,),
) -> str:
    """The page of `sections`, pairs of a heading and HTML. All but the HTML and `credits` is plain text.

    `cautions` are lines to hold against what the page shows; they come first.

    What could turn letters round or hide among them is written out, wherever on the page it stands.
    """
    head = f'<p class="kicker">{escaped(kicker)}</p>\n<h1>{escaped(title)}</h1>'
    if lead:
        head += f'\n<p class="lead">{escaped(lead)}</p>'
    head += "".join(f'\n<p class="caution">{escaped(line)}.</p>' for line in cautions)
    body = "\n".join(f"<section>\n<h2>{escaped(name)}</h2>\n{content}\n</section>" for name, content in sections)
    foot = "\n".join(f"<p>{line}</p>" for line in credits)
    page = Template(_asset("page.html")).substitute(
        title=escaped(title), css=_asset("page.css").strip(), policy=POLICY, head=head, body=body, foot=foot
    )
    return visible_lines(page)


def _asset(name: str) -> str:
    return (resources.files("factorcell") / "assets" / name).read_text(encoding="utf-8")


def escaped(value: object) -> str:
    """Text that a page shows as it is."""
    return html.escape(str(value))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], best: Collection[tuple[int, int]] = ()) -> str:
    """An HTML table; numbers are set right. `best`: the row and column of each cell that is marked.

    A cell is text, None (a dash), or a pair of a number and how it reads.
    """
    numeric = [any(number_in(row[j]) is not None for row in rows) for j in range(len(header))]
    lines = ["<tr>" + "".join(_cell("th", name, numeric[j]) for j, name in enumerate(header)) + "</tr>"]
    for i, row in enumerate(rows):
        cells = (_cell("td", value, numeric[j], (i, j) in best) for j, value in enumerate(row))
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return '<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"


def ahead(rows: Sequence[Row], columns: Sequence[str], start: int) -> set[tuple[int, int]]:
    """The cells of `table` that are marked: where `ahead` of a row names the figure of a column, from `start` on."""
    marked = [set(row.get("ahead", ())) for row in rows]
    return {(i, j) for i, names in enumerate(marked) for j, name in enumerate(columns, start) if name in names}


def number_in(cell: Any) -> float | None:
    """The number in a cell, None where there is none."""
    value = cell[0] if isinstance(cell, tuple) else cell
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _cell(tag: str, value: Any, numeric: bool, best: bool = False) -> str:
    names = " ".join(name for name, given in (("num", numeric), ("best", best)) if given)
    formatted = value[1] if isinstance(value, tuple) else value
    kind = f' class="{names}"' if names else ""
    return f"<{tag}{kind}>{'–' if formatted is None else escaped(formatted)}</{tag}>"


def formatted(value: Any, form: str) -> tuple[float, str] | None:
    """A number with how it reads, for a cell; None where there is no number."""
    return None if number_in(value) is None else (float(value), format(float(value), form))


def chart(figure: Figure, name: str, alt: str, caption: str = "") -> str:
    """A figure as SVG in the page's own type and theme. `name` is unlike any other chart's."""
    content = charts.svg(figure, name)
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
    content = content.replace("<svg ", f'<svg role="img" aria-label="{escaped(alt)}" ', 1)
    return f'<figure class="chart">{content.strip()}{_caption(caption)}</figure>'


def _caption(content: str) -> str:
    return f"<figcaption>{content}</figcaption>" if content else ""


def picture(figure: Figure, alt: str, caption: str = "", scale: float = 1.5) -> str:
    """A figure as PNG inside the page. `caption` is HTML."""
    data = base64.b64encode(charts.png(figure, scale)).decode()
    return (
        f'<figure class="map"><img alt="{escaped(alt)}" src="data:image/png;base64,{data}">{_caption(caption)}</figure>'
    )
