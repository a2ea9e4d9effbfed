"""Views of runs and results in notebooks have the figures of the commands, escaped texts and no fixed colours."""

import re
from pathlib import Path
from typing import Any

import pytest

from factorcell import Run, evaluate
from factorcell.config import Config
from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.runs import saved_results
from factorcell.training.fit import train_run
from tests.pages import Page
from tests.small_runs import CONTEXT, ROWS, make_run

HOSTILE = "<script>alert(1)</script>\u202e&amp;"


def figures_of(page: Page) -> dict[str, str]:
    """Return the figures of a view by name."""
    return {cells[0]: cells[1] for cells in page.rows if len(cells) == 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "a & b"
    return make_run(folder)


def models(run: Run) -> list[ComparedModel]:
    rows = [evaluate(run, [{**row, **changed} for row in ROWS * 2]) for changed in ({}, {"city": "Nice"})]
    return [ComparedModel(name, [row.row], [row.figures]) for name, row in zip(("true", HOSTILE), rows, strict=True)]


def views(run: Run) -> dict[str, str]:
    two = {HOSTILE: {"city": "Oslo"}, "Nice": {"city": "Nice"}}
    objects: dict[str, Any] = {
        "run": run,
        "evaluation": run.evaluate(ROWS),
        "classification": run.predict(ROWS, "city"),
        "predictions": run.predict(["cold sun"], "city"),
        "comparison": compare_models(models(run)),
        "explanation": run.explain(["cold <b>sun</b>"], two),
        "three contexts": run.explain([f"cold {HOSTILE}"], {**two, "expected": {}}),
    }
    return {name: value._repr_html_() for name, value in objects.items()}


def test_views_are_escaped_self_contained_and_have_no_fixed_colour(run: Run) -> None:
    for name, view in views(run).items():
        reader = Page(view)
        assert not {tag for tag, _ in reader.tags} & {"script", "img", "link", "iframe", "b"}, name
        attributes = {name for _, attributes in reader.tags for name in attributes}
        assert attributes <= {"class", "style", "title", "data-title", "scope"}, name
        assert "\u202e" not in view
        assert "http" not in view
        assert len(view) < 12_000
        style = "".join(re.findall(r'<style>.*?</style>|style="[^"]*"', view, flags=re.DOTALL))
        colours = re.findall(r"(?<![-\w])color: ([^;\"]+)", style)
        assert set(colours) <= {"inherit", "var(--muted)", "var(--ink)"}
        assert not re.search(r"background: (?!none|rgba\()", style)


def test_the_view_of_an_evaluation_has_the_printed_figures(run: Run, tmp_path: Path) -> None:
    baseline = make_run(tmp_path / "baseline")
    result = evaluate(run, ROWS * 3, baseline=baseline)
    figures = figures_of(Page(result._repr_html_()))
    assert figures["perplexity per word"] == f"{result.perplexity:.2f}"
    assert figures["perplexity per word, known targets"] == f"{result.perplexity_known:.2f}"
    assert "bits per byte" not in figures
    assert re.fullmatch(r"[+-][\d.]+% \[[+-][\d.]+, [+-][\d.]+\].*", figures["gain over baseline"])


def test_the_view_of_a_classification_has_its_metrics(run: Run) -> None:
    result = run.predict(ROWS, "city")
    metrics, reader = result.metrics(), Page(result._repr_html_())
    interval = f"[{metrics['accuracy_low']:.4f}, {metrics['accuracy_high']:.4f}]"
    figures = figures_of(reader)
    assert next(value for name, value in figures.items() if name.startswith("accuracy")).startswith(
        f"{metrics['accuracy']:.4f} {interval}, majority class {metrics['majority']:.4f}"
    )
    for value in metrics["values"]:
        numbers = [f"{value[name]:.4f}".replace("nan", "–") for name in ("precision", "recall", "f1", "auc")]
        assert [value["value"], f"{value['count']}", *numbers] in reader.rows


def test_the_view_of_unlabelled_texts_has_the_first_predictions(run: Run) -> None:
    result = run.predict(["cold sun", "sea"] * 20, "city")
    reader = Page(result._repr_html_())
    expected = [
        [str(row["row"]), row["predicted"], f"{max(row['probabilities'].values()):.4f}"] for row in result.rows()[:20]
    ]
    assert reader.rows[1:] == expected
    assert "The first 20 of 40 texts are shown." in reader.text


def test_the_view_of_a_comparison_has_the_cells_and_notes_of_its_text(run: Run) -> None:
    comparison = compare_models(models(run))
    reader = Page(comparison._repr_html_())
    cells, columns = comparison.table()
    assert reader.rows[1][1:] == [cells[0].get(name, "–") for name in columns[1:]]
    assert all(note in reader.text for note in comparison.notes())


def test_the_view_of_an_explanation_has_all_tokens_and_the_posterior(run: Run) -> None:
    rows = run.explain(["cold sun"], {"a": {"city": "Oslo"}, "b": {"city": "Nice"}})
    view = rows._repr_html_()
    reader = Page(view)
    for token in rows[0]["tokens"]:
        assert f'title="{token["ratio"]:+.4f} nats"' in view
    assert reader.rows[-1] == ["cold sun", *(f"{rows[0]['posterior'][name]:.3f}" for name in "ab")]


def test_the_view_of_a_run_has_the_results_of_its_card(tmp_path: Path) -> None:
    options = {"min_count": 1, "min_context_count": 1, "embedding_size": 4, "hidden_size": 4, "rank": 1, "epochs": 1}
    config = Config.of(context=list(CONTEXT), **options)
    run = train_run(ROWS, ROWS, config, tmp_path / "a & b")
    reader = Page(run._repr_html_())
    assert "Run a & b" in reader.text
    header, *rows = [row for row in reader.rows if len(row) == 3]
    assert header == ["table", "measure", "value"]
    assert rows == [list(result[:3]) for result in saved_results.measurements(saved_results.read(run.folder))]
    assert str(tmp_path) not in reader.text
