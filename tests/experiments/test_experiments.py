"""The experiments of the thesis: their rows, their texts, and that nothing is trained twice."""

import itertools
import math
import subprocess
import time
import tomllib
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

import corpora
import study
import thesis_sixteen
import thesis_sparse
import thesis_subreddits
import thesis_variables
import titles
from factorcell import files
from factorcell.config import Config
from factorcell.data.schema import RARE, ContextSchema, Variable
from factorcell.evaluation.perplexity import evaluate
from factorcell.model.run import Run
from factorcell.training import trainer as training
from tests.small import make_run

ALL = {
    **thesis_sixteen.EXPERIMENTS,
    "variables": thesis_variables.EXPERIMENT,
    "subreddits": thesis_subreddits.EXPERIMENT,
    "sparse": thesis_sparse.EXPERIMENT,
}
PUBLISHED = tomllib.loads((study.HERE / "published.toml").read_text(encoding="utf-8"))

# The gains as the thesis prints them, in per cent, row by row: they tell a slip of the pen in its perplexities.
GAINS = {
    "reddit_titles": "0 7.3 9.5 11.0 9.0 11.0 9.6 11.5 7.7 8.5 10.6 8.2 10.2 9.1 10.7",
    "scotus": "0 16.5 12.0 19.6 11.0 19.8 12.4 20.3 10.7 20.1 13.4 21.7 11.0 20.1 13.7 21.1",
    "subreddits": "24.6 22.2 18.3 16.3 16.3 15.5 15.2 14.3 13.5 12.2 10.9 8.2 7.1 3.9 3.7 3.0 2.9 2.5",
}

RECIPE = """
[data]
context = ["city"]
min_count = 1
min_context_count = 1
[model]
embedding_size = 4
hidden_size = 4
[training]
epochs = 6
batch_tokens = 12
evaluations = 3
save_every = 1
learning_rate = 1e-2
"""
FAKE = """
import json, sys, time
row = sys.argv[-3]
if row == "bad":
    sys.exit("error: nothing works")
if row == "long":
    time.sleep(600)
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"row": row, "arguments": sys.argv[2:]}) + "\\n")
"""


# ---- the rows ----


@pytest.mark.parametrize("name", thesis_sixteen.EXPERIMENTS)
def test_there_are_sixteen_rows_as_in_the_thesis(name: str) -> None:
    """Every subset of the four adaptations once, each in its slot, named as in the file of published figures."""
    rows = thesis_sixteen.EXPERIMENTS[name].rows
    subsets = {frozenset(part) for size in range(5) for part in itertools.combinations(thesis_sixteen.PARTS, size)}
    model = [row["model"] for row in rows.values()]
    assert {frozenset([*part["adapt"], *part["output_bias"]]) for part in model} == subsets
    assert len(rows) == 16
    assert all(set(part["adapt"]) <= {"scale", "concat"} for part in model)
    assert all(set(part["output_bias"]) <= {"low_rank", "hash"} for part in model)
    assert [row for row in rows if row in PUBLISHED[name]] == list(PUBLISHED[name])
    assert set(rows) - set(PUBLISHED[name]) == ({"scale+hash"} if name == "reddit_titles" else set())


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, whole in ALL.items() for row in whole.rows])
def test_the_library_knows_every_option(name: str, row: str) -> None:
    """Each row of each experiment is a valid config, and differs from the recipe as it says."""
    config = ALL[name].config(study.Training(row, 5), 1).to_dict()
    assert (config["training"]["seed"], config["training"]["threads"]) == (5, 1)
    for section, options in ALL[name].rows[row].items():
        assert {key: config[section][key] for key in options} == {
            key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
        }


