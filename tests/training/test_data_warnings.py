"""Warnings about the tables of a training."""

import pytest

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.training.fit import data_warnings

TEXTS = ["a red room", "a blue room", "the red door", "the blue door"]
NEW_TEXTS = ["a red door", "the blue room"]


def corpora(texts: list[str], dev: list[str], tokenizer: str = "word", min_count: int = 2) -> tuple[Corpus, Corpus]:
    """Return training and development texts, each with one of two cities."""
    data = Config.of(context=("city",), min_context_count=min_count, tokenizer=tokenizer)
    rows = [[{"text": text, "city": ("Oslo", "Nice")[i % 2]} for i, text in enumerate(part)] for part in (texts, dev)]
    corpus = prepare(rows[0], data)
    return corpus, prepare(rows[1], data, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")


def test_good_tables_have_no_warnings() -> None:
    assert list(data_warnings(*corpora(TEXTS, NEW_TEXTS))) == []


def test_development_texts_equal_to_the_training_texts_cause_a_warning() -> None:
    (line,) = data_warnings(*corpora(TEXTS, TEXTS))
    assert line.startswith("the development texts are the training texts")


@pytest.mark.parametrize(("tokenizer", "count"), [("word", 1), ("space", 1), ("char", 0)])
def test_many_unknown_words_cause_a_warning(tokenizer: str, count: int) -> None:
    warnings = list(data_warnings(*corpora(TEXTS, ["a oder moor"], tokenizer)))
    assert len(warnings) == count
    assert all(line.startswith("50% of the development targets are out of vocabulary") for line in warnings)


def test_a_column_of_rare_values_causes_a_warning() -> None:
    (line,) = data_warnings(*corpora(TEXTS, NEW_TEXTS, min_count=3))
    assert line == (
        "city: uninformative, because no value has 3 texts, the minimum (--min-context-count or --min-user-count)"
    )
    assert list(data_warnings(*corpora([*TEXTS, TEXTS[0]], NEW_TEXTS, min_count=3))) == []


@pytest.mark.parametrize(
    ("extreme", "warning"),
    [
        (
            400.0,
            "larger than all others, such as 400 (mean 3.11813) in row 8; correct them if they are mistakes, otherwise",
        ),
        (9.0, None),
        (-400.0, "smaller than all others, such as -400 (mean 1.11813) in row 8; correct them if they are mistakes"),
    ],
)
def test_outliers_of_numbers_cause_a_warning(extreme: float, warning: str | None) -> None:
    rows = [{"text": "a red room", "size": extreme if i == 7 else 1 + i % 10 / 4} for i in range(400)]
    corpus = prepare(rows, Config.of(context=("size:number",), min_count=1))
    other_corpus = prepare([{"text": "a red", "size": 1}], Config.of(context=("size:number",), min_count=1))
    warnings = list(data_warnings(corpus, other_corpus))
    if warning is None:
        assert warnings == []
    else:
        (line,) = warnings
        assert line.startswith(f"size: a few values are far {warning}")


def test_development_texts_that_are_training_texts_are_counted() -> None:
    (line,) = data_warnings(*corpora(TEXTS, [TEXTS[2], "a red door", TEXTS[0], ""]))
    assert line == (
        "2 of 4 development texts also occur in the training table, token for token; figures of these texts are better "
        "than those of new texts"
    )


def test_a_column_with_one_value_causes_a_warning() -> None:
    (line,) = data_warnings(*corpora(TEXTS[:1], ["a red door"], "char", min_count=1))
    assert line == "city: uninformative, because all texts have the same value or no value"
