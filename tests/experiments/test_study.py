"""The common part of all experiments: finished rows, resuming, and parallel trainings."""

import math
import subprocess
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import corpora
import papers
import study
from factorcell.config import Config
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training import trainer as training
from tests.checkpoints import checkpoints_every_step

frequent_checkpoints = checkpoints_every_step()

RECIPE = """
[data]
context = ["city"]
min_context_count = 1
[tokenizer]
min_count = 1
[model]
embedding_size = 4
[backbone]
hidden_size = 4
[training]
epochs = 6
batch_tokens = 12
evaluations = 3
learning_rate = 1e-2
"""
FAKE_SCRIPT = """
import json, sys, time
row = sys.argv[-3]
if row == "bad":
    sys.exit("error: nothing works")
if row == "long":
    time.sleep(600)
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"row": row, "arguments": sys.argv[2:]}) + "\\n")
"""


# ---- training ----


def experiment(folder: Path, rows: dict[str, Any]) -> study.Experiment:
    """Return a tiny experiment whose measurement is the name of the run folder."""
    (folder / "recipe.toml").write_text(RECIPE)

    def tables(data: Path, out: Path, share: float) -> corpora.Tables:
        texts = [{"text": f"the {'sea' if n % 3 else 'sun'} {n % 5}", "city": "ab"[n % 2]} for n in range(12)]
        train = corpora.create_once(out / f"texts-{share:g}.parquet", lambda: pa.Table.from_pylist(texts))
        test = corpora.create_once(out / f"test-{share:g}.parquet", lambda: pa.Table.from_pylist(texts[:7]))
        return {"train": train, "dev": train, "test": test}

    def measure(run: Run, tables: corpora.Tables) -> study.Measurement:
        return study.Measurement({"judged": run.folder.name})

    return study.Experiment("tiny", str(folder / "recipe.toml"), rows, tables, measure)


ROWS: dict[str, Any] = {
    "unadapted": {"model": {"adapt": [], "output_bias": []}},
    "concat": {"model": {"adapt": ["concat"], "output_bias": []}},
}


def script_options(
    out: Path, only: list[str] | None = None, *, trial: bool = False, jobs: int = 1, **more: Any
) -> Namespace:
    """Return the options of a script."""
    options = {"data": out, "out": out, "results": None, "only": only, "seeds": [0], "threads": 1, "jobs": jobs}
    return Namespace(**{**options, "trial": trial, **more})