def test_table_3_8_has_eight_rows_of_which_two_are_of_table_3_7() -> None:
    """Six of its own, all with all four adaptations, and two whose models are trained for the other table."""
    rows = thesis_variables.ROWS
    assert {"none", *rows, "case+speaker+role"} == set(PUBLISHED["variables"])
    assert len(rows) == 6
    whole = thesis_sixteen.EXPERIMENTS["scotus"].rows["scale+concat+low_rank+hash"]["model"]
    assert all(row["model"] == whole for row in rows.values())
    assert all(name.split("+") == row["data"]["context"] for name, row in rows.items())
    assert thesis_variables.EXPERIMENT.recipe == thesis_sixteen.EXPERIMENTS["scotus"].recipe


def test_table_a_1_searches_for_a_penalty_of_each_variable() -> None:
    """Each kind of the published table is there, those with a sparse part once for each trial; and the threshold."""
    rows = thesis_sparse.EXPERIMENT.rows
    for kind in PUBLISHED["sparse"]:
        named = [name for name in rows if name == kind or name.rpartition("-")[0] == kind]
        assert len(named) == (thesis_sparse.TRIALS if "sparse" in kind else 1)
    assert len({repr(row) for row in rows.values()}) == len(rows)
    config = thesis_sparse.EXPERIMENT.config(study.Training("sparse-3", 0), 1)
    assert config.data.context == thesis_sparse.VARIABLES
    assert [one.split("=")[0] for one in config.training.sparse_l1] == list(thesis_sparse.VARIABLES)
    assert thesis_sparse.penalties() == thesis_sparse.penalties()
    for variable in thesis_sparse.VARIABLES:
        assert len({each[variable] for each in thesis_sparse.penalties()}) > 2
    printed = thesis_sparse.EXPERIMENT.config(study.Training("threshold-0.01", 0), 1).model
    assert (printed.sparse_printed, printed.sparse_penalty) == (True, ("0.01",))


@pytest.mark.parametrize("name", GAINS)
def test_published_perplexities_give_the_published_gains(name: str) -> None:
    """To what rounding allows."""
    rows = PUBLISHED[name]
    pairs = [(rows["unadapted"][0], row[0]) if "unadapted" in rows else tuple(row) for row in rows.values()]
    assert [100 * (1 - after / before) for before, after in pairs] == pytest.approx(
        [float(figure) for figure in GAINS[name].split()], abs=0.21
    )


# ---- the texts ----


def test_long_turns_become_several() -> None:
    """Nothing is lost but what lies beyond the words asked for, and each piece keeps its context."""
    lengths = [3, 45, 46, 0, 200, 7]
    texts = [" ".join(f"w{row}.{word}" for word in range(length)) for row, length in enumerate(lengths)]
    table = pa.table({"text": texts, "case": list("abcdef")})
    every = " ".join(texts).split()
    for words in (1, 3, 48, 93, 94, 95, 1000):
        pieces = thesis_sixteen.turns(table, words).to_pylist()
        assert " ".join(piece["text"] for piece in pieces).split() == every[:words]
        assert all(0 < len(piece["text"].split()) <= thesis_sixteen.LONGEST for piece in pieces)
        assert all("abcdef"[int(piece["text"][1])] == piece["case"] for piece in pieces)


def test_the_justices_who_speak_most() -> None:
    """Eleven of them, texts in their order, nobody else's."""
    names = [f"j{index}" for index in range(14) for _ in range(20 - index)]
    rows = [{"text": str(n), "speaker": name, "role": "justice"} for n, name in enumerate(names)]
    rows += [{"text": "objection", "speaker": "a", "role": "advocate"}] * 50
    found = thesis_sixteen.justices(pa.Table.from_pylist(rows), 170).to_pylist()
    assert found == rows[: len(found)]
    assert len(found) == sum(name in {f"j{index}" for index in range(11)} for name in names)
    assert len(thesis_sixteen.justices(pa.Table.from_pylist(rows), 30)) == 30


