"""What is to be held against a run: from its log, and from what it gains over itself without context."""

from pathlib import Path
from typing import Any

import pytest

from factorcell import files
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.run_warnings import MAX_TEXTS, find_warnings, measure_context_gain
from factorcell.model.run import Run
from tests.small_runs import ROWS, make_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", ("city", "stars"), training={"patience": 2})


def logged(run: Run, last: int, *perplexities: float) -> None:
    """A log of evaluations up to the step `last` of 100."""
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
    (80, (9.0, 8.0, 8.5, 8.4), False),  # it had lost patience
    (0, (), False),  # no log: nothing is known
]


@pytest.mark.parametrize(("last", "perplexities", "said"), STOPPED)
def test_a_training_that_stopped_early_is_named(
    run: Run, last: int, perplexities: tuple[float, ...], said: bool
) -> None:
    logged(run, last, *perplexities)
    expected = (
        f"{run.folder}: its training stopped after {last} of 100 steps; read what it says of contexts with caution"
    )
    assert find_warnings([run]) == ([expected] if said else [])


def test_records_that_cannot_be_read_are_named(run: Run) -> None:
    run.log_path.write_text("no row\n", encoding="utf-8")
    (said,) = find_warnings([run])
    assert "its records cannot be read" in said
    run.log_path.unlink()
    files.write_json(run.folder / "training.json", [])
    assert "expected an object, got list" in find_warnings([run])[0]


def kept(low: float, texts: int, **more: Any) -> dict[str, Any]:
    row = {"texts": texts, "gain": low + 0.01, "gain_low": low, "gain_high": low + 0.02, "over": None, **more}
    return {"kind": "evaluate", "evaluation": row, "by": {}}


GAINS = [
    (None, [], ""),
    (0.01, [], ""),
    (-0.005, [], "gains nothing (+0.5% [-0.5, +1.5] not significant, 100 texts)"),
    (-0.05, [], "gains nothing (-4.0% [-5.0, -3.0], 100 texts)"),
    (-0.005, [kept(0.02, 500)], ""),
    (-0.005, [kept(0.02, 50)], "100 texts"),
    (0.01, [kept(-0.01, 500)], "500 texts"),
    (0.01, [kept(-0.01, 500, over="other"), kept(-0.01, 500, gain_low=None)], ""),
    (-0.05, [kept(0.02, 50, strangers=True)], "100 texts"),
    (0.01, [kept(-0.05, 500, strangers=True)], ""),
]


@pytest.mark.parametrize(("trained", "rows", "said"), GAINS)
def test_a_run_that_gains_nothing_is_named(run: Run, trained: float | None, rows: list[Any], said: str) -> None:
    if trained is not None:
        files.write_json(run.folder / "training.json", {"context": kept(trained, 100)["evaluation"]})
    files.write_rows(run.folder / "results.jsonl", rows)
    found = find_warnings([run])
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_the_gain_of_a_training_is_that_of_its_development_texts(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = run.prepare(ROWS * 3)
    found = measure_context_gain(run, held)
    with_it, without = (perplexity.evaluate(run, c)["perplexity"] for c in (held, held.without_context(run.schema)))
    assert found is not None
    assert found["gain"] == pytest.approx(1 - with_it / without)
    text_figures.save(run.folder, text_figures.figures_from_nats(run.nats(held), held))
    assert measure_context_gain(run, held) == pytest.approx(found)
    monkeypatch.setattr("factorcell.evaluation.run_warnings.MAX_TEXTS", 12)
    assert (measure_context_gain(run, held) or {})["texts"] == 12 < MAX_TEXTS
    assert measure_context_gain(make_run(tmp_path / "plain", adapt=[], output_bias=[]), held) is None
