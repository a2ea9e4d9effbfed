"""Findings about runs, requests and tables."""

import random
from pathlib import Path
from typing import Any

import pytest

from factorcell.bootstrap import Interval
from factorcell.config import Config
from factorcell.data.corpus import Corpus, text_hashes
from factorcell.data.preparation import prepare
from factorcell.evaluation import diagnostics, perplexity, text_figures
from factorcell.evaluation.classification import classify
from factorcell.evaluation.diagnostics import (
    describe_quality,
    differing_columns,
    repeated_texts,
    report_use,
    run_findings,
    training_table_findings,
)
from factorcell.evaluation.perplexity import MAX_EFFECT_TEXTS, evaluate, measure_context_effect
from factorcell.io import arrays, files, findings
from factorcell.io.findings import Finding
from factorcell.runs import run as run_module
from factorcell.runs.run import Run
from factorcell.training.fit import train_run
from tests.findings import collected_findings, expected_finding, logged_progress
from tests.small_runs import ROWS, make_run

ENDED = {"texts": 100, "targets": 1000}  # facts of a training that has ended
GAIN = "gain_over_unknown_context"
EFFECT = {"texts": 90, GAIN: 0.01, f"{GAIN}_high": 0.015}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", ("city", "stars"))


def names_of(findings_of_run: list[Finding]) -> list[str]:
    return [finding.name for finding in findings_of_run]


def write_log(run: Run, last: int, *perplexities: float) -> None:
    """Write a log of evaluations up to the step `last` of 100."""
    best, rows = float("inf"), []
    for number, value in enumerate(perplexities, 1):
        best = min(best, value)
        row = {"step": last * number // len(perplexities), "steps": 100, "seconds": 1.0}
        rows.append({**row, "split": "dev", "perplexity": value, "best": best})
    files.write_rows(run.log_path, rows)


def write_facts(run: Run, **facts: Any) -> None:
    files.write_json(run.folder / "training.json", {**ENDED, **facts})


def test_findings_are_logged_once_and_ranked() -> None:
    first, last = Finding(findings.NAMES[0], "first"), Finding(findings.NAMES[-1], "last")
    with collected_findings() as logged:
        findings.report(last, first, last)
        findings.report(first)
    assert logged == [first, last]


@pytest.mark.parametrize("last", [40, 100])
def test_a_training_without_facts_has_not_ended(run: Run, last: int) -> None:
    assert run_findings(run) == []  # no log
    write_log(run, last, 9.0, 8.5)
    (finding,) = run_findings(run)
    assert finding.name == "unfinished"
    assert f"stopped (step {last} of 100)" in finding.text
    write_facts(run)
    assert run_findings(run) == []


def test_unreadable_records_are_a_finding(run: Run) -> None:
    run.log_path.write_text("no row\n", encoding="utf-8")
    assert names_of(run_findings(run)) == ["unfinished"]
    run.log_path.unlink()
    files.write_json(run.folder / "training.json", [])
    assert "expected an object, got list" in run_findings(run)[0].text


@pytest.mark.parametrize(
    ("perplexities", "is_undertrained"),
    [
        ((300.0, 134.0, 105.0, 96.0), True),
        ((90.0, 58.3, 52.0, 49.9), False),
        ((300.0, 134.0, 90.0, 96.0), False),  # the best evaluation was not the last: longer training would not help
        ((300.0,), False),
    ],
)
def test_a_run_whose_perplexity_still_fell_is_undertrained(
    run: Run, perplexities: tuple[float, ...], is_undertrained: bool
) -> None:
    write_log(run, 100, *perplexities)
    write_facts(run)
    assert names_of(run_findings(run)) == ["undertrained"] * is_undertrained


@pytest.mark.parametrize("ngram", [80.0, 120.0])
def test_a_run_that_is_worse_than_ngram_counts_is_undertrained(run: Run, ngram: float) -> None:
    write_log(run, 100, 101.0, 100.0)
    write_facts(run, ngram={"perplexity": {"neural": 100.0, "ngram": ngram, "mixture": 75.0}})
    assert names_of(run_findings(run)) == ["undertrained"] * (ngram < 100)
    write_log(run, 100, 90.0, 100.0)  # the best evaluation was not the last
    write_facts(run, ngram={"perplexity": {"neural": 100.0, "ngram": ngram}}, context={**EFFECT, f"{GAIN}_low": -0.1})
    assert all(finding.text.endswith("train on more texts") for finding in run_findings(run))


def test_the_quality_of_a_run_is_a_detail_when_it_is_used(run: Run) -> None:
    write_log(run, 100, 101.0, 100.0)
    ranks = {"mrr": 0.21, "mrr_known": 0.2, **Interval(0.001, -0.001, 0.003).to_row("gain_over_known")}
    write_facts(run, ngram={"perplexity": {"neural": 100.0, "ngram": 80.0}}, completion=ranks)
    with collected_findings() as logged, logged_progress() as lines:
        report_use(run)
    assert logged == []
    assert ["n-gram counts" in line for line in lines] == [True, False]
    assert describe_quality(run) == " (undertrained, weak model)"
    write_facts(run)
    assert describe_quality(run) == ""
    (run.folder / "training.json").unlink()
    with expected_finding("unfinished"):
        report_use(run)


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (None, None, ""),
        (0.01, 0.015, ""),
        (-0.005, 0.015, "no effect"),
        (-0.03, -0.02, "no effect"),
        (-0.005, 0.03, ""),  # too few texts
    ],
)
def test_a_context_without_a_significant_effect_is_a_finding(
    run: Run, low: float | None, high: float | None, name: str
) -> None:
    write_facts(run, context=None if low is None else {**EFFECT, f"{GAIN}_low": low, f"{GAIN}_high": high})
    findings = run_findings(run)
    assert names_of(findings) == [name] * bool(name)
    assert all(("raises its perplexity" in finding.text) == (high is not None and high < 0) for finding in findings)
    write_facts(run, context={**EFFECT, f"{GAIN}_low": -0.01, "only_unknown_users": True})
    assert names_of(run_findings(run)) == ["unknown users"]


