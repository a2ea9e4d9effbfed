"""Pages: whole, safe, without a single request, and no wider in a browser than a desk or a telephone."""

import html
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from factorcell.evaluation.text_figures import TextSums
from factorcell.model.kept_results import Gains
from factorcell.reports import demo, elements, runs

VOID = {"meta", "link", "img", "br", "path", "use", "rect"}
HOSTILE = '<script>alert("x")</script> & co'
MODELS = ["unadapted", "softmaxbias", "concatcell", "factorcell"]
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium on the path: pages were not rendered")


class Page(HTMLParser):
    """Checks that tags close in their order; gathers tags, ids and text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def requests(page: Page, content: str) -> list[str]:
    """Whatever a browser would fetch from elsewhere to show the page."""
    fetched = [
        str(attributes[name])
        for tag, attributes in page.tags
        for name in ("src", "href", "xlink:href", "srcset", "data", "poster")
        if name in attributes and tag != "a" and not str(attributes[name]).startswith(("data:", "#"))
    ]
    scripts = [tag for tag, _ in page.tags if tag in ("script", "iframe", "object", "embed")]
    return fetched + scripts + re.findall(r"@import[^;]*|url\((?!#|\"?data:)[^)]*\)", content)


def posterior(lat: float, lon: float) -> dict[str, Any]:
    lats, lons = np.arange(-56, 76, 4.0), np.arange(-180, 180, 4.0)
    bell = np.exp(-((lats[:, None] - lat) ** 2 + (lons[None, :] - lon) ** 2) / 60)
    return {"lat": lats.tolist(), "lon": lons.tolist(), "probability": (bell / bell.sum()).tolist()}


def curves() -> list[dict[str, Any]]:
    return [
        {
            "model": m,
            "split": "dev",
            "step": i,
            "tokens": 10 * i,
            "seconds": 9.0 * i,
            "perplexity": 9 + 5 / i - k / 2,
        }
        for k, m in enumerate(MODELS)
        for i in range(1, 8)
    ]


def demo_results() -> dict[str, Any]:
    numbers = [(10.9, None), (10.2, 0.51), (8.9, 0.69), (8.43, 0.713)]
    models = [
        {
            "name": m,
            "title": m,
            "perplexity": p,
            "perplexity_known": p - 0.1,
            "accuracy": a,
            "parameters": 231_234,
            "minutes": 1.2,
        }
        for m, (p, a) in zip(MODELS, numbers, strict=True)
    ]
    return {
        "minutes": 5.23,
        "machine": "2 CPU cores",
        "texts": 219_607,
        "models": models,
        "curves": curves(),
        "names": [
            {"place": f"Place {i}", "lat": -33.4, "lon": 151.2, "samples": ["Ōyashiki", HOSTILE]} for i in range(10)
        ],
        "maps": [
            {"text": "Nakamura", **posterior(36, 138), "true": (35.0, 136.0)},
            {
                "text": HOSTILE,
                "posteriors": {"factorcell": posterior(-12, -76), "concatcell": posterior(0, 0)},
                "true": None,
            },
        ],
        "countries": [{"country": "Côte d’Ivoire", "accuracy": 0.5, "count": 1500}],
        "confusion": {"labels": ["Italy", "Peru"], "counts": [[8, 2], [1, 9]]},
        "figures_note": "Accuracy among ten countries & the like.",
    }


def text_sums(nats: float, judged: float = 1.0) -> TextSums:
    """What 40 texts of ten targets add."""
    return TextSums("a", np.full(40, 10 * nats), np.full(40, 10 * judged))


def two_runs() -> list[dict[str, Any]]:
    plain = {
        "folder": "runs/a",
        "title": "hotels unadapted",
        "config": {"data": {"text": "review"}, "model": {"adapt": (), "rank": 12}},
        "schema": [],
        "evaluation": {"perplexity": 80.123, "perplexity_known": 70.0, "targets": 123_456},
        "log": [{**row, "model": "x"} for row in curves()[:7]],
        "by": [],
        "classification": None,
        "texts": {"perplexity": text_sums(math.log(80.123))},
    }
    rows = [{"value": f"{HOSTILE} {i}", "count": 50 + i, "perplexity": 70.0, "gain": 0.1 - i / 50} for i in range(9)]
    confusion = {"labels": ["1", "5"], "counts": [[8, 2], [1, 9]]}
    values = [{"value": "1", "count": 10, "precision": 0.888, "recall": 0.8, "f1": 0.84, "auc": 0.9}]
    return [
        plain,
        {
            **plain,
            "folder": "runs/b",
            "title": "hotels FactorCell",
            "config": {"data": {"text": "review"}, "model": {"adapt": ("concat", "factor"), "rank": 12}},
            "schema": ["rating: category, 5 values, none rare"],
            "evaluation": {"perplexity": 72.0, "perplexity_known": 63.0, "targets": 123_456},
            "texts": {"perplexity": text_sums(math.log(72.0))},
            "cautions": [f"{HOSTILE} stopped"],
            "by": [
                Gains("dev.csv", "city", None, rows),
                Gains("dev.csv", "rating", None, [{"value": "5", "count": 3, "perplexity": 6.5, "gain": None}]),
            ],
            "classification": {
                "target": "rating",
                "accuracy": 0.85,
                "macro_f1": 0.8,
                "values": values,
                **confusion,
            },
        },
    ]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {"demo": demo.demo_page(demo_results()), "runs": runs.run_report(two_runs())}


@pytest.mark.parametrize("name", ["demo", "runs"])
def test_pages_are_whole_and_ask_for_nothing(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert requests(page, pages[name]) == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {str(a.get("xlink:href") or a.get("href"))[1:] for a in page.named("use")}
    clips = set(re.findall(r"url\(#([^)]*)\)", pages[name]))
    assert links | clips <= set(ids)
    assert all(image.get("alt") for image in page.named("img"))
    assert all(image.get("aria-label") for image in page.named("svg"))
    assert {"script"} & {tag for tag, _ in page.tags} == set()
    assert HOSTILE.split()[-1] in page.text


@pytest.mark.parametrize(
    "bad",
    ['<img src="https://x.org/a.png">', '<script src="a.js"></script>', "<style>@import 'a.css';</style>"],
)
def test_a_request_is_noticed(bad: str) -> None:
    content = elements.document("A", [("B", bad)])
    assert requests(Page(content), content)


def test_demo_page_says_what_was_found(pages: dict[str, str]) -> None:
    page = Page(pages["demo"])
    for words in (
        "219,607",
        "5.2 minutes on 2 CPU cores",
        "8.43",
        "71.3%",
        "231,234",
        "Ōyashiki",
        "33° S 151° E",
        "GeoNames",
    ):
        assert words in page.text, words
    assert "most probable near 36° N 136° E, 111 km from the true place" in page.text
    assert len(page.named("img")) == 3  # one name with one map, one with two
    assert "Natural Earth" in page.text
    assert "CC BY 4.0" in page.text


def test_demo_page_without_what_may_be_missing() -> None:
    results = {**demo_results(), "maps": [], "names": [], "countries": [], "confusion": None, "curves": []}
    del results["texts"], results["figures_note"]
    Page(demo.demo_page(results))


def test_run_report_sets_runs_side_by_side(pages: dict[str, str]) -> None:
    content = pages["runs"]
    assert '<td class="num best">72.00</td>' in content
    assert '<td class="num">80.12</td>' in content
    assert '<td class="num">63.00</td>' in content  # lower, but of no texts that can be compared
    assert "+10.1% [+10.1, +10.1]" in content
    head, _, folded = content[content.index("<h2>Options") :].partition("<details>")
    assert "concat, factor" in head
    assert "model.rank" not in head  # the same in both
    assert "model.rank" in folded
    page = Page(content)
    assert len(page.named("svg")) == 4  # two learning curves, gains by city, confusion
    assert "rating: category, 5 values, none rare" in page.text


def test_trainings_of_one_model_share_a_row() -> None:
    """Runs that differ in their seed are one model: mean and deviation, bold only beyond the spread of trainings."""
    plain, adapted = two_runs()
    config = {"model": {"adapt": ()}, "training": {"seed": 0, "rank": 1}}
    trained = {"trained": ["a", 100, "train.csv", None], "config": config}
    others = []
    for seed, perplexity in enumerate((70.0, 76.0, 83.0)):
        own = {"config": {**config, "training": {"seed": seed, "rank": 1}}, "folder": f"runs/a-seed-{seed}"}
        texts = {"perplexity": text_sums(math.log(perplexity))}
        figures = {"perplexity": perplexity, "perplexity_known": 70.0, "targets": 123_456}
        others.append({**plain, **trained, **own, "texts": texts, "evaluation": figures})
    page = Page(runs.run_report([*others, {**adapted, "trained": ["a", 100, "train.csv", None]}]))
    mean = (70.0 * 76.0 * 83.0) ** (1 / 3)
    assert f"{mean:.2f} ± {np.std([70.0, 76.0, 83.0], ddof=1):.2f}" in page.text
    assert "runs/a-seed-0, runs/a-seed-1, runs/a-seed-2" in page.text
    assert "no difference" in page.text
    assert not [cell for cell in page.named("td") if "best" in str(cell.get("class"))]
    assert "4 runs side by side" in page.text


def test_run_report_of_one_bare_run() -> None:
    run: dict[str, Any] = {
        "folder": "runs/a",
        "title": "a",
        "config": {},
        "schema": [],
        "evaluation": None,
        "log": [],
        "by": [],
    }
    page = Page(runs.run_report([run]))
    assert "runs/a" in page.text
    assert "ide by side" not in page.text, "there is one"
    for nothing in ("Learning curves", "Context", "Options"):
        assert nothing not in page.text
    told = Page(runs.run_report([{**run, "schema": ["rating: category, 5 values"], "config": {"data": {"text": "t"}}}]))
    assert "Context" in told.text
    assert "Options" in told.text
    assert not page.named("svg")
    one, other = ({**run, "title": name, "folder": name, "schema": ["rating: 5 values"]} for name in ("b", "c"))
    assert Page(runs.run_report([one, other])).text.count("rating: 5 values") == 1, "what all have is said once"
    assert Page(runs.run_report([one, {**other, "schema": ["city"]}])).text.count("rating: 5 values") == 1


def test_table_sets_numbers_right_and_marks_the_best() -> None:
    rows: Sequence[Sequence[Any]] = [
        ("a", (2.0, "2.0"), None),
        ("b", (1.0, "1.0"), (float("nan"), "nan")),
        (HOSTILE, 1, None),
    ]
    content = elements.table(("name", "x", "y"), rows, best={(0, 1), (1, 1)})
    assert '<th class="num">x</th><th>y</th>' in content
    assert content.count('class="num best"') == 2
    assert '<td class="num best">2.0</td>' in content
    assert '<td class="num">1</td>' in content
    assert "<script>" not in content
    assert "<td>–</td>" in content


def test_chart_follows_the_theme() -> None:
    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.5, "seen", color="#1c2733")
    content = elements.chart(figure, "one", "a chart", "under it")
    assert "var(--ink)" in content
    assert "var(--text)" in content
    assert "DejaVu" not in content
    assert ">seen</text>" in content
    assert 'pt"' not in content
    assert "<figcaption>under it</figcaption>" in content


@pytest.mark.parametrize(
    ("point", "words"),
    [((36.2, 138.0), "36° N 138° E"), ((-12.4, -76.6), "12° S 77° W"), ((-0.2, 0.3), "0° N 0° E")],
)
def test_degrees(point: tuple[float, float], words: str) -> None:
    assert demo.degrees(*point) == words


def test_kilometres() -> None:
    assert demo.kilometres((0, 0), (0, 180)) == pytest.approx(np.pi * 6371)
    assert demo.kilometres((48.86, 2.35), (51.51, -0.13)) == pytest.approx(344, abs=2)  # Paris to London
    assert demo.kilometres((10, 20), (10, 20)) == 0


def browse(page: str, folder: Path, *, width: int, height: int = 4000) -> tuple[str, str, bytes]:
    """A page framed by the browser: the document, with the width as its title, the log and the picture."""
    file, image = folder / "page.html", folder / "page.png"
    probe = "document.title = this.contentDocument.documentElement.scrollWidth"  # from outside: in a page nothing runs
    style = f"border: 0; width: {width}px; height: {height}px"  # a browser's own window is never as narrow
    inner = f'<iframe onload="{probe}" style="{style}" srcdoc="{html.escape(page)}"></iframe>'
    frame = f'<!doctype html><link rel="icon" href="data:,">{inner}'
    file.write_text(frame, encoding="utf-8")
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    flags = ["--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", "--enable-logging=stderr"]
    flags += [f"--disable-{name}" for name in quiet] + [f"--user-data-dir={folder / 'profile'}"]
    flags += [f"--window-size={width},{height}", f"--screenshot={image}", "--dump-dom", file.as_uri()]
    done = subprocess.run([str(BROWSER), *flags], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr, image.read_bytes()


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["demo", "runs"])
def test_a_browser_shows_the_page(pages: dict[str, str], tmp_path: Path, name: str, width: int) -> None:
    document, log, image = browse(pages[name], tmp_path, width=width)
    assert "CONSOLE" not in log
    assert f"<title>{width}</title>" in document  # nothing is wider than the window
    assert len(image) > 50_000


@needs_browser
@pytest.mark.parametrize(
    "planted",
    [
        "<script>console.error('it ran')</script>",
        "<p onclick='1' id='p'></p><img src='data:,x' onerror='document.title = 1'>",
        "<img src='http://127.0.0.1:9/x.png'>",
        "<link rel='stylesheet' href='http://127.0.0.1:9/x.css'>",
        "<form action='http://127.0.0.1:9/'><input name='a'></form><iframe src='data:text/html,x'></iframe>",
    ],
)
def test_a_browser_refuses_what_is_not_of_a_page(tmp_path: Path, planted: str) -> None:
    """What a hostile value might plant, if anything of it came through: refused by the policy, which the log says."""
    document, log, _ = browse(
        elements.document("A", [("B", f'<p style="width: 900px">wide</p>{planted}')]), tmp_path, width=390
    )
    assert "Content Security Policy" in log
    assert "it ran" not in log.replace(planted, "")
    assert "<title>390</title>" not in document