def finished_rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows without the minutes, which vary."""
    return [
        {key: value for key, value in row.items() if key != "minutes"} for row in files.read_rows(out / "tiny.jsonl")
    ]


def test_finished_rows_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row has its command, options and figures."""
    tiny = experiment(tmp_path, ROWS)
    assert study.main(tiny, script_options(tmp_path, ["concat"]), ["x.py", "--a b"]) == 0
    assert study.main(tiny, script_options(tmp_path), ["x.py"]) == 0
    rows = files.read_rows(tmp_path / "tiny.jsonl")
    assert [row["row"] for row in rows] == ["concat", "unadapted"]
    assert rows[0]["command"] == "python x.py '--a b'"
    for row in rows:
        run = Run.open(tmp_path / "tiny" / row["row"] / "0")
        best = run.best_evaluation()
        assert best is not None
        assert row["dev"]["perplexity"] == pytest.approx(best["perplexity"], rel=1e-6)
        figures = evaluate(run, tmp_path / "tables" / "test-1.parquet").row
        assert figures.pop("unit") == "word"
        assert {name: row[name] for name in figures} == figures
        assert row["texts"] == 7
        assert (row["parameters"], row["judged"]) == (run.model.parameter_count(), "0")
        config = {**row["config"], "training": {**row["config"]["training"], "precision": row["precision"]}}
        assert (row["seed"], Config.from_dict(config)) == (0, run.config)
        assert study.grouped_figures(row)["perplexity"].ratio == pytest.approx(math.log(row["perplexity"]), rel=1e-6)
    monkeypatch.setattr(study, "make_row", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(study.Job, "tables", lambda _: pytest.fail("texts were written needlessly"))
    assert study.main(tiny, script_options(tmp_path), ["x.py"]) == 0
    assert study.main(tiny, script_options(tmp_path, jobs=2), ["x.py"]) == 0


def test_parts_of_a_text_are_merged_before_texts_are_grouped(tmp_path: Path) -> None:
    """Only the sums change; the figures are those of all texts."""

    def first_text_only(figures: Figures, tables: corpora.Tables) -> Figures:
        assert "test" in tables
        return {name: TextSums("w", sums.numerator[:1], sums.denominator[:1]) for name, sums in figures.items()}

    plain = experiment(tmp_path, ROWS)
    assert study.main(plain, script_options(tmp_path, ["concat"]), ["x.py"]) == 0
    assert (
        study.main(
            replace(plain, name="w", runs="tiny", merge_parts=first_text_only),
            script_options(tmp_path, ["concat"]),
            ["x.py"],
        )
        == 0
    )
    [first], [row] = (files.read_rows(tmp_path / f"{name}.jsonl") for name in ("tiny", "w"))
    assert (row["sums"]["perplexity"]["key"], len(row["sums"]["perplexity"]["above"])) == ("w", 1)
    assert (len(first["sums"]["perplexity"]["above"]), row["perplexity"]) == (7, first["perplexity"])


def test_saved_command_lines_contain_no_local_folders(tmp_path: Path) -> None:
    job = study.Job(experiment(tmp_path, ROWS), tmp_path / "d", tmp_path / "o", tmp_path / "o", (), 1, 1, False, ())
    command = (str(study.EXPERIMENTS_FOLDER / "tacl.py"), "agnews", "--data", str(tmp_path / "d"), "--only", "a b")
    assert replace(job, command=command).command_line() == "python experiments/tacl.py agnews --data DATA --only 'a b'"
    assert replace(job, command=("x.py", "--out", str(tmp_path / "o"))).command_line() == "python x.py --out OUT"


def test_runs_of_another_experiment_are_measured_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = experiment(tmp_path, ROWS)
    assert study.main(tiny, script_options(tmp_path, ["concat"]), ["x.py"]) == 0
    measuring = replace(
        tiny, name="told", runs="tiny", measure=lambda run, tables: study.Measurement({"folder": str(run.folder)})
    )
    steps: list[str] = []
    step = training.Trainer.step

    def record_folder(trainer: training.Trainer, batch: Any) -> None:
        steps.append(trainer.run.folder.parent.name)
        step(trainer, batch)

    monkeypatch.setattr(training.Trainer, "step", record_folder)
    assert study.main(measuring, script_options(tmp_path), ["x.py"]) == 0
    assert set(steps) == {"unadapted"}
    rows = {row["row"]: row for row in files.read_rows(tmp_path / "told.jsonl")}
    assert {name: row["folder"] for name, row in rows.items()} == {
        name: str(tmp_path / "tiny" / name / "0") for name in ROWS
    }
    first = files.read_rows(tmp_path / "tiny.jsonl")[0]
    assert rows["concat"]["perplexity"] == first["perplexity"]


def test_a_trial_has_its_own_rows_and_folders(tmp_path: Path) -> None:
    assert study.main(experiment(tmp_path, ROWS), script_options(tmp_path, ["concat"], trial=True), ["x.py"]) == 0
    assert [row["row"] for row in files.read_rows(tmp_path / "tiny-trial.jsonl")] == ["concat"]
    assert (tmp_path / "tiny-trial" / "concat" / "0").is_dir()
    assert (tmp_path / "tables" / "texts-0.01.parquet").exists()
    assert not (tmp_path / "tiny.jsonl").exists()


def test_each_seed_has_its_own_row(tmp_path: Path) -> None:
    """The first seed of all rows comes before the second; rows may be in another folder than the runs."""
    tiny, results = experiment(tmp_path, ROWS), tmp_path / "results"
    assert study.main(tiny, script_options(tmp_path, ["concat"], seeds=[1], results=results), ["x.py"]) == 0
    assert study.main(tiny, script_options(tmp_path, seeds=[0, 1], results=results), ["x.py"]) == 0
    rows = files.read_rows(results / "tiny.jsonl")
    assert [(row["row"], row["seed"]) for row in rows] == [
        ("concat", 1),
        ("unadapted", 0),
        ("concat", 0),
        ("unadapted", 1),
    ]
    assert rows[0]["perplexity"] != rows[2]["perplexity"]
    assert rows[0]["sums"]["perplexity"]["key"] == rows[1]["sums"]["perplexity"]["key"]


def test_a_stopped_training_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result equals that of a training that was never stopped."""
    for name in ("whole", "halved"):
        (tmp_path / name).mkdir()
    whole, halved = (experiment(tmp_path / name, ROWS) for name in ("whole", "halved"))
    assert study.main(whole, script_options(tmp_path / "whole"), ["x.py"]) == 0
    steps: list[int] = []
    step = training.Trainer.step

    def counted(trainer: training.Trainer, batch: Any) -> None:
        if len(steps) == 8:
            raise KeyboardInterrupt
        step(trainer, batch)
        steps.append(trainer.progress.step)

    monkeypatch.setattr(training.Trainer, "step", counted)
    assert study.main(halved, script_options(tmp_path / "halved"), ["x.py"]) == 130
    assert steps == list(range(1, 9))
    assert finished_rows(tmp_path / "halved") == []
    total = Run.open(tmp_path / "whole" / "tiny" / "unadapted" / "0").log()[-1]["steps"]
    assert total > 8
    steps[:] = [0] * 9
    assert study.main(halved, script_options(tmp_path / "halved"), ["x.py"]) == 0
    assert finished_rows(tmp_path / "halved") == finished_rows(tmp_path / "whole")
    assert steps[9:] == [*range(9, total + 1), *range(1, total + 1)]


def test_mistakes_give_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = experiment(tmp_path, {**ROWS, "odd": {"model": {"adapt": ["concatt"]}}})
    assert study.main(tiny, script_options(tmp_path, ["conkat"]), ["x.py"]) == 2
    assert "'concat'" in capsys.readouterr().err
    assert study.main(tiny, script_options(tmp_path, ["odd"]), ["x.py"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("odd", "adapt", "concatt"))
    assert study.main(tiny, script_options(tmp_path, ["concat"]), ["x.py"]) == 0
    other = experiment(tmp_path, {"concat": {"model": {**ROWS["concat"]["model"]}, "backbone": {"hidden_size": 5}}})
    assert study.main(other, script_options(tmp_path), ["x.py"]) == 2
    assert "concat 0" in capsys.readouterr().err


L1 = ("training", "sparse_l1", ["1e-4"], ["1e-6"])
SIZE, OF_VARIABLES = ("model", "context_size", 3, 4), ("model", "variable_size", 3, 4)
CODES = {"adapt": ["prefix"], "output_bias": []}


@pytest.mark.parametrize(
    ("option", "model", "is_same"),
    [
        (L1, {}, True),
        (L1, {"output_bias": ["sparse"]}, False),
        (SIZE, {"adapt": [], "output_bias": []}, True),
        (SIZE, CODES, True),
        (OF_VARIABLES, CODES, True),
        (OF_VARIABLES, {"output_bias": []}, False),
        (SIZE, {"adapt": [], "output_bias": ["low_rank"]}, False),
        (SIZE, {"output_bias": []}, False),
    ],
)
def test_unread_options_do_not_distinguish_rows(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: tuple[str, str, Any, Any],
    model: dict[str, Any],
    is_same: bool,
) -> None:
    """Only models with a sparse bias read its penalty; only models with a context vector read its size."""
    section, name, *values = option
    for index, value in enumerate(values):
        sections: dict[str, Any] = {"model": {**ROWS["concat"]["model"], **model}, "training": {}}
        sections[section][name] = value
        exit_code = 2 if index and not is_same else 0
        assert study.main(experiment(tmp_path, {"one": sections}), script_options(tmp_path), ["x.py"]) == exit_code
    assert ("made with other options" in capsys.readouterr().err) != is_same


# ---- parallel trainings ----


def job(folder: Path, rows: list[str]) -> study.Job:
    """Return a job whose processes run a small script instead of a training."""
    (folder / "fake.py").write_text(FAKE_SCRIPT)
    command = (str(folder / "fake.py"), str(folder / "tiny.jsonl"))
    trainings = tuple(study.Training(row, 3) for row in rows)
    return study.Job(experiment(folder, ROWS), folder, folder, folder, trainings, 1, 2, False, command)


@pytest.fixture
def _short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "POLL_SECONDS", 0.02)


@pytest.mark.usefixtures("_short_poll_interval")
def test_a_failed_row_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row is made in its own process; the failure is reported."""
    parallel_job = job(tmp_path, ["one", "bad", "two", "three"])
    assert study.run_in_parallel(parallel_job, parallel_job.trainings) == 1
    rows = files.read_rows(tmp_path / "tiny.jsonl")
    assert sorted(row["row"] for row in rows) == ["one", "three", "two"]
    assert all(row["arguments"] == ["--jobs", "1", "--only", row["row"], "--seeds", "3"] for row in rows)
    assert "bad 3 failed: error: nothing works" in capsys.readouterr().err


@pytest.mark.usefixtures("_short_poll_interval")
def test_stopping_the_script_stops_its_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting trainings are not started."""
    started: list[subprocess.Popen[bytes]] = []
    start = study._start_process

    def record_folder(job: study.Job, training: study.Training) -> "subprocess.Popen[bytes]":
        started.append(start(job, training))
        return started[-1]

    monkeypatch.setattr(study, "_start_process", record_folder)

    def interrupt_after_first() -> Iterator[None]:
        yield
        raise KeyboardInterrupt

    sleeps = interrupt_after_first()
    monkeypatch.setattr(time, "sleep", lambda _: next(sleeps))
    parallel_job = job(tmp_path, ["long", "long too", "never"])
    with pytest.raises(KeyboardInterrupt):
        study.run_in_parallel(parallel_job, parallel_job.trainings)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_script_writes_its_rows(tmp_path: Path, jobs: str) -> None:
    """Only models with a context classify."""
    (tmp_path / "commonvoice9").mkdir()
    words = {"de": "das ist gut", "en": "a box of wool"}
    for part, count in (("train", 8000), ("dev", 60)):
        texts = [{"text": f"{words[name]} {n}", "language": name} for n in range(count) for name in words]
        pq.write_table(pa.Table.from_pylist(texts), tmp_path / "commonvoice9" / f"{part}.parquet")
    arguments = ["commonvoice9", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--trial", "--jobs", jobs]
    arguments += ["--seeds", "0"]
    assert papers.main([*arguments, "--only", "unadapted", "concat"]) == 0
    rows = {row["row"]: row for row in files.read_rows(tmp_path / "out" / "commonvoice9-trial.jsonl")}
    assert set(rows) == {"unadapted", "concat"}
    assert "accuracy" not in rows["unadapted"]
    assert (rows["concat"]["candidates"], rows["concat"]["judged"]) == (2, 20)
    assert 0 <= rows["concat"]["accuracy"] <= 1
