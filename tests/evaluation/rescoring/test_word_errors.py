"""Word errors against a recursive edit distance."""

from hypothesis import given
from hypothesis import strategies as st

from factorcell.evaluation.rescoring.rescore import word_errors

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5).map(" ".join)


def minimum_edits(reference: tuple[str, ...], hypothesis: tuple[str, ...]) -> int:
    """Return the edit distance by its recursive definition."""
    if not reference or not hypothesis:
        return len(reference) + len(hypothesis)
    pair = minimum_edits(reference[1:], hypothesis[1:]) + (reference[0] != hypothesis[0])
    return min(pair, minimum_edits(reference[1:], hypothesis) + 1, minimum_edits(reference, hypothesis[1:]) + 1)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_word_errors_are_the_minimum_number_of_edits(reference: str, texts: list[str]) -> None:
    errors = word_errors(reference, texts)
    assert errors.tolist() == [minimum_edits(tuple(reference.split()), tuple(text.split())) for text in texts]


def test_words_are_separated_by_white_space() -> None:
    assert word_errors("So it, is", ["so it is", "So  it, is ", ""]).tolist() == [2, 0, 3]
