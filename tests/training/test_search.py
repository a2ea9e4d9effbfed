"""Searches: trials are runs that processes share, and stopped or killed trials resume."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from filelock import FileLock

from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.evaluation import text_figures
from factorcell.evaluation.classification import classify
from factorcell.io import files
from factorcell.reports import search as trials
from factorcell.runs.run import Run
from factorcell.training import fit as fitting
from factorcell.training.fit import train_run
from factorcell.training.loop import train
from factorcell.training.tuning import search, search_space
from tests import ROOT
from tests.processes import requires_fork, run_and_kill
from tests.small_runs import CONTEXT, ROWS, make_run

CONFIG = Config.of(
    context=CONTEXT,
    min_count=1,
    min_context_count=1,
    variable_size=2,
    number_size=4,
    epochs=3,
    batch_tokens=12,
    evaluations=3,
    threads=1,
    precision="float32",
)
RANGES: search_space.Space = {
    "hidden_size": search_space.Range(3, 9),
    "embedding_size": (4, 6),
    "rank": search_space.Range(1, 8, log=True),
    "context_size": search_space.Range(2, 5),
    "learning_rate": search_space.Range(1e-3, 1e-1, log=True),
}
MODELS = ("unadapted", "factorcell")


def run_search(folder: Path, count: int, **arguments: Any) -> list[dict[str, Any]]:
    """Search with the table `ROWS`; return the rows by number."""
    options = {"ranges": RANGES, "pruner": "none", **arguments}
    config, page = options.pop("config", CONFIG), options.pop("page", None)
    rows = search.search(ROWS, ROWS[:5], config, folder, search.SearchOptions(count, **options), page=page)
    return sorted(rows, key=lambda row: row["number"])


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without durations, which differ between equal searches."""
    return [{key: value for key, value in row.items() if key != "minutes"} for row in rows]


def test_every_trial_is_a_run_and_the_best_is_a_recipe(tmp_path: Path) -> None:
    rows = run_search(tmp_path / "s", 4, models=MODELS, target="city", page=trials.search_page)
    assert files.read_rows(tmp_path / "s" / "trials.jsonl") == rows
    assert [row["number"] for row in rows] == [0, 1, 2, 3]
    assert {row["model"] for row in rows} == set(MODELS)
    for row in rows:
        run = Run.open(tmp_path / "s" / row["folder"])
        best = run.best_evaluation()
        assert best is not None
        assert run.config == search_space.with_drawn_options(CONFIG, {"model": row["model"], **row["params"]})
        assert (row["state"], row["perplexity"]) == ("complete", best["perplexity"])
        assert row["perplexity"] == min(r["perplexity"] for r in run.log() if r["split"] == "dev")
        assert row["perplexity_known"] == best["perplexity_known"]
        assert row["parameters"] == run.model.parameter_count()
        assert ("rank" in row["params"]) == ("accuracy" in row) == (row["model"] == "factorcell")
        if "accuracy" in row:
            assert row["accuracy"] == classify(run, ROWS[:5], "city").metrics()["accuracy"]
            assert "accuracy of city" in (run.folder / "README.md").read_text(encoding="utf-8")
    first = search.rank_trials(rows)[0]
    assert first["perplexity"] == min(row["perplexity"] for row in rows)
    recipe = Config.of(config=tmp_path / "s" / "best.toml")
    assert recipe == Run.open(tmp_path / "s" / first["folder"]).config
    again = train_run(ROWS, ROWS[:5], recipe, tmp_path / "again").best_evaluation()
    assert again is not None
    assert again["perplexity"] == first["perplexity"]
    assert "<svg" in (tmp_path / "s" / "study.html").read_text(encoding="utf-8")
    assert not list((tmp_path / "s").glob("trial-*.lock"))


def test_draws_follow_from_the_seed_and_not_from_the_process(tmp_path: Path) -> None:
    whole = run_search(tmp_path / "whole", 4)
    for count in range(1, 5):
        steps = run_search(tmp_path / "steps", count)
    assert without_times(steps) == without_times(whole)
    assert {row["model"] for row in whole} == {"factorcell"}, "the model of the config, if no model is drawn"
    assert len({json.dumps(row["params"]) for row in whole}) == 4
    other = run_search(tmp_path / "other", 2, config=search_space.with_drawn_options(CONFIG, {"seed": 1}))
    assert all(first["params"] != second["params"] for first, second in zip(whole, other, strict=False))