def test_held_titles_are_in_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every eighth community and the published ones, the first few titles; all others stay."""
    monkeypatch.setattr(titles, "HELD", 3)
    names = [f"s{index:02}" for index in range(17)] + ["nba"]
    rows = [{"text": f"{name} {n}", "subreddit": name} for n in range(5) for name in names]
    developed = [{"text": f"dev {name}", "subreddit": name} for name in names]
    chosen = thesis_subreddits.chosen(pa.Table.from_pylist(rows)) & set(names)
    assert chosen == {*sorted(names)[::8], "nba"}
    train, judged = titles.parted(pa.Table.from_pylist(rows), pa.Table.from_pylist(developed), chosen)
    assert Counter(judged["subreddit"].to_pylist()) == dict.fromkeys(chosen, 4)
    kept = set(train["text"].to_pylist())
    assert kept.isdisjoint(judged["text"].to_pylist())
    assert kept == {row["text"] for row in rows} - {f"{name} {n}" for name in chosen for n in range(3)}


def test_neighbours_by_distance(tmp_path: Path) -> None:
    """Against all distances written out; the unknown community is nobody's neighbour, nor is one its own."""
    run = make_run(tmp_path / "r", ("city", "stars"))
    assert run.model.encoder is not None
    names = ["hub", "far", "near", "middle", "beyond", "same"]
    run.schema = ContextSchema((Variable("subreddit", "category", (RARE, *names), (1,) * 7),))
    places = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0], [0.0, -1.0], [-3.0, 0.0], [0.0, 20.0], [0.0, 0.0]])
    run.model.encoder.tables[0] = torch.nn.Parameter(places)
    assert thesis_subreddits.nearest(run, ["hub", "nowhere"]) == {"hub": ["same", "near", "middle", "far"]}


# ---- training ----


def experiment(folder: Path, rows: dict[str, Any]) -> study.Experiment:
    """A tiny experiment whose measure is the number of texts judged."""
    (folder / "recipe.toml").write_text(RECIPE)

    def tables(data: Path, out: Path, share: float) -> corpora.Tables:
        texts = [{"text": f"the {'sea' if n % 3 else 'sun'} {n % 5}", "city": "ab"[n % 2]} for n in range(12)]
        train = corpora.kept(out / f"texts-{share:g}.parquet", lambda: pa.Table.from_pylist(texts))
        test = corpora.kept(out / f"test-{share:g}.parquet", lambda: pa.Table.from_pylist(texts[:7]))
        return {"train": train, "dev": train, "test": test}

    def measure(run: Run, tables: corpora.Tables) -> study.Measured:
        return study.Measured({"judged": run.folder.name})

    return study.Experiment("tiny", str(folder / "recipe.toml"), rows, tables, measure)


ROWS: dict[str, Any] = {
    "unadapted": {"model": {"adapt": [], "output_bias": []}},
    "concat": {"model": {"adapt": ["concat"], "output_bias": []}},
}


def given(out: Path, only: list[str] | None = None, *, trial: bool = False, jobs: int = 1, **more: Any) -> Namespace:
    """The options of a script."""
    options = {"data": out, "out": out, "results": None, "only": only, "seeds": [0], "threads": 1, "jobs": jobs}
    return Namespace(**{**options, "trial": trial, **more})


def made(out: Path) -> list[dict[str, Any]]:
    """The rows without what no two trainings share."""
    return [
        {key: value for key, value in row.items() if key != "minutes"} for row in files.read_rows(out / "tiny.jsonl")
    ]


