"""Self-contained HTML pages of key figures, charts, tables and remarks, rendered from the templates of this folder.

A page loads nothing from the network, follows the light or dark theme of the browser and is readable on a phone. Jinja
escapes the special characters of HTML in all values, and characters that hide or reverse others are shown as escapes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from factorcell.io.output import escape_hidden_lines, is_number
from factorcell.reports import charts
from factorcell.runs.saved_results import BEST_MARK

Row = Mapping[str, Any]

# CSS variables that replace the colours of charts, so that a dark theme can change them.
THEME = {charts.INK: "var(--ink)", charts.MUTED: "var(--muted)", charts.RULE: "var(--rule)"}
MISSING = "–"
# Cells that count as numbers: 1,234; 72.00*; 3.5 ± 0.1; 3.2 per character; +1.2 pt [+0.9, +1.5].
NUMBER = re.compile(rf"[-+−]?\d\S*( [±+\[pn].*)?|{MISSING}")
INTERVAL = re.compile(r"(.*?) (\[[^\[\]]*\].*)")  # a number, and its interval with a remark
MAX_COLUMNS = 3  # of tables that keep their columns on a phone; each row of a wider table becomes a list there


@dataclass(frozen=True)
class Chart:
    """A figure of matplotlib with a title above it and, if necessary, a sentence that explains its marks."""

    figure: Figure
    title: str
    caption: str = ""

    def svg(self, name: str) -> str:
        """Return the figure as SVG in the fonts and theme of the page; `name` must be unique there."""
        content = charts.svg(self.figure, name)
        content = content[content.index("<svg ") + 5 :]
        content = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", content, flags=re.DOTALL)
        content = re.sub(r' (width|height)="[\d.]+pt"', "", content)  # the page determines the size
        # Ids and references to them must differ between the figures of a page.
        content = re.sub(r'\bid="', f'id="{name}-', content)
        content = content.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
        content = re.sub(r"font-family: [^;\"]*", "font-family: var(--text)", content)
        for colour, variable in THEME.items():
            content = content.replace(colour, variable)
        return content.strip()


@dataclass(frozen=True)
class Table:
    """The titles of columns, whether a column has numbers (aligned to the right), and the texts of the rows."""

    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    title: str
    is_folded: bool
    is_wide: bool


@dataclass(frozen=True)
class Section:
    """A heading with charts and, below them, tables."""

    title: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


@dataclass
class Page:
    """The content of a page."""

    title: str  # the heading
    command: str = "factorcell"  # the command that wrote the page
    lead: str = ""  # a sentence below the key figures
    # the most important results, each a value and a short caption; the page shows the first four
    figures: Sequence[tuple[str, str]] = ()
    caution: str = ""  # the most important finding, without a full stop
    sections: list[Section] = field(default_factory=list)  # the charts and tables, the charts first
    remarks: list[str] = field(default_factory=list)  # sentences without a full stop, in one folded block at the end

    def add_findings(self, findings: Sequence[str]) -> None:
        """Show the first of the findings, which are ranked, below the key figures, and the others as remarks."""
        self.caution = "".join(findings[:1])
        self.remarks += findings[1:]

    def add(self, title: str, charts: Sequence[Chart | None] = (), tables: Sequence[Table | None] = ()) -> None:
        """Add a section of the charts and tables that are not None, unless there are none."""
        section = Section(title, list(filter(None, charts)), list(filter(None, tables)))
        if section.charts or section.tables:
            self.sections.append(section)

    def render(self, template: str = "layout.html", **values: Any) -> str:
        """Return the HTML of the page; `values` are the variables of a template that extends the layout."""
        options: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
        environment = Environment(loader=PackageLoader("factorcell.reports"), **options)
        environment.filters["split_interval"] = split_interval
        environment.globals.update(best_mark=BEST_MARK, missing=MISSING)
        return escape_hidden_lines(environment.get_template(template).render(page=self, **values))


def split_interval(text: str) -> tuple[str, str]:
    """Return a number, and its interval with a remark ("" without an interval): "72.0", "[70.1, 74.0]"."""
    match = INTERVAL.fullmatch(text)
    return (match[1], match[2]) if match else (text, "")


def make_table(
    rows: Sequence[Row], columns: Iterable[str] | Mapping[str, str], title: str = "", *, is_folded: bool = False
) -> Table | None:
    """Return a table without empty columns; None without rows.

    `columns` are in their order, maybe with formats of numbers; missing and infinite numbers are dashes. The title
    opens a table that `is_folded`.
    """
    formats = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, "")
    texts = {
        name: [_cell_text(row.get(name), number_format) for row in rows] for name, number_format in formats.items()
    }
    texts = {name: cells for name, cells in texts.items() if any(cell != MISSING for cell in cells)}
    if not texts:
        return None
    first_column = next(iter(formats))  # names the rows, also if the names are numbers
    titles = [
        (name.replace("_", " "), name != first_column and all(map(NUMBER.fullmatch, cells)))
        for name, cells in texts.items()
    ]
    return Table(titles, list(zip(*texts.values(), strict=True)), title, is_folded, len(titles) > MAX_COLUMNS)


def _cell_text(value: Any, number_format: str) -> str:
    if value in (None, "", "-") or (isinstance(value, float) and not is_number(value)):
        return MISSING
    return value if isinstance(value, str) else format(value, number_format)