def test_tpe_learns_from_earlier_trials(tmp_path: Path) -> None:
    errors: dict[str, list[float]] = {}
    for kind in ("random", "tpe"):
        study = optuna.create_study()
        for number in range(40):
            study.sampler = search.trial_sampler(kind, 1, number)
            trial = study.ask()
            study.tell(trial, (trial.suggest_float("x", 0, 1) - 0.7) ** 2)
        errors[kind] = [abs(trial.params["x"] - 0.7) for trial in study.trials]
        assert len(set(errors[kind])) == 40
    assert errors["tpe"][:10] == errors["random"][:10]
    assert sum(errors["tpe"][10:]) < 0.6 * sum(errors["random"][10:])
    rows = run_search(tmp_path / "a", 2, sampler="tpe")
    assert without_times(run_search(tmp_path / "b", 2, sampler="tpe")) == without_times(rows)
    with pytest.raises(UserError, match="did you mean 'tpe'"):
        run_search(tmp_path / "c", 2, sampler="tp")
    with pytest.raises(UserError, match="did you mean 'median'"):
        run_search(tmp_path / "c", 2, pruner="medan")


def test_a_stopped_search_resumes_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = search_space.with_drawn_options(CONFIG, {"dropout_input": 0.2, "save_every": 1, "log_every": 1})
    whole = run_search(tmp_path / "whole", 3, config=config)
    steps: list[tuple[str, list[int]]] = []

    def interrupted_train(run: Run, *others: Any, **keywords: Any) -> Iterator[dict[str, Any]]:
        logged: list[int] = []
        steps.append((run.folder.name, logged))
        for row in train(run, *others, **keywords):
            yield row
            logged.append(row["step"])
            if run.folder.name == "trial-0001" and row["split"] == "dev" and len(steps) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("factorcell.training.tuning.search.train", interrupted_train)
    with pytest.raises(KeyboardInterrupt):
        run_search(tmp_path / "stopped", 3, config=config, page=trials.search_page)
    saved = files.read_rows(tmp_path / "stopped" / "trials.jsonl")
    assert [row["state"] for row in saved] == ["complete", "running"]
    assert (tmp_path / "stopped" / "study.html").exists()
    assert without_times(run_search(tmp_path / "stopped", 3, config=config)) == without_times(whole)
    assert [name for name, _ in steps] == ["trial-0000", "trial-0001", "trial-0001", "trial-0002"]
    first, again = steps[1][1], steps[2][1]
    assert again[0] == first[-1], "resumed from the last checkpoint, before that evaluation"


def test_a_search_with_a_tokenizer_of_characters_resumes(tmp_path: Path) -> None:
    config = CONFIG.with_options(tokenizer="char", min_count=1, epochs=1.0)
    (first,) = run_search(tmp_path / "study", 1, config=config)
    again = run_search(tmp_path / "study", 2, config=config)
    assert [again[0][key] for key in ("params", "perplexity")] == [first[key] for key in ("params", "perplexity")]
    assert [row["state"] for row in again] == ["complete", "complete"]


PROCESS = """
import os, sys, time
from pathlib import Path
from factorcell.training import search
from tests.training.test_search import run_search
folder, attempt = Path(sys.argv[1]), search.Search.attempt

def wait_and_attempt(self, trial, progress):
    "Train after both processes have claimed a trial."
    (folder / f"claimed-{os.getpid()}").touch()
    end = time.monotonic() + 60
    while len(list(folder.glob("claimed-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    attempt(self, trial, progress)
search.Search.attempt = wait_and_attempt
import torch
torch.set_num_threads(1)
run_search(folder, 6)
"""


