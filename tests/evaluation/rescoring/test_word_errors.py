"""Word errors against edits written out."""

from hypothesis import given
from hypothesis import strategies as st

from factorcell.evaluation.rescoring.rescore import word_errors

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5).map(" ".join)


def fewest(said: tuple[str, ...], read: tuple[str, ...]) -> int:
    """Edits by the definition, without a table."""
    if not said or not read:
        return len(said) + len(read)
    pair = fewest(said[1:], read[1:]) + (said[0] != read[0])
    return min(pair, fewest(said[1:], read) + 1, fewest(said, read[1:]) + 1)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_distances_are_the_fewest_edits(reference: str, texts: list[str]) -> None:
    found = word_errors(reference, texts)
    assert found.tolist() == [fewest(tuple(reference.split()), tuple(text.split())) for text in texts]


def test_words_are_what_spaces_part() -> None:
    assert word_errors("So it, is", ["so it is", "So  it, is ", ""]).tolist() == [2, 0, 3]