def test_a_finished_row_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row first, then the rest; then nothing is left to train. Every row says how it came to be."""
    tiny = experiment(tmp_path, ROWS)
    assert study.main(tiny, given(tmp_path, ["concat"]), ["x.py", "--a b"]) == 0
    assert study.main(tiny, given(tmp_path), ["x.py"]) == 0
    rows = files.read_rows(tmp_path / "tiny.jsonl")
    assert [row["row"] for row in rows] == ["concat", "unadapted"]
    assert rows[0]["command"] == "python x.py '--a b'"
    for row in rows:
        run = Run.open(tmp_path / "tiny" / row["row"] / "0")
        best = run.best()
        assert best is not None
        assert row["dev"]["perplexity"] == pytest.approx(best["perplexity"], rel=1e-6)
        told = evaluate(run, tmp_path / "tables" / "test-1.parquet")
        assert {name: row[name] for name in told} == told
        assert row["texts"] == 7
        assert (row["parameters"], row["judged"]) == (run.model.parameter_count(), "0")
        found = {**row["config"], "training": {**row["config"]["training"], "precision": row["precision"]}}
        assert (row["seed"], Config.from_dict(found)) == (0, run.config)
        assert study.ungrouped(row)["perplexity"].ratio == pytest.approx(math.log(row["perplexity"]), rel=1e-6)
    monkeypatch.setattr(study, "finish", lambda *_: pytest.fail("trained again"))
    assert study.main(tiny, given(tmp_path), ["x.py"]) == 0
    assert study.main(tiny, given(tmp_path, jobs=2), ["x.py"]) == 0


def test_a_trial_is_kept_apart(tmp_path: Path) -> None:
    """It has its own rows, folders and texts."""
    assert study.main(experiment(tmp_path, ROWS), given(tmp_path, ["concat"], trial=True), ["x.py"]) == 0
    assert [row["row"] for row in files.read_rows(tmp_path / "tiny-trial.jsonl")] == ["concat"]
    assert (tmp_path / "tiny-trial" / "concat" / "0").is_dir()
    assert (tmp_path / "tables" / "texts-0.01.parquet").exists()
    assert not (tmp_path / "tiny.jsonl").exists()


def test_each_seed_is_a_row_of_its_own(tmp_path: Path) -> None:
    """All rows with the first seed before any with the second; rows may lie elsewhere than the runs."""
    tiny, results = experiment(tmp_path, ROWS), tmp_path / "results"
    assert study.main(tiny, given(tmp_path, ["concat"], seeds=[1], results=results), ["x.py"]) == 0
    assert study.main(tiny, given(tmp_path, seeds=[0, 1], results=results), ["x.py"]) == 0
    rows = files.read_rows(results / "tiny.jsonl")
    assert [(row["row"], row["seed"]) for row in rows] == [
        ("concat", 1),
        ("unadapted", 0),
        ("concat", 0),
        ("unadapted", 1),
    ]
    assert rows[0]["perplexity"] != rows[2]["perplexity"]
    assert rows[0]["sums"]["perplexity"]["key"] == rows[1]["sums"]["perplexity"]["key"]


def test_a_half_trained_row_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle and started again it ends as one that was never stopped."""
    for name in ("whole", "halved"):
        (tmp_path / name).mkdir()
    whole, halved = (experiment(tmp_path / name, ROWS) for name in ("whole", "halved"))
    assert study.main(whole, given(tmp_path / "whole"), ["x.py"]) == 0
    steps: list[int] = []
    step = training.Trainer.step

    def counted(trainer: training.Trainer, batch: Any, *asked: bool) -> list[bool]:
        if len(steps) == 8:
            raise KeyboardInterrupt
        agreed = step(trainer, batch, *asked)
        steps.append(trainer.progress.step)
        return agreed

    monkeypatch.setattr(training.Trainer, "step", counted)
    assert study.main(halved, given(tmp_path / "halved"), ["x.py"]) == 130
    assert steps == list(range(1, 9))
    assert made(tmp_path / "halved") == []
    total = Run.open(tmp_path / "whole" / "tiny" / "unadapted" / "0").log()[-1]["steps"]
    assert total > 8
    steps[:] = [0] * 9
    assert study.main(halved, given(tmp_path / "halved"), ["x.py"]) == 0
    assert made(tmp_path / "halved") == made(tmp_path / "whole")
    assert steps[9:] == [*range(9, total + 1), *range(1, total + 1)]


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that does not exist, an option that does not, and rows made with other options."""
    tiny = experiment(tmp_path, {**ROWS, "odd": {"model": {"adapt": ["concatt"]}}})
    assert study.main(tiny, given(tmp_path, ["conkat"]), ["x.py"]) == 2
    assert "did you mean 'concat'" in capsys.readouterr().err
    assert study.main(tiny, given(tmp_path, ["odd"]), ["x.py"]) == 2
    assert "row odd: unknown adapt 'concatt'" in capsys.readouterr().err
    assert study.main(tiny, given(tmp_path, ["concat"]), ["x.py"]) == 0
    other = experiment(tmp_path, {"concat": {"model": {**ROWS["concat"]["model"], "hidden_size": 5}}})
    assert study.main(other, given(tmp_path), ["x.py"]) == 2
    assert "row concat 0 was made with other options" in capsys.readouterr().err


# ---- side by side ----


def job(folder: Path, rows: list[str]) -> study.Job:
    """A job whose processes are a small script instead of a training."""
    (folder / "fake.py").write_text(FAKE)
    command = (str(folder / "fake.py"), str(folder / "tiny.jsonl"))
    wanted = tuple(study.Training(row, 3) for row in rows)
    return study.Job(experiment(folder, ROWS), folder, folder, folder, wanted, 1, 2, False, command)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "POLL", 0.02)


@pytest.mark.usefixtures("_impatient")
def test_a_row_that_fails_leaves_the_others_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All others are made, each in a process that is told to make it alone; the failure is named."""
    made = job(tmp_path, ["one", "bad", "two", "three"])
    assert study.side_by_side(made, made.wanted) == 1
    found = files.read_rows(tmp_path / "tiny.jsonl")
    assert sorted(row["row"] for row in found) == ["one", "three", "two"]
    assert all(row["arguments"] == ["--jobs", "1", "--only", row["row"], "--seeds", "3"] for row in found)
    assert "bad 3 failed: error: nothing works" in capsys.readouterr().err


