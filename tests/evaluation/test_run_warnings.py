"""Warnings about runs, from their logs and from the gain over an unknown context."""

from pathlib import Path
from typing import Any

import pytest

from factorcell import files
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.run_warnings import (
    MAX_TEXTS,
    find_warnings,
    measure_context_effect,
    mixture_notice,
    training_difference,
)
from factorcell.model.run import Run
from tests.small_runs import ROWS, make_run, with_ngrams


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", ("city", "stars"), training={"patience": 2})


def write_log(run: Run, last: int, *perplexities: float) -> None:
    """Write a log of evaluations up to the step `last` of 100."""
    best, rows = float("inf"), []
    for number, value in enumerate(perplexities, 1):
        best = min(best, value)
        row = {"step": last * number // len(perplexities), "steps": 100, "seconds": 1.0}
        rows.append({**row, "split": "dev", "perplexity": value, "best": best})
    files.write_rows(run.log_path, rows)


STOPPED = [
    (100, (9.0, 8.0), False),
    (40, (9.0, 8.0), True),
    (60, (9.0, 8.0, 8.5), True),
    (80, (9.0, 8.0, 8.5, 8.4), False),  # stopped by its patience
    (0, (), False),  # no log
]


@pytest.mark.parametrize(("last", "perplexities", "warns"), STOPPED)
def test_a_training_that_stopped_early_causes_a_warning(
    run: Run, last: int, perplexities: tuple[float, ...], warns: bool
) -> None:
    write_log(run, last, *perplexities)
    expected = (
        f"{run.folder}: its training stopped after {last} of 100 steps; interpret its use of contexts with caution"
    )
    assert find_warnings([run]) == ([expected] if warns else [])


def test_unreadable_records_cause_a_warning(run: Run) -> None:
    run.log_path.write_text("no row\n", encoding="utf-8")
    (warning,) = find_warnings([run])
    assert "its records cannot be read" in warning
    run.log_path.unlink()
    files.write_json(run.folder / "training.json", [])
    assert "expected an object, got list" in find_warnings([run])[0]


def evaluation_result(low: float, texts: int, **more: Any) -> dict[str, Any]:
    ends = {"": low + 0.01, "_low": low, "_high": low + 0.02}
    gains = {f"gain_over_unknown_context{end}": value for end, value in ends.items()}
    return {"kind": "evaluate", "table": f"{len(more)} {texts}", "texts": texts, **gains, **more}


def baseline_result(texts: int, **more: Any) -> dict[str, Any]:
    return {"kind": "evaluate", "table": "a", "texts": texts, "baseline": "b", "gain_over_baseline_low": -0.01, **more}


GAINS = [
    (None, [], ""),
    (0.01, [], ""),
    (
        -0.005,
        [],
        "does not significantly lower the perplexity (gain over an unknown context (same model): +0.5% [-0.5, +1.5] "
        "not significant, 100 texts)",
    ),
    (
        -0.05,
        [],
        "does not significantly lower the perplexity "
        "(gain over an unknown context (same model): -4.0% [-5.0, -3.0], 100 texts)",
    ),
    (-0.005, [evaluation_result(0.02, 500)], ""),
    (-0.005, [evaluation_result(0.02, 50)], "100 texts"),
    (0.01, [evaluation_result(-0.01, 500)], "500 texts"),
    (
        0.01,
        [
            baseline_result(500),
            evaluation_result(-0.01, 500, gain_over_unknown_context_low=None),
        ],
        "",
    ),
    (-0.05, [evaluation_result(0.02, 50, only_unknown_users=True)], "100 texts"),
    (0.01, [evaluation_result(-0.05, 500, only_unknown_users=True)], ""),
    (
        None,
        [evaluation_result(0.01, 500, only_unknown_users=True)],
        "the effect of its context is measured only on texts of unknown users; interpret",
    ),
    (None, [baseline_result(500, only_unknown_users=True)], ""),
]


@pytest.mark.parametrize(("gain_low", "rows", "text"), GAINS)
def test_a_run_whose_context_has_no_significant_effect_causes_a_warning(
    run: Run, gain_low: float | None, rows: list[Any], text: str
) -> None:
    if gain_low is not None:
        files.write_json(run.folder / "training.json", {"context": evaluation_result(gain_low, 100)})
    files.write_rows(run.folder / "results.jsonl", rows)
    warnings = find_warnings([run])
    assert len(warnings) == bool(text)
    assert text in "".join(warnings)


def test_the_effect_of_removing_the_context_is_that_on_development_texts(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held_out = run.prepare(ROWS * 3)
    gain = measure_context_effect(run, held_out)
    with_context, without_context = (
        perplexity.evaluate(run, c)["perplexity"] for c in (held_out, held_out.without_context(run.schema))
    )
    assert gain is not None
    assert gain["gain_over_unknown_context"] == pytest.approx(1 - with_context / without_context)
    figures = text_figures.figures_from_nats(run.nats(held_out), held_out)
    text_figures.save(run.folder, figures, text_figures.DEVELOPMENT_RESULT)
    saved_gain = measure_context_effect(run, held_out) or {}
    assert saved_gain.pop("columns") == gain.pop("columns")
    assert saved_gain == pytest.approx(gain)
    monkeypatch.setattr("factorcell.evaluation.run_warnings.MAX_TEXTS", 12)
    assert (measure_context_effect(run, held_out) or {})["texts"] == 12 < MAX_TEXTS
    assert measure_context_effect(make_run(tmp_path / "plain", adapt=[], output_bias=[]), held_out) is None


def write_training(run: Run, tokens: int, *steps: int) -> None:
    """Write the facts of a training of 100 texts with 1,000 targets, and a log with the planned numbers of steps."""
    files.write_json(run.folder / "training.json", {"texts": 100, "targets": 1000})
    rows = [
        {"step": planned, "steps": planned, "seconds": 1.0, "tokens": tokens, "split": "train"} for planned in steps
    ]
    files.write_rows(run.log_path, rows)


def test_the_amount_of_training_is_compared_in_texts(run: Run, tmp_path: Path) -> None:
    baseline = make_run(tmp_path / "baseline", ())
    write_training(run, 5000, 10)
    write_training(baseline, 2500, 10)
    assert training_difference(run, baseline) == (
        "the trainings differ in more than the context (the baseline read 250 training texts, this run 500), so their "
        "difference in perplexity and bits per byte is not the effect of the context alone"
    )
    files.write_rows(baseline.log_path, [{**row, "step": 5} for row in baseline.log()])
    difference = training_difference(run, baseline) or ""
    assert "(the baseline read 250 training texts, this run 500; the baseline stopped early, which --pat" in difference
    files.write_json(baseline.folder / "training.json", {"texts": 200, "targets": 1000})  # of another tokenizer
    assert training_difference(run, baseline) is None


def test_a_notice_gives_the_perplexity_of_the_neural_model_next_to_that_of_the_mixture(run: Run) -> None:
    assert mixture_notice(run) == []
    with_ngrams(run, ["the sea"])
    assert mixture_notice(run) == [f"{run.folder}: predicts with the mixture of its neural model and n-gram counts"]
    figures = {"mixture": 86.04, "neural": 118.7, "ngram": 105.3}
    files.write_json(run.folder / "training.json", {"ngram": {"perplexity": figures}})
    assert mixture_notice(run)[0].endswith("(development perplexity 86.04; the neural model alone 118.70)")


def test_tables_for_unadapted_runs_may_lack_context_columns(tmp_path: Path) -> None:
    unadapted = make_run(tmp_path / "unadapted", adapt=[], output_bias=[])
    assert [row["nats"] for row in unadapted.score([{"text": row["text"]} for row in ROWS])] == [
        row["nats"] for row in unadapted.score(ROWS)
    ]
