"""HTML pages and figures, parsed and checked for tests."""

import itertools
import re
from html.parser import HTMLParser
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

VOID = {"meta", "link", "img", "br", "path", "use", "rect", "image"}


class Page(HTMLParser):
    """The tags, attributes, text and rows of tables of an HTML page; tags must be balanced and ids unique."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.texts: dict[str, list[str]] = {}  # by tag: the text of each element
        self.rows: list[list[str]] = []
        self.feed(content)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        ids = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data
        for tag in {*self.open}:
            self.texts[tag][-1] += data
        if {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += data

    @property
    def figures(self) -> dict[str, str]:
        """The key figures by caption."""
        return dict(zip(self.texts.get("dt", ()), self.texts.get("dd", ()), strict=True))

    @property
    def charts(self) -> list[str]:
        """The titles of the charts."""
        return [str(attributes["aria-label"]) for attributes in self.attributes_of("svg")]

    def attributes_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def requests(page: Page, content: str) -> list[str]:
    """Return everything that a browser would fetch or execute to show the page."""
    urls = [
        str(attributes[name])
        for tag, attributes in page.tags
        for name in ("src", "href", "xlink:href", "srcset", "data", "poster")
        if name in attributes and tag != "a" and not str(attributes[name]).startswith(("data:", "#"))
    ]
    scripts = [tag for tag, _ in page.tags if tag in ("script", "iframe", "object", "embed")]
    return urls + scripts + re.findall(r"@import[^;]*|url\((?!#|\"?data:)[^)]*\)", content)


def texts_inside(figure: Figure) -> list[str]:
    """Return all texts of a figure, which must be inside the figure and must not overlap."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = {
        tick.label1
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text() and text.get_visible()]
    texts = [text for text in texts if text not in hidden]
    width, height = figure.get_size_inches() * figure.dpi
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
    for name, box in boxes:
        assert -2 < box.x0 < box.x1 < width + 2, name
        assert -2 < box.y0 < box.y1 < height + 2, name
    horizontal = [pair for text, pair in zip(texts, boxes, strict=True) if text.get_rotation() == 0]
    for (first, box), (second, other) in itertools.combinations(horizontal, 2):
        assert not box.padded(-1).overlaps(other.padded(-1)), (first, second)
    return [text.get_text() for text in texts]
