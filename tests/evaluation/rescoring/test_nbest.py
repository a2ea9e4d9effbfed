"""N-best lists from files of all formats, and invalid files."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factorcell.errors import UserError
from factorcell.evaluation.rescoring.nbest import read_nbest
from factorcell.io import files

ROWS: list[dict[str, Any]] = [
    {
        "id": "a1",
        "hypotheses": [
            {"text": "so it is", "acoustic": -31.5, "lm": -9},
            {"text": "so is it", "acoustic": -32.0, "lm": -9.5},
        ],
        "reference": "so is it",
        "speaker": "ann",
        "hour": 12.5,
    },
    {"id": 7, "hypotheses": [{"text": "", "acoustic": -1.0, "lm": -2.0}], "reference": "", "speaker": None},
]


def test_json_lines_and_rows_give_the_same_lists(tmp_path: Path) -> None:
    files.write_rows(tmp_path / "lists.jsonl", ROWS)
    for source in (ROWS, tmp_path / "lists.jsonl"):
        nbest = read_nbest(source)
        first, second = nbest.utterances
        assert nbest.score_names == ("acoustic", "lm")
        assert (first.id, second.id) == ("a1", "7")
        assert first.texts == ("so it is", "so is it")
        assert first.scores.tolist() == [[-31.5, -9.0], [-32.0, -9.5]]
        assert (first.reference, second.reference) == ("so is it", "")
        assert (first.columns, second.columns) == ({"speaker": "ann", "hour": 12.5}, {"speaker": None})
        assert nbest.has_references
        assert nbest.columns == ["speaker", "hour"]


def with_fields(**fields: Any) -> Callable[[Path], Path]:
    """Return a function that writes a file whose second line is the first row with changed fields."""

    def write(folder: Path) -> Path:
        files.write_rows(folder / "x.jsonl", [ROWS[1], {**ROWS[0], **fields}])
        return folder / "x.jsonl"

    return write


def text_file(content: str, name: str = "x") -> Callable[[Path], Path]:

    def write(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    return write


FINITE = "lm: expected a number from -1e9 to 1e9 (log probability in nats)"


def hypothesis(**fields: Any) -> list[dict[str, Any]]:
    return [{"text": "so", "acoustic": -1.0, "lm": -2.0, **fields}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            with_fields(hypotheses=[]),
            "x.jsonl line 2: hypotheses: expected a list of at least one object, got an empty list",
        ),
        (with_fields(hypotheses=["so"]), "line 2 hypothesis 1: expected an object with text and scores, got 'so'"),
        (with_fields(hypotheses=hypothesis(lm="-2")), f"line 2 hypothesis 1: {FINITE}, got '-2'"),
        (with_fields(hypotheses=hypothesis(lm=-1e300)), f"line 2 hypothesis 1: {FINITE}, got -1e+300"),
        (with_fields(hypotheses=hypothesis(lm=math.nan)), f"line 2 hypothesis 1: {FINITE}, got None"),
        (with_fields(hypotheses=hypothesis(lm=True)), f"{FINITE}, got True"),
        (
            with_fields(hypotheses=hypothesis(am=-1.0)),
            "the same names as in the first hypothesis; the names differ in am",
        ),
        (with_fields(id=None), "line 2: expected an object with id and hypotheses"),
        (with_fields(id="7"), "x.jsonl: utterance '7' occurs twice"),
        (
            with_fields(reference=None),
            "x.jsonl: utterance a1: expected a reference; either all or no utterances have one",
        ),
        (with_fields(reference=3), "line 2: reference: expected a text, got 3"),
        (with_fields(speaker=["ann"]), "line 2: speaker: expected a text or a number, got ['ann']"),
        (text_file('{"id": 1,\n'), "x line 1: not valid JSON"),
        (
            text_file(json.dumps({"id": "a", "hypotheses": [{"text": "", "model": 1}]})),
            "score 'model': the name is reserved",
        ),
        (lambda folder: folder / "nowhere", "nowhere: there is no such file"),
        (text_file(""), "x: utterances: expected at least one, got none"),
    ],
)
def test_errors_are_one_line_with_file_and_line(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_nbest(make(tmp_path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(tmp_path))


def test_lists_without_utterances_are_an_error() -> None:
    with pytest.raises(UserError, match="utterances: expected at least one"):
        read_nbest([])
