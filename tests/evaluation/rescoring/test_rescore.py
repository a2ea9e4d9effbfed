"""Rescoring against scores of single texts; zero weights, and the recovery of planted weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.evaluation.rescoring import rescore as rescoring
from factorcell.evaluation.rescoring.nbest import NBest, read_nbest
from factorcell.evaluation.rescoring.rescore import (
    Weights,
    fit_weights,
    read_weights,
    rescore,
    score_hypotheses,
    share_weights,
    word_error_rates,
)
from factorcell.io import files
from factorcell.ngram.ngram import NGram, spelling_model
from factorcell.runs.run import Run
from tests.findings import expected_finding, no_findings
from tests.small_runs import ROWS, make_run

TEXTS = ("the sea is cold", "the sand is cold", "sun and sand", "the sea the sea", "cold", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run") / "run", ("city", "stars"))


def make_lists(count: int = 6, seed: int = 0, **columns: Any) -> NBest:
    """Return lists of two to five texts with random scores, sorted by their sum, with a random reference."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        texts = [TEXTS[place] for place in random.permutation(len(TEXTS))[: random.integers(2, 6)]]
        scores = random.normal(-5, 2, (len(texts), 2)).round(2)
        scores = scores[np.argsort(-scores.sum(1))]
        hypotheses = [
            {"text": text, "acoustic": a, "lm": b} for text, (a, b) in zip(texts, scores.tolist(), strict=True)
        ]
        context = {"city": ("Oslo", "Nice", None)[number % 3], "stars": "5", "hall": number % 2, **columns}
        rows.append({"id": f"u{number}", "hypotheses": hypotheses, "reference": TEXTS[number % 5], **context})
    return read_nbest(rows)


def choose_hypotheses(scored: NBest, weights: Weights) -> list[int]:
    return [row["place"] - 1 for row in rescore(scored, weights)]


def log_probs(scored: NBest) -> list[Any]:
    """Return the log probabilities of the hypotheses of each utterance."""
    return [utterance.scores[:, scored.score_names.index("model")] for utterance in scored.utterances]


def test_log_probs_equal_scores_of_single_texts_in_context(run: Run) -> None:
    nbest = make_lists()
    scored = score_hypotheses(run, nbest)
    for utterance, values in zip(nbest.utterances, log_probs(scored), strict=True):
        for text, value in zip(utterance.texts, values, strict=True):
            (scored_row,) = run.score_rows({"text": text, "city": utterance.columns["city"], "stars": "5"})
            assert value == pytest.approx(-scored_row["nats"], abs=1e-4)
    features = scored.utterances[0].scores
    assert scored.score_names == ("acoustic", "lm", "model", "words")
    assert features[:, :2].tolist() == nbest.utterances[0].scores.tolist()
    assert features[:, 3].tolist() == [len(text.split()) for text in nbest.utterances[0].texts]
    everywhere = score_hypotheses(run, nbest, context={"city": "Nice"})
    (scored_row,) = run.score_rows({"text": nbest.utterances[0].texts[1], "city": "Nice", "stars": "5"})
    assert log_probs(everywhere)[0][1] == pytest.approx(-scored_row["nats"], abs=1e-4)


def test_the_names_of_the_new_scores_are_reserved(run: Run) -> None:
    nbest = read_nbest([{"id": "a", "hypotheses": [{"text": "", "model": 1}]}])
    with pytest.raises(UserError, match="score 'model': the name is reserved"):
        score_hypotheses(run, nbest)


def test_scores_do_not_depend_on_the_batches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = score_hypotheses(run, make_lists(9))
    monkeypatch.setattr(rescoring, "UTTERANCES_AT_ONCE", 2)
    batched = score_hypotheses(run, make_lists(9))
    for first, second in zip(log_probs(whole), log_probs(batched), strict=True):
        assert first == pytest.approx(second, abs=1e-4)


def test_unseen_values_follow_the_unknown_policy(run: Run) -> None:
    nbest = make_lists(2, city="Olso")
    with pytest.raises(UserError, match=r"^utterance u0: city 'Olso' was never seen .*\(Oslo, ?.*unknown=.group"):
        score_hypotheses(run, nbest, unknown="error")
    expected = score_hypotheses(run, nbest, unknown="expected")
    missing = score_hypotheses(run, make_lists(2, city=None))
    assert log_probs(expected)[0] == pytest.approx(log_probs(missing)[0])
    with expected_finding("unseen values"):
        grouped = score_hypotheses(run, nbest)
    assert log_probs(grouped)[0] != pytest.approx(log_probs(missing)[0], abs=1e-4)
    with pytest.raises(UserError, match=r"unknown context column 'citty' .did you mean 'city'"):
        score_hypotheses(run, make_lists(2), context={"citty": "Oslo"})


