"""The classifier of scikit-learn: predictions by Bayes' rule, tables with context, model selection and pickling."""

import gc
import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.sklearn import ContextClassifier

TEXTS = ["the sea is cold", "sun and sand", "cold cold sea", "sand in the sun"] * 5
LABELS = ["north", "south", "north", "south"] * 5
STARS = [1, 5, 2, 4] * 5
SIZES = {"min_count": 1, "embedding_size": 4, "rank": 1, "hidden_size": 6, "learning_rate": 0.05, "batch_tokens": 20}


def classifier(**parameters: Any) -> ContextClassifier:
    return ContextClassifier(**{"epochs": 8, **SIZES, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def fitted() -> ContextClassifier:
    return classifier().fit(TEXTS, LABELS)


def test_predictions_follow_bayes_rule_with_the_default_priors(fitted: ContextClassifier) -> None:
    probabilities = fitted.predict_proba(TEXTS[:4])
    result = fitted.run_.predict(TEXTS[:4], "class")
    assert fitted.classes_.tolist() == ["north", "south"]
    columns = [result.names.index(name) for name in fitted.classes_]
    np.testing.assert_allclose(probabilities, result.probabilities[:, columns], rtol=1e-6)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(np.exp(fitted.predict_log_proba(TEXTS[:4])), probabilities)
    assert fitted.predict(TEXTS[:4]).tolist() == LABELS[:4]
    assert fitted.score(TEXTS, LABELS) == 1


@pytest.mark.parametrize(
    "texts",
    [
        np.array(TEXTS[:3]),
        np.array(TEXTS[:3], dtype=object)[:, None],
        pd.Series(TEXTS[:3], index=[7, 1, 3]),
        pd.DataFrame({"text": TEXTS[:3]}),
        [{"text": text} for text in TEXTS[:3]],
    ],
    ids=["array", "column of an array", "series", "data frame", "rows"],
)
def test_texts_of_all_kinds_have_the_same_probabilities(fitted: ContextClassifier, texts: Any) -> None:
    np.testing.assert_array_equal(fitted.predict_proba(texts), fitted.predict_proba(TEXTS[:3]))


@pytest.mark.parametrize("labels", [pa.array(LABELS), pd.DataFrame({"class": LABELS}), iter(LABELS)])
def test_labels_of_all_kinds_give_the_same_classes(labels: Any) -> None:
    assert classifier(epochs=1).fit(TEXTS, labels).classes_.tolist() == ["north", "south"]


@pytest.mark.parametrize("labels", [np.array([1, 0] * 10), np.array([True, False] * 10), pd.Series([7, -2] * 10)])
def test_predictions_have_the_type_of_the_labels(labels: Any) -> None:
    model = classifier().fit(TEXTS, labels)
    assert model.classes_.tolist() == sorted(set(labels.tolist()))
    assert model.predict(TEXTS[:4]).tolist() == labels[:4].tolist()
    assert model.predict(TEXTS[:4]).dtype == np.asarray(labels).dtype


def test_other_columns_of_a_data_frame_are_context() -> None:
    frame = pd.DataFrame({"review": TEXTS, "stars": STARS, "class": LABELS})
    model = classifier(text="review", min_context_count=5).fit(frame[["review", "stars"]], LABELS)
    assert list(model.run_.schema.columns()) == ["class", "stars"]
    without_labels = model.predict_proba(frame[["review", "stars"]])
    np.testing.assert_array_equal(model.predict_proba(frame), without_labels)  # a column of true classes is not read
    changed = frame.assign(stars=frame["stars"].iloc[::-1].to_numpy())
    assert not np.array_equal(model.predict_proba(changed), without_labels)
    with pytest.raises(UserError, match="no column 'review'"):
        model.predict(frame[["stars"]])
    with pytest.raises(UserError, match="to read a text, pass a list of texts"):
        ContextClassifier().fit("lovely stay", ["a"])
    with pytest.raises(UserError, match="the column name 'class' is reserved"):
        classifier(text="review").fit(frame, LABELS)


def test_a_rare_class_is_not_grouped_with_other_rare_classes() -> None:
    model = classifier().fit([*TEXTS, "ice", "fire"], [*LABELS, "pole", "equator"])
    assert model.classes_.tolist() == ["equator", "north", "pole", "south"]
    assert model.predict_proba(["ice"]).shape == (1, 4)


def test_the_same_seed_trains_the_same_model() -> None:
    first, second, other = (
        classifier(epochs=1, random_state=state).fit(TEXTS, LABELS).predict_proba(TEXTS)
        for state in (np.random.RandomState(3), np.random.RandomState(3), 4)
    )
    seed = classifier(epochs=1, random_state=np.int64(4)).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(seed.predict_proba(TEXTS), other)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_pipelines_and_model_selection_train_classifiers() -> None:
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.upper() for text in texts]), classifier())
    assert pipeline.fit(TEXTS, LABELS).predict(["COLD SEA"]).tolist() == ["north"]
    assert cross_val_score(classifier(), TEXTS, LABELS, cv=2).tolist() == [1, 1]
    grid = GridSearchCV(classifier(), {"epochs": [0.1, 8], "rank": [1]}, cv=2, scoring="neg_log_loss")
    grid.fit(pd.DataFrame({"text": TEXTS, "stars": STARS}), np.array(LABELS))
    assert grid.best_params_ == {"epochs": 8, "rank": 1}
    assert list(grid.best_estimator_.run_.schema.columns()) == ["class", "stars"]