@pytest.mark.usefixtures("_impatient")
def test_who_stops_the_script_stops_its_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process outlives it, and none of those waiting is started."""
    started: list[subprocess.Popen[bytes]] = []
    start = study._started

    def noted(job: study.Job, training: study.Training) -> "subprocess.Popen[bytes]":
        started.append(start(job, training))
        return started[-1]

    monkeypatch.setattr(study, "_started", noted)

    def naps() -> Iterator[None]:
        yield
        raise KeyboardInterrupt

    nap = naps()
    monkeypatch.setattr(time, "sleep", lambda _: next(nap))
    made = job(tmp_path, ["long", "long too", "never"])
    with pytest.raises(KeyboardInterrupt):
        study.side_by_side(made, made.wanted)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_script_from_its_command_line_to_its_rows(tmp_path: Path, jobs: str) -> None:
    """On a hundredth of few texts; only a model with a context is asked for it."""
    (tmp_path / "commonvoice9").mkdir()
    words = {"de": "das ist gut", "en": "a box of wool"}
    for part, count in (("train", 8000), ("dev", 60)):
        texts = [{"text": f"{words[name]} {n}", "language": name} for n in range(count) for name in words]
        pq.write_table(pa.Table.from_pylist(texts), tmp_path / "commonvoice9" / f"{part}.parquet")
    arguments = ["commonvoice9", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--trial", "--jobs", jobs]
    arguments += ["--seeds", "0"]
    assert thesis_sixteen.main([*arguments, "--only", "unadapted", "concat"]) == 0
    rows = {row["row"]: row for row in files.read_rows(tmp_path / "out" / "commonvoice9-trial.jsonl")}
    assert set(rows) == {"unadapted", "concat"}
    assert "accuracy" not in rows["unadapted"]
    assert (rows["concat"]["candidates"], rows["concat"]["judged"]) == (2, 20)
    assert 0 <= rows["concat"]["accuracy"] <= 1
