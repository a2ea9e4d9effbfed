"""Pages in Chromium: what is wrong with their layout, and screenshots at three widths in both themes.

    python -m tests.screenshots FOLDER [URL ...]

writes a screenshot of every page of the package `reports`, drawn from made-up results, and of the addresses.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell.commands.demo import demo_page
from factorcell.reports.explaining import embeddings_page, explanation_page
from factorcell.reports.runs import run_report
from tests.chromium import open_chromium
from tests.reports.examples import ROW, contexts_results, demo_results, many_runs, two_runs

WINDOWS = {390: 844, 1280: 800, 1800: 1000}  # width: height, in pixels
THEMES = ("light", "dark")
# Elements that a reader must scroll to the side to read; blocks of code may.
HIDDEN_PARTS = """() => [...document.querySelectorAll("*")]
    .filter((box) => box.clientWidth && box.scrollWidth > box.clientWidth + 1
        && ["auto", "scroll"].includes(getComputedStyle(box).overflowX) && !box.matches("pre"))
    .map((box) => `${box.tagName} ${box.className}: ${box.textContent.trim().slice(0, 60)}`)"""
# Key figures that are not completely in the window.
INVISIBLE_FIGURES = """() => [...document.querySelectorAll(".figures dd")]
    .filter((figure) => {
        const {left, right, bottom, width} = figure.getBoundingClientRect();
        return !width || left < 0 || right > innerWidth || bottom > innerHeight || figure.scrollWidth > width + 1;
    })
    .map((figure) => figure.textContent)"""


def static_pages() -> dict[str, str]:
    """Return the HTML of every page of the package `reports`, by name."""
    return {
        "run": run_report(two_runs()[1:]),
        "runs": run_report(many_runs()),
        "demo": demo_page(demo_results()),
        "contexts": embeddings_page("hotels", contexts_results()),
        "explain": explanation_page("factorcell", [ROW, ROW]),
    }


def find_problems(tab: Any) -> list[str]:
    """Return what a reader of a page cannot see without scrolling to the side, and key figures outside the window."""
    problems = [f"not in the window: {figure}" for figure in tab.evaluate(INVISIBLE_FIGURES)]
    tab.evaluate("document.querySelectorAll('details').forEach((box) => { box.open = true; })")
    page_width, window_width = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if page_width > window_width:
        problems.append(f"the page is {page_width} pixels wide in a window of {window_width} pixels")
    return problems + [f"wider than its box: {part}" for part in tab.evaluate(HIDDEN_PARTS)]


def take_screenshots(folder: Path, addresses: Sequence[str]) -> None:
    """Write a screenshot of every page in each window and theme, and report problems and messages of the console."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"page-{index}": address for index, address in enumerate(addresses)}
    for name, content in static_pages().items():
        path = (folder / f"{name}.html").resolve()
        path.write_text(content, encoding="utf-8")
        pages[name] = path.as_uri()
    with open_chromium() as chromium:
        for name, address in pages.items():
            for width, height in WINDOWS.items():
                for theme in THEMES:
                    window = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
                    tab = chromium.new_page(**window)
                    tab.on("console", lambda message, name=name: print(f"{name}: {message.text}"))
                    tab.goto(address, wait_until="networkidle")
                    tab.screenshot(path=folder / f"{name}-{width}-{theme}.png", full_page=True)
                    for problem in find_problems(tab):
                        print(f"{name}, {width} pixels, {theme}: {problem}")
                    tab.close()


if __name__ == "__main__":
    take_screenshots(Path(sys.argv[1]), sys.argv[2:])