def test_a_pickled_classifier_contains_its_run(fitted: ContextClassifier) -> None:
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    assert copy.run_.folder != fitted.run_.folder
    assert copy.get_params() == fitted.get_params()
    assert pickle.loads(pickle.dumps(classifier())).get_params() == classifier().get_params()


def test_the_temporary_folder_is_deleted_with_the_run(fitted: ContextClassifier) -> None:
    copy = pickle.loads(pickle.dumps(fitted))
    run = copy.run_
    del copy
    gc.collect()
    assert run.folder.is_dir()
    folder = run.folder
    del run
    gc.collect()
    assert not folder.exists()


def test_a_run_folder_is_written_and_stays(tmp_path: Path) -> None:
    model = classifier(epochs=0.1, out=tmp_path / "run").fit(TEXTS, LABELS)
    probabilities = model.predict_proba(TEXTS)
    with pytest.raises(UserError, match="exists already"):
        model.fit(TEXTS, LABELS)
    del model
    gc.collect()
    result = Run.open(tmp_path / "run").predict(TEXTS, "class", values=["north", "south"])
    np.testing.assert_array_equal(result.probabilities, probabilities)


def test_a_failed_training_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match="rank"):
        classifier(rank=-1).fit(TEXTS, LABELS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (["north"] * 20, ValueError, "expected at least two classes, got only one class"),
        (LABELS[:-1], ValueError, "inconsistent numbers of samples"),
        ([0.5, 1.5] * 10, ValueError, "continuous"),
        (["5", "5.0"] * 10, UserError, "two classes have the same name"),
        (["", "north"] * 10, UserError, "got a missing value"),
        (["<unknown>", "north"] * 10, UserError, "expected other class names than <unknown>"),
    ],
)
def test_invalid_classes_are_errors(labels: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        classifier().fit(TEXTS, labels)


def test_a_classifier_without_training_is_an_error() -> None:
    with pytest.raises(NotFittedError):
        classifier().predict(TEXTS)


def test_clones_have_the_same_parameters_and_no_run(fitted: ContextClassifier) -> None:
    copy = clone(fitted).set_params(epochs=2, hidden_size=7, minutes=1)
    assert copy.get_params() == {**fitted.get_params(), "epochs": 2, "hidden_size": 7, "minutes": 1}
    assert not hasattr(copy, "run_")


# `check_estimator` omits all checks but the first for an estimator whose tags exclude arrays of numbers, and therefore
# needs no `expected_failed_checks`. These checks do not depend on `X`.
CHECKS = [
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]


@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_of_scikit_learn_that_read_no_numbers_pass(name: str) -> None:
    getattr(estimator_checks, name)("ContextClassifier", ContextClassifier())


def test_check_estimator_passes_and_omits_the_checks_with_numbers() -> None:
    with pytest.warns(SkipTestWarning, match="two_d_array=False"):
        results = estimator_checks.check_estimator(ContextClassifier())
    assert {row["check_name"]: row["status"] for row in results} == {"check_estimator_cloneable": "passed"}
    tags = ContextClassifier().__sklearn_tags__()
    assert tags.estimator_type == "classifier"
    assert tags.input_tags.string


def test_parameters_are_documented() -> None:
    documentation = inspect.getdoc(ContextClassifier) or ""
    assert all(f"{name}: " in documentation for name in inspect.signature(ContextClassifier).parameters)


def test_mistakes_give_one_line_without_remedies_of_other_functions() -> None:
    frame = pd.DataFrame({"text": TEXTS, "stars": STARS})
    with pytest.raises(UserError, match=r"unknown option 'rnk' \(did you mean 'rank'\?\)"):
        classifier(rnk=3).fit(TEXTS, LABELS)
    for missing in (None, float("nan"), pd.NA):
        labels = [missing, *LABELS[1:]]
        for column in (labels, pd.Series(labels, dtype=object), pd.DataFrame({"class": labels})):
            with pytest.raises(ValueError, match="y: expected a class for each text, got missing values"):
                classifier().fit(TEXTS, column)
    with pytest.raises(UserError, match=r"no column 'stars'; it has text$"):
        classifier(epochs=1).fit(frame, LABELS).predict(frame[["text"]])