@pytest.mark.slow
def test_two_processes_share_the_trials_of_a_search(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    command = [sys.executable, "-c", PROCESS, str(folder)]
    both = [subprocess.Popen(command, env={"PYTHONPATH": ":".join([str(ROOT), *sys.path])}) for _ in range(2)]
    single = without_times(run_search(tmp_path / "single", 6))
    assert [each.wait(timeout=100) for each in both] == [0, 0]
    assert len(list(folder.glob("claimed-*"))) == 2
    assert without_times(run_search(folder, 6)) == single


def die_in_a_trial(folder: Path) -> None:
    """Search, and kill this process at the first evaluation."""

    def deadly_train(*others: Any, **keywords: Any) -> Iterator[dict[str, Any]]:
        for row in train(*others, **keywords):
            yield row
            if row["split"] == "dev":
                os.kill(os.getpid(), signal.SIGKILL)

    search.train = deadly_train  # type: ignore[attr-defined, assignment]
    run_search(folder, 6)


@requires_fork
def test_a_killed_trial_is_resumed(tmp_path: Path) -> None:
    assert run_and_kill(partial(die_in_a_trial, tmp_path / "killed"))
    study, _ = search.open_study(tmp_path / "killed", "none")
    assert [trial.state.name for trial in study.trials] == ["RUNNING"]
    assert without_times(run_search(tmp_path / "killed", 2)) == without_times(run_search(tmp_path / "whole", 2))
    assert not list((tmp_path / "killed").glob("trial-*.lock"))


def open_search(folder: Path) -> search.Search:
    """Return a search of one trial that is not claimed."""
    study, folder_lock = search.open_study(folder, "none")
    texts = fitting.read_corpora(ROWS, ROWS[:5], CONFIG)
    options = search.SearchOptions(trials=1, ranges=RANGES)
    return search.Search(study, folder_lock, lambda _: texts, ROWS, None, CONFIG, folder, options)


def test_a_trial_that_another_process_trains_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_search(tmp_path)
    claim = first.claim()
    assert claim is not None
    trial, lock = claim
    assert open_search(tmp_path).claim() is None
    lock.release()
    again = open_search(tmp_path).claim()
    assert again is not None
    assert again[0].number == trial.number == 0
    again[1].release()
    late = open_search(tmp_path)
    looks = [late._trials()]
    first.study.tell(trial, 3.0)
    monkeypatch.setattr(late, "_trials", lambda: looks.pop() if looks else late.study.get_trials())
    assert late.claim() is None
    with FileLock(tmp_path / "trial-0000.lock", blocking=False):
        pass  # the lock is free again


def test_a_trial_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    unfinished = open_search(tmp_path / "s")
    claim = unfinished.claim()
    assert claim is not None
    claim[1].release()
    (tmp_path / "s" / "trial-0000").mkdir()
    (tmp_path / "s" / "trial-0000" / "config.json").write_text("{", encoding="utf-8")
    assert without_times(run_search(tmp_path / "s", 1)) == without_times(run_search(tmp_path / "t" / "s", 1))
    assert unfinished.rows()[0]["state"] == "complete"


def test_a_trial_that_diverges_fails_and_the_search_continues(tmp_path: Path) -> None:
    rows = run_search(tmp_path / "s", 6, ranges={"learning_rate": (1e38, 1e-2)}, page=trials.search_page)
    states = {row["params"]["learning_rate"]: row["state"] for row in rows}
    assert states == {1e38: "failed", 1e-2: "complete"}
    for row in rows:
        assert ("is not finite" in row.get("error", "")) == (row["state"] == "failed")
    assert search.rank_trials(rows)[0]["state"] == "complete"
    assert "failed" in search.describe_trial(next(row for row in rows if row["state"] == "failed"))
    page = (tmp_path / "s" / "study.html").read_text(encoding="utf-8")
    assert "failed" in page


def test_an_unexpected_error_fails_its_trial_and_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("factorcell.training.tuning.search.write_training_facts", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_search(tmp_path, 2)
    assert [row["state"] for row in run_search(tmp_path, 2)] == ["failed", "complete"]


def test_a_search_with_other_options_is_not_resumed(tmp_path: Path) -> None:
    rows = run_search(tmp_path / "s", 1)
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"config": search_space.with_drawn_options(CONFIG, {"epochs": 4})},
            "expected training.epochs = 3.0 as before, got 4.0",
        ),
        ({"ranges": {**RANGES, "rank": (1, 2)}}, r"expected range of rank = .*'high': 8.* as before, got \[1, 2\]"),
        ({"ranges": {}}, "expected range of hidden_size = .* as before, got None"),
        ({"target": "city"}, "expected target = None as before, got 'city'"),
        ({"models": ["factorcell", "unadapted"]}, "models = "),
    ]
    for more, message in cases:
        with pytest.raises(UserError, match=message):
            run_search(tmp_path / "s", 2, **more)
    with pytest.raises(UserError, match="cannot resume; expected texts = 10 as before, got 9"):
        search.search(ROWS[1:], ROWS[:5], CONFIG, tmp_path / "s", search.SearchOptions(ranges=RANGES))
    assert files.read_rows(tmp_path / "s" / "trials.jsonl") == rows
    threads = search_space.with_drawn_options(CONFIG, {"threads": 2})
    assert len(run_search(tmp_path / "s", 2, config=threads, sampler="tpe", pruner="median")) == 2


