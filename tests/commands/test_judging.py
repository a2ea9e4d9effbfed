"""How sure figures are, and what is to be held against a run, as the command line says it."""

import re
from pathlib import Path

import pytest

from factorcell import files, progress
from factorcell.commands.main import main
from factorcell.evaluation import classification
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.perplexity import evaluate
from factorcell.model.run import Run
from tests.small import ROWS, make_letters, make_run

DIFFERENCE = r"[+-]\d+\.\d% \[[+-]\d+\.\d, [+-]\d+\.\d\]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, a FactorCell and an unadapted run with random weights."""
    files.write_rows(tmp_path / "test.jsonl", ROWS * 3)
    make_run(tmp_path / "cell", ("city", "stars")).save_weights({})
    make_run(tmp_path / "plain", ("city",), adapt=(), output_bias=()).save_weights({})
    return tmp_path


def test_evaluate_says_how_sure_a_gain_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over the same model without context, over a baseline, and by value; that there is none is said too."""
    cell, plain, table = (str(folder / name) for name in ("cell", "plain", "test.jsonl"))
    assert main(["evaluate", cell, table, "--by", "city"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"gain over the same model without its context, \d+\.\d\d: {DIFFERENCE}", said)
    assert "perplexity  without context" in said
    assert len(re.findall(rf"(?:Oslo|Nice) .*{DIFFERENCE}", said)) == 2
    assert main(["evaluate", cell, table, "--baseline", plain]) == 0
    assert re.search(rf"gain over \S+plain, \d+\.\d\d: {DIFFERENCE}", capsys.readouterr().out)
    assert main(["evaluate", plain, table, "--baseline", plain]) == 0
    assert "+0.0% [+0.0, +0.0] no difference" in capsys.readouterr().out


def test_a_sure_token_costs_no_negative_nats(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """-log 1 is a zero, without a minus sign."""
    sure = {"row": 0, "nats": -0.0, "targets": 1, "perplexity": 1.0, "tokens": [{"token": "a", "nats": -0.0}]}
    monkeypatch.setattr(Run, "score", lambda *_, **__: [sure])
    assert main(["score", str(folder / "cell"), str(folder / "test.jsonl"), "--tokens"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["1\t0.0000\t1\t1.0000\t", "1\t0.0000\t\t\ta"]


@pytest.mark.parametrize("more", [[], ["--baseline", "plain"]])
def test_the_numbers_of_products_are_said_once_and_last(
    folder: Path, more: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many runs there are, and not before a mistake in what is given."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("factorcell.model.run.gain", lambda work, device: 2.0)
    assert main(["evaluate", "cell", "test.jsonl", *more]) == 0
    line = "products of bfloat16 (bfloat16 is 2.0 times as fast here); --precision chooses"
    assert capsys.readouterr().err.splitlines() == [line]
    assert main(["evaluate", "cell", "none.jsonl", *more]) == 2
    assert "products of" not in capsys.readouterr().err
    assert main(["evaluate", "cell", "test.jsonl", *more, "--precision", "float32"]) == 0
    assert capsys.readouterr().err == ""


def test_a_baseline_that_is_adapted_reads_its_own_context(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gain of a model over itself is none; over another it is that of their perplexities."""
    cell, plain, table = (str(folder / name) for name in ("cell", "plain", "test.jsonl"))
    assert main(["evaluate", cell, table, "--baseline", cell]) == 0
    assert "+0.0% [+0.0, +0.0] no difference" in capsys.readouterr().out
    assert main(["evaluate", plain, table, "--baseline", cell, "--by", "stars"]) == 0
    ours, theirs = (evaluate(Run.open(path), ROWS * 3)["perplexity"] for path in (plain, cell))
    assert f"{100 * (1 - ours / theirs):+.1f}% [" in capsys.readouterr().out
    other = make_run(folder / "short", ("city",))
    files.write_json(
        other.folder / "config.json", {**other.config.to_dict(), "data": {**_data(other), "max_tokens": 3}}
    )
    other.save_weights({})
    assert main(["evaluate", plain, table, "--baseline", str(other.folder)]) == 2
    assert "read these texts differently: no gain can be told" in capsys.readouterr().err


