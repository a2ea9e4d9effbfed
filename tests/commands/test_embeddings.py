"""The command `contexts`: its rows, text and page match the results of the functions."""

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.evaluation.explaining import embeddings
from factorcell.evaluation.explaining.embeddings import Embeddings
from factorcell.evaluation.explaining.token_evidence import most_shifted_tokens
from factorcell.io import files
from factorcell.runs.run import Run
from tests.pages import Page
from tests.small_runs import make_run

Row = dict[str, Any]

SIDES = ("north", "south")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights for 24 cities and 2 ratings, and a table of labels computed from its embeddings."""
    folder = tmp_path_factory.mktemp("contexts")
    rows = [
        {"text": f"word{n % 7} <b>", "city": f"<city {n % 24}>", "stars": "15"[n % 2 ^ n // 24 % 2]} for n in range(96)
    ]
    data = {"context": ("city", "stars"), "min_count": 1, "min_context_count": 1}
    sizes = {"embedding_size": 5, "hidden_size": 6, "context_size": 4, "variable_size": 3}
    config = Config.of(**{**data, "adapt": ["concat"], **sizes})
    corpus = prepare(rows, config)
    run = Run.create(folder / "run", config, corpus.tokenizer, corpus.schema)
    random = np.random.default_rng(0)
    for parameter in run.model.parameters():
        parameter.data.copy_(parameter.new_tensor(random.normal(size=tuple(parameter.shape)) * 0.5))
    run.save_weights({})
    known = Embeddings.from_run(run)
    labels = [
        {"city": city, "side": SIDES[int(vector[0] > 0)], "height": str(vector[1] * 100), "text": "word1"}
        for city, vector in zip(known.values, known.vectors.tolist(), strict=True)
    ]
    files.write_rows(folder / "labels.jsonl", labels)
    return folder


def rows_of(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> list[Row]:
    assert main(["contexts", str(folder / "run"), "--threads", "1", "--json", *more]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def text_of(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> str:
    assert main(["contexts", str(folder / "run"), "--threads", "1", *more]) == 0
    return capsys.readouterr().out


def error_of(capsys: pytest.CaptureFixture[str], run: Path, *more: str) -> str:
    assert main(["contexts", str(run), "--threads", "1", *more]) == 2
    *_, error = capsys.readouterr().err.splitlines(keepends=True)
    return error


def test_a_variable_without_frequent_values_is_reported_and_not_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": "a b", "id": f"{n}", "city": "x" if n < 9 else f"{n}", "stars": "15"[n % 2]} for n in range(12)]
    config = Config.of(context=("id", "city", "stars"), min_count=1, min_context_count=5, hidden_size=4)
    corpus = prepare(rows, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    run.save_weights({})
    error = error_of(capsys, run.folder, "--variable", "id")
    assert "unknown categorical context with frequent values 'id'" in error
    assert "city, stars" in error
    assert main(["contexts", str(run.folder)]) == 0
    assert "variable: stars; --variable chooses another: city\n" in capsys.readouterr().err
    assert (
        text_of(capsys, tmp_path, "--variable", "city") == "city: only one value is frequent, so it has no neighbours\n"
    )
    assert text_of(capsys, tmp_path, "--variable", "stars").startswith("stars: nearest neighbours of 2 of 2 values")
    corpus = prepare(rows, config.with_options(context=("id",)))
    only_rare = Run.create(tmp_path / "rare", config.with_options(context=("id",)), corpus.tokenizer, corpus.schema)
    only_rare.save_weights({})
    assert "values that are not rare in training, got id (category)" in error_of(capsys, only_rare.folder)


def test_neighbours_match_those_of_the_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = Embeddings.from_run(Run.open(folder / "run"))
    near = rows_of(capsys, folder, "--near", "<city 3>", "<city 5>", "--count", "4")
    assert near == [{"kind": "neighbour", **row} for row in known.neighbours(["<city 3>", "<city 5>"], 4)]
    assert {row["value"] for row in rows_of(capsys, folder)} == set(known.values[:10])
    assert rows_of(capsys, folder, "--near", "5")[0]["near"] == "1"
    assert main(["contexts", str(folder / "run"), "--near", "5"]) == 0
    assert "variable: stars; --variable chooses another: city\n" in capsys.readouterr().err
    assert {row["value"] for row in rows_of(capsys, folder, "--variable", "stars")} == {"1", "5"}
    names = [f"{value} ({known.counts[known.row(value)]:,} texts)" for value in ("<city 3>", "<city 5>")]
    lines = text_of(capsys, folder, "--near", "<city 3>", "<city 5>", "--count", "2").splitlines()
    shown = ", ".join(f"{row['near']} {row['cosine']:.2f}" for row in near[:2])
    assert lines[0].startswith("city: nearest neighbours of 2 of ")
    assert lines[1] == f"{names[0]:<{max(map(len, names))}}  {shown}"
    assert len(lines) == 3


def test_words_match_those_of_the_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open(folder / "run")

    def words(*contexts: Row, count: int = 10) -> list[tuple[str, float]]:
        shifted = most_shifted_tokens(run, *contexts, count=count)
        return [(row["token"], row["nats"]) for row in shifted]

    def shown(*more: str) -> list[tuple[str, float]]:
        rows = [row for row in rows_of(capsys, folder, *more) if row["kind"] == "word"]
        return [(row["token"], row["nats"]) for row in rows]

    city, both = {"city": "<city 3>"}, {"city": "<city 3>", "stars": "5"}
    assert shown("--near", "<city 3>", "--words") == words(city)
    assert shown("--near", "<city 3>", "--words", "--context", "stars=5", "--count", "2") == words(both, count=2)
    assert shown("--words", "--context", "stars=5") == words({"stars": "5"})
    assert shown("--between", "stars=5;city=<city 3>", "stars=1") == words(both, {"stars": "1"})
    every = shown("--between", "stars=5", "stars=1", "--context", "city=<city 3>")
    assert every == words(both, {"city": "<city 3>", "stars": "1"})
    assert len(shown("--words", "--count", "1")) == sum(
        len(words({"city": value}, count=1)) for value in Embeddings.from_run(run).values[:10]
    )
    lines = text_of(capsys, folder, "--between", "stars=5", "stars=1", "--context", "city=<city 3>").splitlines()
    assert lines[1] == "stars=5 against stars=1"
    assert lines[2].split() == ["token", "nats"]
    assert [line.split() for line in lines[3 : 3 + len(every)]] == [[token, f"{nats:+.2f}"] for token, nats in every]
    lines = text_of(capsys, folder, "--between", "stars=5", "stars=1;city=<city 3>").splitlines()
    assert lines[1] == "stars=5 against stars=1; city=<city 3>"
    assert len(shown("--between", "stars=5", "stars=1", "--words", "--count", "1")) > 1, "also words of frequent values"
    assert "--context requires --words or --between" in error_of(capsys, folder / "run", "--context", "stars=5")
    assert "the context changes no token" in text_of(capsys, folder, "--between", "stars=5", "stars=5")
    assert "city=<city 3> against the expected context" in text_of(capsys, folder, "--near", "<city 3>", "--words")


def test_maps_match_those_of_the_functions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, table = Embeddings.from_run(Run.open(folder / "run")), folder / "labels.jsonl"
    tables = ["--map", str(table), "--by", "side", "--by", "height"]
    rows = rows_of(capsys, folder, *tables)
    for name in ("side", "height"):
        points = embeddings.map_points(known, embeddings.read_column(known, table, name))
        expected = [{"kind": "point", "column": name, **point} for point in points]
        assert [row for row in rows if row["kind"] == "point" and row["column"] == name] == expected
    assert "--map TABLE requires --page HTML" in error_of(capsys, folder / "run", *tables)


def test_the_page_has_all_requested_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, path = str(folder / "labels.jsonl"), folder / "page.html"
    more = ["--map", table, "--by", "side", "--by", "height", "--page", str(path)]
    rows = rows_of(capsys, folder, "--near", "<city 3>", "--words", *more)
    page = path.read_text(encoding="utf-8")
    reader = Page(page)
    assert "<city" not in page
    assert len(reader.charts) == 3
    for row in rows:
        if row["kind"] == "neighbour":
            assert f"{row['near']} ({row['cosine']:.2f})" in reader.text
        if row["kind"] == "word":
            assert html.escape(row["token"]) in page
    shares = embeddings.project_to_plane(Embeddings.from_run(Run.open(folder / "run")).vectors)[1]
    assert f"Map by side, {sum(shares):.0%} of the variance" in reader.charts
    assert "mean height" in reader.text
    rows_of(capsys, folder, "--words", "--context", "stars=5", "--page", str(path))
    assert len(Page(path.read_text(encoding="utf-8")).texts["h2"]) == 1


def test_words_of_a_run_without_categories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", context=("lat:number", "lon:number"), adapt=["concat"]).save_weights({})
    (tmp_path / "run").rename(tmp_path / "numbers")
    folder = tmp_path / "numbers"
    text = error_of(capsys, folder)
    assert "expected a categorical context variable" in text
    assert main(["contexts", str(folder), "--threads", "1", "--between", "lat=60;lon=10", "lat=44;lon=8"]) == 0
    assert "lat=60; lon=10 against lat=44; lon=8" in capsys.readouterr().out
    assert main(["contexts", str(folder), "--threads", "1", "--words", "--context", "lat=60"]) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--near", "<City 3>"], "did you mean '<city 3>'"),
        (["--near", "<city 3>", "<citty 5>"], "'<citty 5>' was never seen"),
        (["--variable", "town"], "frequent values 'town'"),
        (["--count", "0"], "--count: expected a whole number from 1"),
        (["--by", "side"], "--by COLUMN requires"),
        (["--map", "LABELS"], "--by COLUMN requires"),
        (["--map", "LABELS", "--by", "sid", "--json"], "no column 'sid'"),
        (["--map", "nowhere.csv", "--by", "side", "--json"], "nowhere.csv"),
        (["--between", "stars", "stars=1"], "--between: expected NAME=VALUE, got 'stars'"),
        (["--between", "star=5", "star=1"], "unknown context column 'star'"),
        (["--between", "stars=4", "stars=1"], "stars '4' was never seen"),
        (["--words", "--context", "city=<cty 3>"], "<city 3>"),
    ],
)
def test_errors_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    more = [str(folder / "labels.jsonl") if word == "LABELS" else word for word in more]
    assert words in error_of(capsys, folder / "run", *more)


def test_a_run_without_context_embeddings_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, adapt in (("unadapted", []), ("prefix", ["prefix"])):
        make_run(tmp_path / name, adapt=adapt, output_bias=[]).save_weights({})
        assert "no embeddings of contexts" in error_of(capsys, tmp_path / name, "--near", "Oslo")
