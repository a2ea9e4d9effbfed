"""The commands `evaluate`, `classify` and `score`: intervals, cautions, precision and unlabelled texts."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.commands.evaluation import MAX_SHOWN
from factorcell.config import FORMAT
from factorcell.errors import UserError
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.perplexity import evaluate
from factorcell.io import files, progress
from factorcell.runs.run import Run
from tests.findings import collected_findings, expected_finding
from tests.pages import Page
from tests.small_runs import ROWS, make_letters, make_run

DIFFERENCE = r"[+-]\d+\.\d+% \[[+-]\d+\.\d+, [+-]\d+\.\d+\]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table, a FactorCell and an unadapted run with random weights."""
    files.write_rows(tmp_path / "test.jsonl", ROWS * 3)
    make_run(tmp_path / "cell", ("city", "stars")).save_weights({})
    make_run(tmp_path / "plain", ("city",), adapt=(), output_bias=()).save_weights({})
    return tmp_path


def test_evaluate_names_the_two_gains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell, plain, table = (str(folder / name) for name in ("cell", "plain", "test.jsonl"))
    assert main(["evaluate", cell, table, "--by", "city"]) == 0
    output = capsys.readouterr().out
    head, row, *_ = output.splitlines()
    assert head.endswith("gain over an unknown context (same model)")
    assert re.search(DIFFERENCE, row)
    assert len(re.findall(rf"(?:Oslo|Nice) .*{DIFFERENCE}", output)) == 2
    assert main(["evaluate", cell, table, "--baseline", plain]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert f"gain over {plain}" in head
    assert "unknown context" not in head
    assert re.search(DIFFERENCE, row)
    assert main(["evaluate", plain, table, "--by", "city"]) == 0
    assert "gain" not in capsys.readouterr().out
    assert main(["evaluate", plain, table, "--baseline", plain]) == 0
    assert "+0.0% [+0.0, +0.0] not significant" in capsys.readouterr().out


def test_evaluate_prints_the_first_values_of_a_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "id": f"id {index}"} for index, row in enumerate(ROWS[:1] * 25)]
    files.write_rows(folder / "ids.jsonl", rows)
    command = ["evaluate", str(folder / "cell"), str(folder / "ids.jsonl"), "--by", "id"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert output.count("id id ") == MAX_SHOWN
    assert f"id: {MAX_SHOWN} of 25 values; --json prints all" in output
    assert main([*command, "--json"]) == 0
    assert capsys.readouterr().out.count('"id ') == 25


def test_commands_that_read_write_nothing_without_save(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell, table = folder / "cell", str(folder / "test.jsonl")
    before = {path: path.stat().st_mtime_ns for path in cell.iterdir()}
    for words in (["evaluate", "--by", "city", "--baseline", str(folder / "plain")], ["classify", "--target", "city"]):
        assert main([words[0], str(cell), table, *words[1:]]) == 0
        assert {path: path.stat().st_mtime_ns for path in cell.iterdir()} == before
        assert not (folder / "plain" / "results.jsonl").exists()
    capsys.readouterr()


def test_an_unadapted_run_reads_tables_without_its_context_columns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = folder / "texts.jsonl"
    files.write_rows(table, [{"text": row["text"]} for row in ROWS * 3])
    assert main(["evaluate", str(folder / "plain"), str(folder / "test.jsonl")]) == 0
    expected = capsys.readouterr().out
    assert main(["evaluate", str(folder / "plain"), str(table)]) == 0
    assert capsys.readouterr().out == expected
    assert main(["score", str(folder / "plain"), str(table)]) == 0
    assert "city" not in capsys.readouterr().err
    assert main(["evaluate", str(folder / "cell"), str(table)]) == 2
    assert "no column 'city'" in capsys.readouterr().err


def test_nats_of_a_certain_token_have_no_minus_sign(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "row": 0,
        "nats": -0.0,
        "targets": 1,
        "perplexity": 1.0,
        "unknown_targets": 0,
        "tokens": [{"token": "a", "nats": -0.0}],
    }
    monkeypatch.setattr(Run, "score_rows", lambda *_, **__: [row])
    assert main(["score", str(folder / "cell"), str(folder / "test.jsonl"), "--tokens"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["1\t0.0000\t1\t1.0000\t0\t", "1\t0.0000\t\t\t\ta"]


def test_an_adapted_baseline_reads_its_context(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell, plain, table = (str(folder / name) for name in ("cell", "plain", "test.jsonl"))
    assert main(["evaluate", cell, table, "--baseline", cell]) == 0
    assert "+0.0% [+0.0, +0.0] not significant" in capsys.readouterr().out
    assert main(["evaluate", plain, table, "--baseline", cell, "--by", "stars"]) == 0
    perplexity, baseline_perplexity = (evaluate(Run.open(path), ROWS * 3).perplexity for path in (plain, cell))
    assert f"{100 * (1 - perplexity / baseline_perplexity):+.1f}% [" in capsys.readouterr().out
    other = make_run(folder / "short", ("city",))
    config = {**other.config.to_dict(), "data": {**_data(other), "max_tokens": 3}}
    files.write_versioned(other.folder / "config.json", config, FORMAT)
    other.save_weights({})
    assert main(["evaluate", plain, table, "--baseline", str(other.folder)]) == 2
    assert "the models read the texts differently, so perplexities cannot be compared" in capsys.readouterr().err


def test_a_baseline_with_other_tokens_is_reported_before_missing_columns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_letters()
    run = Run.create(folder / "letters", other.config, other.tokenizer, other.schema)
    run.save_weights({})
    files.write_rows(folder / "bare.jsonl", [{"text": "sea", "stars": "5"}] * 3)
    make_run(folder / "stars", ("stars",)).save_weights({})
    command = ["evaluate", str(folder / "stars"), str(folder / "bare.jsonl"), "--baseline", str(run.folder)]
    command += ["--by", "stars"]
    assert main(command) == 2
    error = capsys.readouterr().err
    problem = ": the vocabularies differ, so gains in perplexity cannot be computed"
    assert error.endswith(f"{problem}, nor bits per byte, because tokens do not restore the texts\n")
    assert "--unknown" not in error
    with pytest.raises(UserError, match=f"{problem}; remove --by to compare the whole table in bits per byte"):
        evaluate(other, files.read_rows(folder / "bare.jsonl"), baseline=make_letters(tuple("sea n")), by=["stars"])


def test_figures_that_cannot_be_compared_are_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = make_letters()
    run = Run.create(folder / "letters", letters.config, letters.tokenizer, letters.schema)
    run.save_weights({})
    command = ["evaluate", str(folder / "plain"), str(folder / "test.jsonl"), "--baseline", str(run.folder)]
    assert main(command) == 2
    assert "nor bits per byte, because tokens do not restore the texts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--points", "points.jsonl", "--values", "Oslo"], "--samples and --values require --target COLUMN"),
        (["--target", "city", "--within", "3"], "--within requires --points TABLE, got --target"),
        (["--target", "city", "--out", "test.jsonl"], "test.jsonl: exists already; choose another file"),
    ],
)
def test_classify_ignores_no_option_and_overwrites_nothing(
    more: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(folder / word) if word.endswith(".jsonl") else word for word in more]
    assert main(["classify", str(folder / "cell"), str(folder / "test.jsonl"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_category_with_many_numbers_has_a_row_for_each(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"))
    rows = [{**row, "stars": str(1000 + 7 * number)} for number, row in enumerate(ROWS * 4)]
    table = evaluate(run, rows, by=["stars"]).by["stars"]
    assert {row["value"] for row in table} == {row["stars"] for row in rows}
    other = evaluate(run, [{**row, "age": index} for index, row in enumerate(ROWS * 4)], by=["age"]).by["age"]
    assert len(other) == 5


def _data(run: Run) -> dict[str, object]:
    return dict(run.config.to_dict()["data"])


def test_results_of_a_run_that_stopped_early_have_a_caution(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = str(folder / "cell"), folder / "page.html"
    commands = [
        ["generate", run, "--context", "city=Oslo", "--max-tokens", "3"],
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
        for command in commands:
            page.unlink(missing_ok=True)
            assert main([*command, "--verbose"]) == 0
            assert ("its training stopped (step 50 of 1,000)" in capsys.readouterr().err) == (steps == 1000)
            if "--page" in command:
                assert ("step 50 of 1,000" in page.read_text(encoding="utf-8")) == (steps == 1000)


def test_evaluate_counts_empty_texts(folder: Path) -> None:
    table, empty = folder / "test.jsonl", 3 * sum(row["text"] == "" for row in ROWS)
    with expected_finding("empty texts", f"{table}: {empty} of {3 * len(ROWS)} texts empty"):
        assert main(["evaluate", str(folder / "cell"), str(table), "--by", "city"]) == 0


def test_classify_reports_its_progress(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr("factorcell.evaluation.likelihoods.MAX_BATCH_TOKENS", 30)
    cell, table = folder / "cell", str(folder / "test.jsonl")
    classify(Run.open(cell), table, "city")
    assert capsys.readouterr().err == ""
    total = len(ROWS) * 3 * len(Run.open(cell).schema.variable("city").values[1:])
    assert main(["classify", str(cell), table, "--target", "city", "--calibrate", table]) == 0
    progress_lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("classifying: ")]
    assert all(f" of {total} likelihoods, " in line for line in progress_lines)
    assert sum(line.startswith(f"classifying: {total} of ") for line in progress_lines) >= 2


def unlabelled(folder: Path, rows: list[dict[str, object]]) -> str:
    files.write_rows(folder / "new.jsonl", rows)
    return str(folder / "new.jsonl")


NEW: list[list[dict[str, object]]] = [
    [{"text": "the sea is cold", "stars": "5"}, {"text": "sun", "stars": "1"}],
    [{"text": "the sea is cold", "stars": "5", "city": None}, {"text": "sun", "stars": "1", "city": ""}],
]


UNCALIBRATED = "the probabilities are not calibrated; --calibrate DEV fits them to texts with values\n"


@pytest.mark.parametrize("rows", NEW)
def test_texts_without_a_value_are_classified(
    folder: Path, rows: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    cell, table, out = str(folder / "cell"), unlabelled(folder, rows), folder / "out.jsonl"
    assert main(["classify", cell, str(folder / "test.jsonl"), "--target", "city", "--save"]) == 0
    accuracy = re.findall(r"\d\.\d{4}", capsys.readouterr().out)[0]
    saved_results = (folder / "cell" / "results.jsonl").read_bytes()
    command = ["classify", cell, table, "--target", "city"]
    assert main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        f"2 texts classified (model, training priors), written to {out}; "
        "accuracy not computed: no text has a candidate value\n"
        f"{UNCALIBRATED}",
    )
    cities = Run.open(cell).schema.variable("city").values[1:]
    expected = classify(Run.open(cell), [{**row, "city": "Oslo"} for row in rows], "city", values=cities)
    written = files.read_rows(out)
    assert [row["row"] for row in written] == [1, 2]
    assert [row["true"] for row in written] == [None, None]
    for row, probabilities in zip(written, expected.probabilities, strict=True):
        assert row["probabilities"] == pytest.approx(dict(zip(cities, probabilities, strict=True)), abs=1e-5)
        assert row["predicted"] == cities[probabilities.argmax()]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("2 texts classified (model, training priors); accuracy not computed: no text has a")
    head, *lines = [line.split() for line in shown.out.splitlines()]
    assert head == ["row", "predicted", "probability"]
    assert lines == [[f"{r['row']}", r["predicted"], f"{max(r['probabilities'].values()):.4f}"] for r in written]
    assert main([*command, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == written
    assert (folder / "cell" / "results.jsonl").read_bytes() == saved_results
    assert main(["report", cell, "--out", str(folder / "page.html")]) == 0
    assert f"{float(accuracy):.4f}" in (folder / "page.html").read_text(encoding="utf-8")


def test_only_the_first_predictions_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = unlabelled(folder, [{"text": "sun", "stars": "1"}] * 21)
    assert main(["classify", str(folder / "cell"), table, "--target", "city"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1 + 20
    assert shown.err.startswith("only the first 20 texts are shown")
    assert main(["classify", str(folder / "cell"), table, "--target", "city", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 21


def test_values_outside_the_candidates_give_no_accuracy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = unlabelled(folder, [{"text": "sun", "stars": "1", "city": "Rome"}])
    assert main(["classify", str(folder / "cell"), table, "--target", "city"]) == 0
    notice = "1 text classified (model, training priors); accuracy not computed: no text has a candidate value"
    assert capsys.readouterr().err.startswith(f"{notice}\n{UNCALIBRATED}")
    assert not (folder / "cell" / "results.jsonl").exists()


def test_texts_without_coordinates_are_classified_by_named_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", ("lat:number", "lon:number"))
    run.save_weights({})
    files.write_rows(
        tmp_path / "points.jsonl", [{"name": "a", "lat": 60, "lon": 10}, {"name": "b", "lat": 44, "lon": 7}]
    )
    places = {"a": {"lat": 60.0, "lon": 10.0}, "b": {"lat": 44.0, "lon": 7.0}}
    expected = classify_points(run, [{"text": "sun", "lat": 50.0, "lon": 9.0}], places).probabilities
    rows: list[dict[str, object]] = [{"text": "sun"}, {"text": "sun", "lat": 60.0, "lon": None}]
    for row in rows:
        np.testing.assert_allclose(classify_points(run, [row], places).probabilities, expected, rtol=1e-5)
        table = unlabelled(tmp_path, [row])
        assert main(["classify", str(run.folder), table, "--points", str(tmp_path / "points.jsonl")]) == 0
        notice = "1 text classified (model, uniform priors); accuracy not computed: no text has a candidate value\n"
        assert capsys.readouterr().err == notice


def test_fitting_a_temperature_requires_values(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test, out = str(folder / "test.jsonl"), folder / "out.jsonl"
    command = ["classify", str(folder / "cell"), test, "--target", "city", "--out", str(out)]
    why = "the temperature is fitted on texts with a value"
    for row, message in (
        ({}, f"new.jsonl: no column 'city'; it has text, stars; {why}"),
        ({"city": None}, f"new.jsonl: no text has a candidate value of city (Oslo, Nice); {why}"),
        ({"city": "Rome"}, f"new.jsonl: no text has a candidate value of city (Oslo, Nice); {why}"),
    ):
        table = unlabelled(folder, [{"text": "sun", "stars": "1", **row}])
        assert main([*command, "--calibrate", table]) == 2
        assert capsys.readouterr().err.endswith(f"{message}\n")
        assert not out.exists()
    assert main([*command, "--values", "Oslo", "Nice", "--calibrate", test]) == 0


def test_baseline_classifiers_require_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_rows(tmp_path / "train.jsonl", ROWS * 60)
    table = unlabelled(tmp_path, [{"text": "sun", "city": None}])
    command = ["baseline", "linear", str(tmp_path / "train.jsonl"), "--target", "city", "--test"]
    assert main([*command, table]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith(
        "new.jsonl: no text has a value of city that occurs in training; the classifier cannot be evaluated"
    )
    assert main([*command, str(tmp_path / "train.jsonl")]) == 0


def test_rows_of_generated_texts_have_their_precision(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "texts.jsonl"
    command = ["generate", str(folder / "cell"), "--number", "2", "--out", str(out), "--precision"]
    assert main([*command, "bfloat16"]) == 0
    assert [row["options"] for row in files.read_rows(out)] == [{"precision": "bfloat16"}] * 2
    assert main([*command, "float32", "--resume"]) == 2
    assert "nothing resumed" in capsys.readouterr().err
    assert main([*command, "bfloat16", "--resume"]) == 0


def test_the_report_shows_the_latest_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell, first, second = (str(folder / name) for name in ("cell", "test.jsonl", "other.jsonl"))
    files.write_rows(folder / "other.jsonl", ROWS)
    for words in (
        ["evaluate", cell, first, "--precision", "float32"],
        ["classify", cell, first, "--target", "city", "--precision", "float32"],
        ["evaluate", cell, second, "--by", "city", "--baseline", str(folder / "plain"), "--precision", "float32"],
        ["evaluate", cell, first, "--precision", "bfloat16"],
        ["classify", cell, first, "--target", "city", "--precision", "bfloat16"],
    ):
        assert main([*words, "--save"]) == 0
    rows = files.read_rows(folder / "cell" / "results.jsonl")
    precisions = [row["precision"] for row in rows]
    assert precisions == ["float32", "float32", "float32", "bfloat16", "bfloat16"]
    (baseline_row,) = files.read_rows(folder / "plain" / "results.jsonl")
    baseline = {name: baseline_row[name] for name in ("table", "texts", "perplexity")}
    expected = evaluate(Run.open(folder / "plain"), ROWS).perplexity
    assert baseline == {"table": "other.jsonl", "texts": len(ROWS), "perplexity": pytest.approx(expected)}
    assert rows[2]["perplexity_baseline"] == baseline["perplexity"]
    assert main(["report", cell, "--out", str(folder / "page.html")]) == 0
    page = Page((folder / "page.html").read_text(encoding="utf-8"))
    tables = [row[0] for row in page.rows if row[0] in ("test.jsonl", "other.jsonl")]
    assert tables == sorted(tables), "both tables, the last evaluated one last"
    assert page.figures["perplexity per word"] == f"{rows[3]['perplexity']:.2f}", "of the larger table"
    assert page.figures["accuracy"].startswith(f"{rows[-1]['accuracy']:.4f}")
    assert "perplexity on test.jsonl, accuracy of city on test.jsonl" in page.texts["p"][1]
    assert [row for row in page.rows if f"majority class {rows[-1]['majority']:.4f}" in row[-1]]
    assert "Gain over plain by city, %, other.jsonl" in page.charts
    assert "Predicted city, test.jsonl (model)" in page.charts


def test_unknown_words_of_a_prompt_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = str(folder / "cell")
    command = ["generate", cell, "--context", "city=Oslo", "--context", "stars=5", "--max-tokens", "3", "--prompt"]
    for more in ([], ["--stream"]):
        with expected_finding("unknown words", "'xyzzyq', 'sands' (similar: 'sand', 'and')"):
            assert main([*command, "the xyzzyq sands xyzzyq", *more]) == 0
        assert "the xyzzyq sands xyzzyq" in capsys.readouterr().out
        with collected_findings() as findings:
            assert main([*command, "the sand", *more]) == 0
        assert "unknown words" not in [finding.name for finding in findings]
