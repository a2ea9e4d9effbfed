"""Pages of runs and of the demo: valid HTML, safe, without requests, and with the values of their rows."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.evaluation.text_figures import TextSums
from factorcell.reports import demo, elements, runs
from tests.pages import Page, requests
from tests.small_runs import make_run

GAIN = "gain_over_unknown_context"
HOSTILE = '<script>alert("x")</script> & co'
MODELS = ["unadapted", "softmaxbias", "concatcell", "factorcell"]


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
    size = {"parameters": 231_234, "minutes": 1.2}
    models = [
        ComparedModel(m, [{"perplexity": p, "accuracy": a, "majority": 0.1, **size}], [{}])
        for m, (p, a) in zip(MODELS, numbers, strict=True)
    ]
    return {
        "minutes": 5.23,
        "machine": "2 CPU cores",
        "texts": 219_607,
        "models": compare_models(models),
        "curves": curves(),
        "names": [
            {"place": f"Place {i}", "lat": -33.4, "lon": 151.2, "samples": ["Ōyashiki", HOSTILE]} for i in range(10)
        ],
        "maps": [
            {"text": "Nakamura", **posterior(36, 138), "true": (35.0, 136.0)},
            {"text": HOSTILE, **posterior(-12, -76), "true": (0.0, 0.0)},
        ],
        "countries": [{"country": "Côte d’Ivoire", "accuracy": 0.5, "count": 1500}],
        "confusion": {"labels": ["Italy", "Peru"], "counts": [[8, 2], [1, 9]]},
        "prior": "all points of a grid",
        "cautions": [],
    }


def text_sums(nats: float, judged: float = 1.0) -> TextSums:
    """Return the sums of 40 texts of ten targets."""
    return TextSums("a", np.full(40, 10 * nats), np.full(40, 10 * judged))


def evaluation(perplexity: float, known: float = 60.0, table: str = "test.csv", **more: Any) -> dict[str, Any]:
    """Return the result of an evaluation of 40 texts of words, with their figures."""
    figures = {"perplexity": text_sums(math.log(perplexity))}
    row = {"kind": "evaluate", "table": table, "unit": "word", "perplexity": perplexity, "perplexity_known": known}
    return {**row, "texts": 40, "figures": figures, **more}


def two_runs() -> list[dict[str, Any]]:
    plain = {
        "folder": "runs/a",
        "title": "hotels unadapted",
        "is_adapted": False,
        "config": {"data": {"text": "review"}, "model": {"adapt": (), "rank": 12}},
        "schema": [],
        "results": [evaluation(80.123, 70.0)],
        "log": [{**row, "model": "x"} for row in curves()[:7]],
    }
    rows = [{"value": f"{HOSTILE} {i}", "count": 50 + i, "perplexity": 70.0, GAIN: 0.1 - i / 50} for i in range(9)]
    confusion = {"labels": ["1", "5"], "counts": [[8, 2], [1, 9]]}
    values = [{"value": "1", "count": 10, "precision": 0.888, "recall": 0.8, "f1": 0.84, "auc": 0.9}]
    return [
        plain,
        {
            **plain,
            "folder": "runs/b",
            "title": "hotels FactorCell",
            "is_adapted": True,
            "config": {"data": {"text": "review"}, "model": {"adapt": ("concat", "factor"), "rank": 12}},
            "schema": ["rating: category, 5 values, none rare"],
            "results": [
                evaluation(72.0, 63.0, by={"city": rows, "rating": [{"value": "5", "count": 3, "perplexity": 6.5}]}),
                {
                    "kind": "classify",
                    "table": "test.csv",
                    "target": "rating",
                    "classifier": "model",
                    "texts": 40,
                    "accuracy": 0.85,
                    "majority": 0.5,
                    "macro_f1": 0.8,
                    "values": values,
                    "confusion": confusion,
                    "figures": {},
                },
            ],
            "cautions": [f"{HOSTILE} stopped"],
        },
    ]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {"demo": demo.demo_page(demo_results()), "runs": runs.run_report(two_runs())}


@pytest.mark.parametrize("name", ["demo", "runs"])
def test_pages_are_valid_html_and_load_nothing(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert requests(page, pages[name]) == []
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {str(a.get("xlink:href") or a.get("href"))[1:] for a in page.attributes_of("use")}
    assert links | set(re.findall(r"url\(#([^)]*)\)", pages[name])) <= ids
    assert all(image.get("alt") for image in page.attributes_of("img"))
    assert all(image.get("aria-label") for image in page.attributes_of("svg"))
    assert not page.attributes_of("script")
    assert HOSTILE.split()[-1] in page.text


@pytest.mark.parametrize(
    "bad",
    ['<img src="https://x.org/a.png">', '<script src="a.js"></script>', "<style>@import 'a.css';</style>"],
)
def test_the_page_parser_detects_requests(bad: str) -> None:
    content = elements.document("A", [("B", bad)])
    assert requests(Page(content), content)


def test_demo_page_has_the_results(pages: dict[str, str]) -> None:
    page = Page(pages["demo"])
    for words in (
        "219,607",
        "5.2 minutes on 2 CPU cores",
        "8.43",
        "0.7130",
        "majority class: 10.0%",
        "231,234",
        "Ōyashiki",
        "33° S 151° E",
        "GeoNames",
        "Natural Earth",
        "CC BY 4.0",
        "most probable near 36° N 136° E, 111 km from the true place",
    ):
        assert words in page.text, words
    assert len(page.attributes_of("img")) == 2


def test_the_report_compares_runs(pages: dict[str, str]) -> None:
    content = pages["runs"]
    figures = re.findall(r'<td class="(num[a-z ]*)"[^>]*>([^<]*)<', content)
    assert {("num best", "72.00*"), ("num", "80.12"), ("num", "+10.1% ")} <= set(figures)
    assert ("num", "63.00") in figures  # lower, but on texts that cannot be compared
    assert "<small>[+10.1, +10.1]</small>" in content
    head, _, collapsed = content[content.index("<h2>Options") :].partition("<details>")
    assert "concat, factor" in head
    assert "model.rank" not in head  # the same in both
    assert "model.rank" in collapsed
    page = Page(content)
    assert len(page.attributes_of("svg")) == 4  # two learning curves, gains by city, confusion
    assert "rating: category, 5 values, none rare" in page.text


def test_the_report_shows_runs_without_results() -> None:
    run: dict[str, Any] = {"folder": "runs/a", "title": "a", "config": {}, "schema": [], "results": []}
    page = Page(runs.run_report([run]))
    assert "runs/a" in page.text
    for nothing in ("Comparison", "Learning curves", "Context", "Options"):
        assert nothing not in page.text
    assert not page.attributes_of("svg")
    full = Page(runs.run_report([{**run, "schema": ["rating: category, 5 values"], "config": {"data": {"text": "t"}}}]))
    assert "Context" in full.text
    assert "Options" in full.text
    first, second = ({**run, "title": name, "folder": name, "schema": ["rating: 5 values"]} for name in ("b", "c"))
    assert Page(runs.run_report([first, second])).text.count("rating: 5 values") == 1, "a shared context is listed once"
    assert Page(runs.run_report([first, {**second, "schema": ["city"]}])).text.count("rating: 5 values") == 1


def test_learning_curves_need_two_evaluations() -> None:
    plain, adapted = ({**run, "log": run["log"][:1]} for run in two_runs())
    assert "Learning curves" not in runs.run_report([plain, adapted])
    assert "Learning curves" in runs.run_report([plain, two_runs()[1]])


def test_key_figures_are_those_of_the_best_model_if_the_models_are_comparable() -> None:
    plain, adapted = two_runs()
    labels = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)", runs.run_report([plain, adapted]))
    assert labels[0] == ("hotels FactorCell, the lowest of 2 models: perplexity", "72.00*")
    assert labels[1] == ("hotels FactorCell: gain over hotels unadapted", "+10.1% ")
    without_texts = {**adapted, "results": [evaluation(72.0, figures={})]}
    assert "<dt>" not in runs.run_report([plain, without_texts])


def test_only_figures_of_one_table_are_compared() -> None:
    plain, adapted = two_runs()
    plain["results"] = [evaluation(50.0, table="development texts", texts=30)]
    page = Page(runs.run_report([plain, adapted, {**adapted, "folder": "runs/c", "title": "other"}]))
    assert "perplexities and bits per byte are those of test.csv" in page.text
    assert "not evaluated on this table, so not compared: hotels unadapted" in page.text
    assert "gain over hotels unadapted" not in page.text
    assert page.text.count("50.00") == 1  # among the results, with its table


def test_perplexities_of_different_tokens_are_not_in_the_headline() -> None:
    plain, adapted = two_runs()
    grapheme = evaluation(2.0, unit="grapheme", figures={})
    char = evaluation(3.0, unit="character", bits_per_byte=2.0, figures={})
    content = runs.run_report([{**plain, "results": [grapheme]}, {**adapted, "results": [char]}])
    assert "<dt>" not in content
    assert "perplexities of models with different tokens are not comparable; compare bits per byte" in content


def test_trainings_that_read_other_numbers_of_texts_are_marked() -> None:
    plain, adapted = two_runs()
    content = runs.run_report([{**plain, "training_texts": 990_000}, {**adapted, "training_texts": 1_480_000}])
    assert "(hotels unadapted 990,000, hotels FactorCell 1,480,000), which also changes their figures" in content
    assert "different numbers" not in runs.run_report([{**run, "training_texts": 990_000} for run in two_runs()])


def test_a_combination_is_listed_but_not_the_accuracy_of_the_model() -> None:
    _, adapted = two_runs()
    scores = adapted["results"][1]
    combined = {**scores, "classifier": "combined", "accuracy": 0.95}
    content = runs.run_report([{**adapted, "results": [*adapted["results"], combined]}])
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in content.splitlines()]
    assert ["test.csv", "accuracy of rating (model)", "0.8500, majority class 0.5000"] in rows
    assert ["test.csv", "accuracy of rating (combined)", "0.9500, majority class 0.5000"] in rows
    plain, _ = two_runs()
    comparison = runs.run_report([plain, {**adapted, "results": [*adapted["results"], combined]}]).partition("<h2>Res")[
        0
    ]
    assert "0.8500" in comparison
    assert "0.9500" not in comparison


def test_runs_with_equal_names_are_titled_by_their_folders() -> None:
    plain, adapted = two_runs()
    page = Page(runs.run_report([{**plain, "title": "same"}, {**adapted, "title": "same"}]))
    assert "gain over runs/a" in page.text


def test_every_metric_has_its_table_and_its_baseline() -> None:
    plain, adapted = two_runs()
    rows = [{"value": "5", "count": 30, "perplexity": 6.5, "gain_over_baseline": 0.1}]
    gain = {"gain_over_baseline": 0.04, "gain_over_baseline_low": 0.03, "gain_over_baseline_high": 0.05}
    unknown_rows = [{"value": "5", "count": 30, "perplexity": 6.5, GAIN: 0.1}]
    run = {
        **adapted,
        "results": [
            evaluation(72.0, table="ht.csv", by={"rating": unknown_rows}, **{GAIN: 0.21}),
            evaluation(
                72.0, table="ht.parquet", baseline="plain", gain_over_baseline=0.21, training_difference="it read less"
            ),
            evaluation(72.0, table="ht.parquet", baseline="ngram", by={"rating": rows}, **gain),
            {**adapted["results"][1], "table": "other.csv"},
        ],
    }
    content = runs.run_report([run])
    page = Page(content)
    for words in (
        "Perplexity on ht.csv by rating, gain over an unknown context (same model)",
        "Perplexity on ht.parquet by rating, gain over ngram",
        "Classification by value, rating, other.csv: model",
    ):
        assert words in page.text, words
    lines = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in content.splitlines()]
    assert ["ht.csv", "gain over an unknown context (same model)", "+21.0%", "–"] in lines
    assert ["ht.parquet", "gain over plain", "+21.0%", "it read less"] in lines
    assert any(line[:2] == ["ht.parquet", "gain over ngram"] and "+4.0%" in line[2] for line in lines)
    labels = {str(attributes["aria-label"]) for attributes in page.attributes_of("svg")}
    assert {
        "Gain over an unknown context (same model) by rating, ht.csv",
        "Gain over ngram by rating, ht.parquet",
    } <= labels
    both = Page(runs.run_report([{**plain, "results": [evaluation(80.123, table="ht.parquet")]}, run]))
    assert "gain over hotels unadapted" in both.text
    assert "+10.1% [+10.1, +10.1]" in both.text


def test_tables_align_numbers_highlight_the_best_and_omit_empty_columns() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "x_y": "2.0*", "z": None, "w": "few"},
        {"name": "b*", "x_y": 1.0, "z": float("nan"), "w": 3},
        {"name": HOSTILE, "x_y": "+1.2 pt [+0.9, +1.5] not significant"},
    ]
    content = elements.table(rows, {"name": "", "x_y": ".1f", "z": ".2f", "w": ""})
    assert '<th>name</th><th class="num">x y</th><th>w</th></tr>' in content
    assert content.count("best") == 1
    assert '<td class="num best">2.0*</td>' in content
    assert '<td class="num">1.0</td>' in content
    assert '<td class="num">+1.2 pt' in content
    assert "<td>–</td>" in content
    assert "<script>" not in content


def test_charts_follow_the_theme() -> None:
    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.5, "seen", color="#1c2733")
    content = elements.chart(figure, "one", "a chart", "<under> it")
    assert "var(--ink)" in content
    assert "var(--text)" in content
    assert "DejaVu" not in content
    assert ">seen</text>" in content
    assert 'pt"' not in content
    assert "<figcaption>&lt;under&gt; it</figcaption>" in content


@pytest.mark.parametrize(
    ("point", "words"),
    [((36.2, 138.0), "36° N 138° E"), ((-12.4, -76.6), "12° S 77° W"), ((-0.2, 0.3), "0° N 0° E")],
)
def test_points_are_formatted_in_degrees(point: tuple[float, float], words: str) -> None:
    assert demo.degrees(*point) == words


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    [
        "<script>console.error('it ran')</script>",
        "<img src='data:,x' onerror='console.error(1)'>",
        "<img src='http://127.0.0.1:9/x.png'>",
        "<link rel='stylesheet' href='http://127.0.0.1:9/x.css'>",
    ],
)
def test_the_content_security_policy_blocks_injected_content(browser: Any, planted: str) -> None:
    tab = browser.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.set_content(elements.document("A", [("B", planted)]))
    tab.close()
    assert any("Content Security Policy" in message for message in messages)
    assert "it ran" not in messages


def test_the_options_of_an_adaptation_that_a_run_does_not_have_are_not_shown(tmp_path: Path) -> None:
    for name, context in (("with", ("city",)), ("without", ())):
        make_run(tmp_path / name, context).save_weights({})
    content = runs.report_page([tmp_path / "with", tmp_path / "without"])
    rows = re.findall(
        r"<tr><td>(?:model\.)?(adapt|rank|hidden_size)</td><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)", content
    )
    assert ("adapt", "not used", "concat, factor") in rows
    assert ("rank", "not used", "2") in rows