def test_invalid_searches_are_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"target": "lat"}, "lat: expected a category, got a variable of kind number"),
        ({"target": "town"}, "unknown context variable 'town'"),
        ({"ranges": {"rank": search_space.Range(-1, 3)}}, "search space: rank is -1"),
    ]
    for more, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            run_search(tmp_path / "s", 1, **more)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="trials is 0; it must be at least 1"):
        run_search(tmp_path / "s", 0)
    with pytest.raises(UserError, match="target: expected a development table to classify, got none"):
        search.search(ROWS, None, CONFIG, tmp_path / "s", search.SearchOptions(target="city"))
    nameless = [{**row, "city": None} for row in ROWS]
    with pytest.raises(UserError, match="no text has a candidate value of city"):
        search.search(ROWS, nameless, CONFIG, tmp_path / "s", search.SearchOptions(target="city"))
    assert not list(tmp_path.glob("s/trial-*"))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "study.journal").write_text('{"op_code": 0, "wor\n{"op\n{"a"\n', encoding="utf-8")
    (tmp_path / "file").touch()
    for name, message in (("file", "cannot be opened"), ("d", r"study.journal: the study cannot be opened")):
        with pytest.raises(UserError, match=message):
            run_search(tmp_path / name, 1)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"; pip install 'filelock>="):
        run_search(tmp_path / "e", 1)
    assert not (tmp_path / "e").exists()


def test_rows_are_ranked_by_state_and_perplexity() -> None:
    states = [("failed", 1.0), ("pruned", 2.0), ("complete", 9.0), ("running", None), ("complete", 8.0)]
    rows = [{"number": n, "state": state, "perplexity": p} for n, (state, p) in enumerate(states)]
    assert [row["number"] for row in search.rank_trials(rows)] == [4, 2, 1, 0, 3]


def make_trial(folder: Path, number: int) -> dict[str, Any]:
    """Return the row of a trial with saved figures; a trial with a higher number has higher nats."""
    torch.manual_seed(0)
    run: Run = make_run(folder / f"trial-{number}", ("city",))
    corpus = run.prepare(ROWS * 2)
    texts = text_figures.figures_from_nats(run.nats(corpus) + 0.3 * number, corpus)
    text_figures.save(run.folder, texts, text_figures.DEVELOPMENT_RESULT)
    files.write_json(run.folder / "training.json", {"development_key": texts["perplexity"].key})
    perplexity = 2.718281828459045 ** texts["perplexity"].ratio
    return {"number": number, "state": "complete", "perplexity": perplexity, "folder": run.folder.name}


def test_trials_are_compared_with_the_best(tmp_path: Path) -> None:
    rows = [make_trial(tmp_path, number) for number in (2, 0, 1)]
    failed = {"number": 3, "state": "failed", "perplexity": None, "folder": "trial-3"}
    compared = search.compare_trials([*rows, failed], tmp_path)
    assert [row["number"] for row in compared] == [2, 0, 1, 3]
    assert [row["ahead"] for row in compared] == [[], ["perplexity"], [], []]
    best = min(rows, key=lambda row: float(row["perplexity"]))["perplexity"]
    for row in compared:
        assert ("gain_over_best" in row) == (row["number"] in (1, 2))
        if "gain_over_best" in row:
            assert row["gain_over_best"] == pytest.approx(1 - row["perplexity"] / best)
            assert row["gain_over_best_low"] <= row["gain_over_best"] <= row["gain_over_best_high"] < 0
