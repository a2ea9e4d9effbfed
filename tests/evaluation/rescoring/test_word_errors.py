"""Word errors against edits written out."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from factorcell.evaluation.rescoring.rescore import align, distances

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5).map(" ".join)


def fewest(said: tuple[str, ...], read: tuple[str, ...]) -> int:
    """Edits by the definition, without a table."""
    if not said or not read:
        return len(said) + len(read)
    pair = fewest(said[1:], read[1:]) + (said[0] != read[0])
    return min(pair, fewest(said[1:], read) + 1, fewest(said, read[1:]) + 1)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_distances_and_alignments_are_the_fewest_edits(reference: str, texts: list[str]) -> None:
    found = distances(reference, texts)
    for text, errors in zip(texts, found.tolist(), strict=True):
        assert errors == fewest(tuple(reference.split()), tuple(text.split()))
        edits = align(reference, text)
        assert [said for _, said, _ in edits if said] == reference.split()
        assert [read for _, _, read in edits if read] == text.split()
        assert sum(kind != "equal" for kind, _, _ in edits) == errors
        for kind, said, read in edits:
            by_words = {(True, True): "equal" if said == read else "substituted", (True, False): "deleted"}
            assert kind == by_words.get((bool(said), bool(read)), "inserted")


def test_words_are_what_spaces_part() -> None:
    assert distances("So it, is", ["so it is", "So  it, is ", ""]).tolist() == [2, 0, 3]
    kinds = [kind for kind, _, _ in align("a b c d", "a x c d e")]
    assert kinds == ["equal", "substituted", "equal", "equal", "inserted"]
    assert [kind for kind, _, _ in align("a b", "b")] == ["deleted", "equal"]
    assert list(itertools.chain(align("", ""))) == []