def test_a_specified_column_without_a_significant_effect_is_named(run: Run) -> None:
    columns = {"city": {**EFFECT, f"{GAIN}_low": 0.005}, "stars": {**EFFECT, f"{GAIN}_low": -0.02}}
    write_facts(run, context={**EFFECT, f"{GAIN}_low": 0.005, "columns": columns})
    (finding,) = run_findings(run, ["city", "stars"])
    assert finding.name == "column without effect"
    assert "stars alone" in finding.text
    assert run_findings(run, ["city"]) == []
    write_facts(run, context={**EFFECT, f"{GAIN}_low": -0.01, "columns": columns})
    assert names_of(run_findings(run, ["stars"])) == ["no effect"]
    assert run_findings(run, []) == []  # a request without a context


def test_an_unadapted_run_with_a_context_is_a_finding(tmp_path: Path) -> None:
    unadapted = make_run(tmp_path / "plain", adapt=[], output_bias=[])
    assert run_findings(unadapted) == []
    assert names_of(run_findings(unadapted, ["city"])) == ["unread context"]


def test_the_gain_over_an_unknown_context_is_that_on_development_texts(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held_out = run.prepare(ROWS * 3)
    gain = measure_context_effect(run, held_out)
    with_context, without_context = (
        evaluate(run, c).perplexity for c in (held_out, held_out.without_context(run.schema))
    )
    assert gain is not None
    assert gain[GAIN] == pytest.approx(1 - with_context / without_context)
    figures = text_figures.figures_from_nats(run.nats(held_out), held_out)
    text_figures.save(run.folder, figures, text_figures.DEVELOPMENT_RESULT)
    saved_gain = measure_context_effect(run, held_out) or {}
    assert saved_gain.pop("columns") == gain.pop("columns")
    assert saved_gain == pytest.approx(gain)
    monkeypatch.setattr(perplexity, "MAX_EFFECT_TEXTS", 12)
    assert (measure_context_effect(run, held_out) or {})["texts"] == 12 < MAX_EFFECT_TEXTS
    assert measure_context_effect(make_run(tmp_path / "plain", adapt=[], output_bias=[]), held_out) is None


def test_the_effect_of_each_column_is_that_without_the_others(tmp_path: Path) -> None:
    context = ("city", "stars", "lat:number", "note:text", "vec:vector")
    rows = [{**row, "note": row["text"], "vec": [1.0, row["lat"]]} for row in ROWS]
    run = make_run(tmp_path / "run", context, rows=rows)
    held_out = run.prepare(rows)
    effects = (measure_context_effect(run, held_out) or {})["columns"]
    assert list(effects) == ["city", "stars", "lat", "note", "vec"]
    without = evaluate(run, held_out.without_context(run.schema)).perplexity
    texts = [row["text"] for row in rows]
    for name, row in effects.items():
        alone = evaluate(run, run.read(texts, [{name: row[name]} for row in rows])).perplexity
        assert row[GAIN] == pytest.approx(1 - alone / without)
    unseen = run.prepare([{**row, "city": "Rome"} for row in rows])
    assert "city" not in (measure_context_effect(run, unseen) or {})["columns"]
    one_column = make_run(tmp_path / "one", ("city",))
    assert "columns" not in (measure_context_effect(one_column, one_column.prepare(rows)) or {})


# Columns that predict others.


def test_contexts_differ_in_columns_that_only_some_of_them_have() -> None:
    contexts = [{"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}]
    assert differing_columns(contexts) == ["b", "c", "d"]


def test_tables_for_unadapted_runs_may_lack_context_columns(tmp_path: Path) -> None:
    unadapted = make_run(tmp_path / "unadapted", adapt=[], output_bias=[])
    assert unadapted.score([{"text": row["text"]} for row in ROWS]).tolist() == [
        row["nats"] for row in unadapted.score_rows(ROWS)
    ]


# Repeated texts.


def read_texts(texts: list[str], **options: Any) -> Corpus:
    return prepare([{"text": text} for text in texts], Config.of(**options))


def read_more(texts: list[str], train: Corpus, **options: Any) -> Corpus:
    rows = [{"text": text} for text in texts]
    return prepare(rows, Config.of(**options), tokenizer=train.tokenizer, schema=train.schema)


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_repeated_texts_are_those_that_a_set_contains(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK", block)
    draw = random.Random(0)
    texts = ["".join(draw.choices("ab ", k=draw.randint(1, 6))).strip() or "b" for _ in range(600)]
    known, new = texts[:200], texts[200:]
    train = read_texts(known, tokenizer="char", min_count=1)
    finding = repeated_texts(read_more(new, train, tokenizer="char", min_count=1), text_hashes(train), "texts")
    share = sum(text in set(known) for text in new) / len(new)
    assert finding is not None
    assert finding.text.startswith(f"{share:.0%} of the texts")
    assert 0.05 < share < 1


def test_texts_with_different_unknown_words_are_not_repeated() -> None:
    train = read_texts(["see CVE-1", "see CVE-2", "see it", "see CVE-3 CVE-4"], tokenizer="word", min_count=2)
    texts = ["see CVE-2", "see CVE-5", "see CVE-2 CVE-2", "see CVE-3CVE-4", "see CVE-3 CVE-4", "CVE-2 see"]
    finding = repeated_texts(read_more(texts, train, tokenizer="word", min_count=2), text_hashes(train), "texts")
    assert finding is not None
    assert finding.text.startswith("33% of the texts")


def test_the_smallest_hashes_estimate_the_share_of_repeated_texts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (run_module, diagnostics):
        monkeypatch.setattr(module, "MAX_TEXT_HASHES", 200)
    texts = [f"{number}" for number in range(3000)]
    train = read_texts(texts[:2000], tokenizer="char", min_count=1)
    run.save_text_hashes(text_hashes(train))
    hashes = run.text_hashes()
    assert hashes is not None
    assert len(hashes) == 200
    finding = repeated_texts(read_more(texts[1000:], train, tokenizer="char", min_count=1), hashes, "texts")
    assert finding is not None
    assert 0.35 < float(finding.text.partition("%")[0]) / 100 < 0.65  # half of the texts are repeated


@pytest.mark.parametrize("user", [False, True])
def test_evaluations_report_texts_of_the_training_table(tmp_path: Path, user: bool) -> None:
    rows = [{"text": f"room {i} is {'red' if i % 3 else 'blue'}", "city": "AB"[i % 2]} for i in range(60)]
    train, dev = rows[:40], rows[40:]
    options = {"tokenizer": "char", "epochs": 0.1, "hidden_size": 8, "embedding_size": 4, "min_count": 1}
    columns: dict[str, Any] = {"user": "city"} if user else {"context": ("city",)}
    config = Config.of(**options, **columns, ngram_mixture=False, min_context_count=1, min_user_count=1)
    run = train_run(train, dev, config, tmp_path / "run")
    assert (run.text_hashes() is None) == user  # no hashes of texts of persons
    for table, is_reported in ((dev, False), (rows[36:], not user)):
        with collected_findings() as logged:
            evaluate(run, table)
        assert ("repeated texts" in names_of(logged)) == is_reported
        with collected_findings() as logged:
            classify(run, table, "city")
        assert ("repeated texts" in names_of(logged)) == is_reported


# Tables of a training.

TEXTS = ["a red room", "a blue room", "the red door", "the blue door"]
NEW_TEXTS = ["a red door", "the blue room"]


def corpora(texts: list[str], dev: list[str], tokenizer: str = "word", min_count: int = 2) -> tuple[Corpus, Corpus]:
    """Return training and development texts, each with one of two cities."""
    data = Config.of(context=("city",), min_context_count=min_count, tokenizer=tokenizer)
    rows = [[{"text": text, "city": ("Oslo", "Nice")[i % 2]} for i, text in enumerate(part)] for part in (texts, dev)]
    corpus = prepare(rows[0], data)
    return corpus, prepare(rows[1], data, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        (corpora(TEXTS, NEW_TEXTS), None),
        (corpora(TEXTS, TEXTS), "repeated texts"),
        (corpora(TEXTS, [TEXTS[2], "a red door", TEXTS[0], ""]), "repeated texts"),
        (corpora(TEXTS, ["a oder moor"]), "unknown words"),
        (corpora(TEXTS, ["a oder moor"], "space"), "unknown words"),
        (corpora(TEXTS, ["a oder moor"], "char"), None),
        (corpora(TEXTS, NEW_TEXTS, min_count=3), "uninformative column"),
        (corpora([*TEXTS, TEXTS[0]], NEW_TEXTS, min_count=3), None),
        (corpora(TEXTS[:1], ["a red door"], "char", min_count=1), "uninformative column"),
    ],
)
def test_tables_that_make_a_model_less_useful_are_findings(tables: tuple[Corpus, Corpus], name: str | None) -> None:
    assert names_of([*training_table_findings(*tables)]) == [name] * (name is not None)


@pytest.mark.parametrize(("extreme", "text"), [(400.0, "400 in row 8"), (9.0, ""), (-400.0, "-400 in row 8")])
def test_outliers_of_numbers_are_findings(extreme: float, text: str) -> None:
    rows = [{"text": "a red room", "size": extreme if i == 7 else 1 + i % 10 / 4} for i in range(400)]
    corpus = prepare(rows, Config.of(context=("size:number",), min_count=1))
    other_corpus = prepare([{"text": "a red", "size": 1}], Config.of(context=("size:number",), min_count=1))
    outliers = [finding.text for finding in training_table_findings(corpus, other_corpus) if finding.name == "outlier"]
    assert len(outliers) == bool(text)
    assert text in "".join(outliers)
