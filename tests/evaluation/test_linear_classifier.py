"""The linear classifier against scikit-learn's TF-IDF vectorizer, and against loops over texts and columns."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.classification import classify
from factorcell.evaluation.linear_classifier import BASELINES_FILE, LinearClassifier, load, save, target_labels
from tests.findings import collected_findings
from tests.small_runs import ROWS, make_run

WORDS = {"a": ["sun", "sea", "sand", "wave"], "b": ["snow", "ice", "sun", "wood"], "c": ["sand", "wood", "dune"]}


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    kinds = random.choice(list(WORDS), count).tolist()
    return [{"text": " ".join(random.choice(WORDS[kind], random.integers(1, 9))), "kind": kind} for kind in kinds]


def read(rows: list[dict[str, Any]], *context: str, **options: Any) -> Corpus:
    return prepare(rows, Config.of(context=context, min_count=1, min_context_count=1, **options))


def test_the_features_are_those_of_a_tfidf_vectorizer() -> None:
    rows = make_rows(200, 0)
    corpus = read(rows, "kind")
    classifier = LinearClassifier.fit(corpus, "kind")
    texts = [row["text"] for row in rows]
    expected = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True).fit_transform(texts)
    features = classifier._tfidf(corpus)
    assert features.shape == expected.shape
    np.testing.assert_allclose(np.sort(features.sum(0)), np.sort(np.asarray(expected.sum(0)).ravel()), rtol=1e-4)
    np.testing.assert_allclose(features.toarray() @ features.toarray().T, (expected @ expected.T).toarray(), atol=1e-5)


def test_the_posteriors_are_those_of_a_logistic_regression() -> None:
    rows, unseen = make_rows(300, 1), make_rows(50, 2)
    corpus = read(rows, "kind")
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    regression = LogisticRegression(C=3.0).fit(
        vectorizer.fit_transform([row["text"] for row in rows]), [row["kind"] for row in rows]
    )
    test = prepare(unseen, Config.of(context=("kind",)), tokenizer=corpus.tokenizer, schema=corpus.schema)
    classifier = LinearClassifier.fit(corpus, "kind")
    expected = regression.predict_proba(vectorizer.transform([row["text"] for row in unseen]))
    order = [classifier.names.index(name) for name in regression.classes_]
    np.testing.assert_allclose(np.exp(classifier.log_probs(test))[:, order], expected, atol=0.02)


def test_a_token_that_too_few_users_wrote_is_not_read() -> None:
    rows = [{**row, "user": f"u{index % 5}"} for index, row in enumerate(make_rows(100, 3))]
    rows += [{"text": "secret secret", "kind": "a", "user": "u1"}] * 10 + [
        {"text": "shared", "kind": "a", "user": "u2"}
    ]
    rows += [{"text": "shared", "kind": "a", "user": "u3"}]
    corpus = read(rows, "kind", user="user")

    def reads(word: str, min_users: int) -> bool:
        token = corpus.tokenizer.tokens.index(word)
        ngrams = LinearClassifier.fit(corpus, "kind", min_users=min_users).ngrams
        base = len(corpus.tokenizer) + 1
        return any(token + 1 in (int(key) % base, int(key) // base) for key in ngrams)

    assert [reads("secret", 0), reads("shared", 0), reads("shared", 3), reads("sun", 3)] == [False, True, False, True]


def test_one_hot_columns_approximate_the_shares_of_values_and_missing_values_their_mean() -> None:
    random = np.random.default_rng(4)
    groups = random.choice(["x", "y"], 3000, p=[0.8, 0.2]).tolist()
    shares = {"x": 0.9, "y": 0.3}
    rows = [{"text": "sun", "kind": "ab"[random.random() > shares[group]], "group": group} for group in groups]
    corpus = read(rows, "kind", "group")
    classifier = LinearClassifier.fit(corpus, "kind", reads_text=False)
    assert not len(classifier.ngrams)
    probabilities = np.exp(classifier.log_probs(corpus))[:, classifier.names.index("a")]
    for group in shares:
        is_member = np.array([row["group"] == group for row in rows])
        share = Counter(row["kind"] for row in rows if row["group"] == group)["a"] / is_member.sum()
        assert probabilities[is_member] == pytest.approx(share, abs=0.01)
    missing = replace(corpus, categories=np.where([False, True], -1, corpus.categories).astype(np.int32))
    logits = np.log(probabilities) - np.log1p(-probabilities)
    mean = 1 / (1 + np.exp(-logits.mean()))
    np.testing.assert_allclose(np.exp(classifier.log_probs(missing))[:, classifier.names.index("a")], mean, atol=0.01)


def test_a_value_that_alternates_with_a_number_is_learned_from_ranges() -> None:
    years = np.random.default_rng(0).integers(1, 9, 600).tolist()
    corpus = read([{"text": "sun", "kind": "xy"[year % 2], "year": year} for year in years], "kind", "year:number")
    classifier = LinearClassifier.fit(corpus, "kind", reads_text=False)
    assert (classifier.log_probs(corpus).argmax(1) == target_labels(corpus, "kind")).all()
    far = replace(corpus, numbers=np.full_like(corpus.numbers, 1e6))
    last = replace(corpus, numbers=np.full_like(corpus.numbers, 8))
    np.testing.assert_array_equal(classifier.log_probs(far), classifier.log_probs(last))


def test_a_column_that_determines_the_target_is_reported_by_its_name() -> None:
    rows = make_rows(300, 6)
    for index, row in enumerate(rows):
        row |= {"code": row["kind"].upper(), "noise": "xy"[index % 2]}
    corpus = read(rows, "kind", "code", "noise")
    with collected_findings() as findings:
        LinearClassifier.fit(corpus, "kind", reads_text=False).report_dependence(corpus)
    assert [finding.name for finding in findings] == ["dependent columns"]
    assert "code alone in 100.0%" in findings[0].text
    with collected_findings() as findings:
        LinearClassifier.fit(corpus, "noise", reads_text=False).report_dependence(corpus)
    assert not findings


def test_a_part_of_a_large_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, counts = read(make_rows(300, 5), "kind"), []
    fit_weights = LinearClassifier._fit_weights

    def count(classifier: LinearClassifier, texts: Corpus) -> LinearClassifier:
        counts.append(len(texts))
        return fit_weights(classifier, texts)

    monkeypatch.setattr(LinearClassifier, "_fit_weights", count)
    cost = 2 * corpus.target_count * (3 + linear_classifier.READING_COST)
    for share in (2, 1 / 2, 0):
        classifier = LinearClassifier.fit(corpus, "kind", max_cost=share * cost)
        assert np.isfinite(classifier.log_probs(corpus)).all()
    assert counts == [300, 150, 0]


def test_saved_classifiers_are_read_back(tmp_path: Path) -> None:
    rows = [
        {
            "text": "sun sea",
            "kind": "xyz"[i % 3],
            "year": i % 8,
            "hour": f"0{i % 7}:00",
            "tags": "red blue",
            "v": [i, 1],
        }
        for i in range(60)
    ]
    corpus = read(rows, "kind", "year:number", "hour:hour", "tags:text", "v:vector")
    classifier = LinearClassifier.fit(corpus, "kind")
    save(tmp_path / "file", {"kind": classifier})
    loaded = load(tmp_path / "file", corpus.schema)["kind"]
    np.testing.assert_array_equal(loaded.log_probs(corpus), classifier.log_probs(corpus))
    assert load(tmp_path / "none", corpus.schema) == {}
    with pytest.raises(UserError, match="does not belong to this schema"):
        load(tmp_path / "file", read(rows, "kind", "year:number").schema)


def test_a_part_of_the_texts_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"))
    corpus = run.prepare(ROWS * 20)
    part = LinearClassifier.fit(corpus, "city", max_cost=20 * 1000)
    assert 0 < part.read_share < 1
    save(run.folder / BASELINES_FILE, {"city": part})
    (loaded,) = load(run.folder / BASELINES_FILE, run.schema).values()
    assert loaded.read_share == part.read_share
    names = list(classify(run, ROWS * 3, "city").other_predictions)
    assert any(re.fullmatch(r"linear baseline, fitted to \d+ % of the texts", name) for name in names)