def test_a_numeric_column_missing_from_all_utterances_is_expected(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    nbest = make_lists(2)
    values = log_probs(score_hypotheses(run, nbest))[0]
    corpus = run.prepare(
        [{"text": nbest.utterances[0].texts[0], "city": "Oslo", "stars": "5"}], optional=("lat", "lon")
    )
    assert values[0] == pytest.approx(-float(run.nats(corpus).sum()), abs=1e-4)


def test_an_ngram_model_scores_hypotheses(tmp_path: Path) -> None:
    model = NGram.fit(ROWS, Config.of(min_count=1), tmp_path / "ngram", order=2)
    nbest = make_lists(3)
    scored = score_hypotheses(model, nbest)
    for utterance, values in zip(nbest.utterances, log_probs(scored), strict=True):
        for text, value in zip(utterance.texts, values, strict=True):
            assert value == pytest.approx(-float(model.nats(model.prepare([{"text": text}])).sum()))
    with pytest.raises(UserError, match="context column 'city'"):
        score_hypotheses(model, nbest, context={"city": "Oslo"})


def test_a_known_word_wins_over_a_misspelt_one_of_the_same_scores(tmp_path: Path) -> None:
    model = NGram.fit([{"text": "fix the qwerty layout"}, *ROWS * 9], Config.of(min_count=1), tmp_path / "ngram")
    texts = ("fix the qwertyy layout", "fix the qwerty layout", "fix thee qwerty layout")
    nbest = read_nbest([{"id": "a", "hypotheses": [{"text": text} for text in texts], "reference": texts[1]}])
    scored = score_hypotheses(model, nbest)
    (row,) = rescore(scored, share_weights(()))
    assert row["text"] == texts[1]
    spelling = spelling_model(model.tokenizer).nats(["qwertyy", "thee"])
    for place, nats in zip((0, 2), spelling, strict=True):
        unknown = -float(model.nats(model.prepare([{"text": texts[place]}])).sum())
        assert log_probs(scored)[0][place] == pytest.approx(unknown - nats)


def test_absent_columns_are_reported_and_similar_columns_are_errors(run: Run) -> None:
    def without(column: str, *utterances: int, **columns: Any) -> NBest:
        nbest = make_lists()
        changed = [
            replace(utterance, columns={**utterance.columns, column: None, **columns} if index in utterances else {})
            for index, utterance in enumerate(nbest.utterances)
        ]
        return replace(nbest, utterances=tuple(changed))

    with expected_finding("missing values", "no column city, stars"):
        score_hypotheses(run, without("hall"))
    misspelt = without("city", *range(6), cityy="Oslo")
    with pytest.raises(UserError, match=r"^n-best lists: no column 'city' .did you mean 'cityy'\?.; unknown=.expected"):
        score_hypotheses(run, misspelt)
    with expected_finding("missing values"):
        score_hypotheses(run, misspelt, unknown="expected")
    with no_findings():
        score_hypotheses(run, misspelt, context={"city": "Oslo"})


def test_a_model_of_weight_zero_changes_nothing(run: Run) -> None:
    scored = score_hypotheses(run, make_lists(20))
    assert choose_hypotheses(scored, share_weights(("acoustic", "lm"), 0.0)) == [0] * 20
    assert choose_hypotheses(scored, {}) == [0] * 20
    rows = rescore(scored, share_weights(("acoustic", "lm"), 0.0))
    assert [row["text"] for row in rows] == [utterance.texts[0] for utterance in scored.utterances]
    assert all(row["errors"] == row["errors_first"] >= row["errors_oracle"] for row in rows)
    assert any(choose_hypotheses(scored, share_weights(("acoustic", "lm"))))


def test_totals_are_weighted_sums(run: Run) -> None:
    scored = score_hypotheses(run, make_lists(20))
    values = dict(zip(scored.score_names, (0.3, -0.2, 0.9, 1.7), strict=True))
    for utterance, index in zip(scored.utterances, choose_hypotheses(scored, values), strict=True):
        totals = [0.3 * a - 0.2 * b + 0.9 * m + 1.7 * words for a, b, m, words in utterance.scores.tolist()]
        assert [words for *_, words in utterance.scores] == [len(text.split()) for text in utterance.texts]
        assert totals[index] == max(totals)


def test_weights_are_read_and_checked(run: Run, tmp_path: Path) -> None:
    files.write_json(tmp_path / "w.json", {"acoustic": 1, "model": 0.25})
    assert read_weights(tmp_path / "w.json") == {"acoustic": 1.0, "model": 0.25}
    with pytest.raises(UserError, match=r"unknown weight 'modell'"):
        rescore(score_hypotheses(run, make_lists(2)), {"modell": 1.0})
    for content in ('{"acoustic": "1"}', "[1]", '{"acoustic": NaN}'):
        (tmp_path / "w.json").write_text(content)
        with pytest.raises(UserError, match=r"w\.json: expected an object of names and finite numbers, got"):
            read_weights(tmp_path / "w.json")
    with pytest.raises(UserError, match=r"share is 1\.5; it must be a "):
        share_weights(("lm",), 1.5)
    assert share_weights(("am", "lm"), 0.25) == {
        "am": 1.0,
        "lm": 0.75,
        "model": 0.25,
        "words": 0.0,
    }


def with_chosen_references(scored: NBest, weights: Weights) -> NBest:
    """Replace the references by the hypotheses that `weights` choose, so that these weights make no errors."""
    pairs = zip(scored.utterances, choose_hypotheses(scored, weights), strict=True)
    utterances = tuple(replace(utterance, reference=utterance.texts[place]) for utterance, place in pairs)
    return replace(scored, utterances=utterances)


def test_planted_weights_are_recovered(run: Run) -> None:
    planted = {"acoustic": 0.4, "lm": 1.0, "model": -0.6, "words": 2.0}
    scored = with_chosen_references(score_hypotheses(run, make_lists(60)), planted)
    weights, nats = fit_weights(scored)
    rows = rescore(scored, weights)
    assert sum(row["errors_first"] for row in rows) > 40
    assert sum(row["errors"] for row in rows) <= 4
    assert nats > 0


def test_fitting_weights_without_references_is_an_error() -> None:
    bare = read_nbest([{"id": "a", "hypotheses": [{"text": "so", "acoustic": -1.0}]}])
    with pytest.raises(UserError, match="weights cannot be fitted without references"):
        fit_weights(bare)


def test_rates_are_sums_of_errors_over_sums_of_words(run: Run) -> None:
    scored = score_hypotheses(run, make_lists(30))
    rows = rescore(scored, share_weights(("acoustic", "lm"), 1.0))
    overall, *groups = word_error_rates(rows, ["hall", "city"])
    assert overall["utterances"] == 30
    assert overall["words"] == sum(len((partly_silent.reference or "").split()) for partly_silent in scored.utterances)
    assert overall["rescored"] == pytest.approx(sum(row["errors"] for row in rows) / overall["words"])
    assert overall["gain"] == pytest.approx(overall["first"] - overall["rescored"])
    assert overall["gain_low"] < overall["gain"] < overall["gain_high"]
    by_group = {(row["by"], row["value"]): row for row in groups}
    assert set(by_group) == {("hall", "0"), ("hall", "1"), ("city", "Oslo"), ("city", "Nice"), ("city", "(missing)")}
    half = [row for row in rows if row["columns"]["hall"] == 1]
    assert by_group["hall", "1"]["rescored"] == pytest.approx(
        sum(row["errors"] for row in half) / sum(row["words"] for row in half)
    )
    assert by_group["hall", "1"]["gain_low"] <= by_group["hall", "1"]["gain"]
    numbered = [{**row, "columns": {"speaker": 1000 + index}} for index, row in enumerate(rows)]
    assert {row["value"] for row in word_error_rates(numbered, ["speaker"])[1:]} <= {str(1000 + n) for n in range(30)}
    assert word_error_rates(rows[:9])[0]["gain_low"] is None
    assert overall["oracle"] <= min(overall["first"], overall["rescored"])
    with pytest.raises(UserError, match=r"unknown column 'hal' .did you mean 'hall'"):
        word_error_rates(rows, ["hal"])
    silent = [{**row, "words": 0} for row in rows]
    with pytest.raises(UserError, match=r"^the references have no words"):
        word_error_rates(silent)
    partly_silent = [
        {**row, "words": 0 if row is rows[0] else row["words"], "columns": {"hall": str(row is rows[0])}}
        for row in rows
    ]
    shown = word_error_rates(partly_silent, ["hall"])
    assert [(row["by"], row["value"]) for row in shown] == [("all", "all"), ("hall", "false")]