def test_a_baseline_of_other_tokens_is_refused_before_its_columns_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No option that would read its missing column helps."""
    other = make_letters()
    run = Run.create(folder / "letters", other.config, other.vocabulary, other.schema)
    run.save_weights({})
    files.write_rows(folder / "bare.jsonl", [{"text": "sea", "stars": "5"}] * 3)
    make_run(folder / "stars", ("stars",)).save_weights({})
    command = ["evaluate", str(folder / "stars"), str(folder / "bare.jsonl"), "--baseline", str(run.folder)]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.endswith("have different vocabularies: no gain can be told\n")
    assert "--unknown" not in error


def _data(run: Run) -> dict[str, object]:
    return dict(run.config.to_dict()["data"])


def test_what_a_run_writes_has_a_caution_where_it_stopped_early(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts, fillers, neighbours, words and figures, on standard error and on pages; a whole training has none."""
    run, page = str(folder / "cell"), folder / "page.html"
    asked = [
        ["generate", run, "--context", "city=Oslo", "--max-tokens", "3"],
        ["generate", run, "--context", "city=Oslo", "--fill", "the ___"],
        ["contexts", run, "--variable", "city", "--page", str(page)],
        ["explain", run, "--text", "the sea", "--between", "city=Oslo", "city=Nice", "--page", str(page)],
        ["evaluate", run, str(folder / "test.jsonl")],
        ["evaluate", str(folder / "plain"), str(folder / "test.jsonl"), "--baseline", run],
        ["classify", run, str(folder / "test.jsonl"), "--target", "city"],
    ]
    row = {"step": 50, "split": "dev", "perplexity": 9.0, "perplexity_known": 9.0, "best": 9.0, "seconds": 1.0}
    row["tokens"] = 500
    for steps in (50, 1000):
        files.write_rows(folder / "cell" / "log.jsonl", [{**row, "steps": steps}])
        for command in asked:
            page.unlink(missing_ok=True)
            assert main(command) == 0
            assert ("its training stopped after 50 of 1,000 steps" in capsys.readouterr().err) == (steps == 1000)
            if "--page" in command:
                assert ('class="caution"' in page.read_text(encoding="utf-8")) == (steps == 1000)


@pytest.mark.filterwarnings("always::factorcell.config.Notice")
def test_evaluate_counts_empty_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, with their file."""
    table, empty = folder / "test.jsonl", 3 * sum(row["text"] == "" for row in ROWS)
    assert main(["evaluate", str(folder / "cell"), str(table), "--by", "city", "--top"]) == 0
    told = f"Notice: {table}: {empty} of {3 * len(ROWS)} texts are empty; the end of an empty text is its only target"
    assert [line for line in capsys.readouterr().err.splitlines() if "empty" in line] == [told]


def test_classify_says_how_far_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all texts under all candidates, known at once, the texts to calibrate on as well; in Python only if asked."""
    for name in ("FIRST", "OFTEN", "SHARE"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr(classification, "TOKENS", 30)
    cell, table = folder / "cell", str(folder / "test.jsonl")
    classify(Run.open(cell), table, "city")
    assert capsys.readouterr().err == ""
    total = len(ROWS) * 3 * len(Run.open(cell).schema.variable("city").values[1:])
    assert main(["classify", str(cell), table, "--target", "city", "--calibrate", table]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("judging: ")]
    assert len(told) > 4
    assert all(f" of {total} likelihoods (" in line for line in told)
    assert all(line.endswith(" left") != ("(100%)" in line) for line in told)
    assert sum("(100%)" in line for line in told) == 2


def test_named_points_say_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for points."""
    for name in ("FIRST", "OFTEN", "SHARE"):
        monkeypatch.setattr(progress, name, 0.0)
    run = make_run(tmp_path / "run", ("lat:number", "lon:number"))
    run.save_weights({})
    places = {"Oslo": {"lat": 59.9, "lon": 10.7}, "Nice": {"lat": 43.7, "lon": 7.3}, "Rome": {"lat": 41.9, "lon": 12.5}}
    classify_points(run, ROWS, places)
    assert capsys.readouterr().err == ""
    files.write_rows(tmp_path / "points.jsonl", [{"name": name, **place} for name, place in places.items()])
    files.write_rows(tmp_path / "test.jsonl", ROWS)
    words = ["classify", str(run.folder), str(tmp_path / "test.jsonl"), "--points", str(tmp_path / "points.jsonl")]
    assert main(words) == 0
    assert f" of {3 * len(ROWS)} likelihoods (100%)" in capsys.readouterr().err
