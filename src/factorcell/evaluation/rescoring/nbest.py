"""N-best lists of a speech recognizer, read from JSON lines.

An n-best list has the most probable hypotheses (texts) for one utterance, each with scores of the recognizer. A line
has one utterance; fields other than id, hypotheses and reference are columns:

    {"id": "a1", "hypotheses": [{"text": "so it is", "acoustic": -31.2, "lm": -9.5}, ...],
     "reference": "so is it", "speaker": "ann"}

Every number of a hypothesis is a score, a log probability in nats. The names of the scores must be the same in all
hypotheses. The first hypothesis of a list is the result of the recognizer (the first pass).

Shapes: H hypotheses of an utterance, S scores.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.rows import to_rows
from factorcell.data.columns.values import to_float64
from factorcell.errors import UserError
from factorcell.io import input_files

Floats = NDArray[np.float64]
Hypothesis = tuple[str, list[float]]  # text and scores

MAX_SCORE = 1e9  # nats; sums of larger numbers would lose precision
SCORE_RANGE = "a number from -1e9 to 1e9"
MODEL, WORDS, LM = "model", "words", "lm"  # names of weights: rescoring model, number of words, first-pass model
UTTERANCE_FIELDS = ("id", "hypotheses", "reference")  # all other fields are columns


@dataclass(frozen=True)
class Utterance:
    """The n-best list of an utterance.

    Attributes:
        id: The unique name of the utterance.
        texts: The hypotheses (H), in the order of the first pass, the best first.
        scores: The scores of each hypothesis in nats (H, S).
        reference: The correct transcript, if it is known.
        columns: The values of other columns, such as the speaker.
    """

    id: str
    texts: tuple[str, ...]
    scores: Floats
    reference: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NBest:
    """The n-best lists of utterances, and the `score_names` (S) of the scores of each hypothesis."""

    score_names: tuple[str, ...]
    utterances: tuple[Utterance, ...]

    def __post_init__(self) -> None:
        if not self.utterances:
            raise UserError("utterances: expected at least one, got none")
        for name in (MODEL, WORDS):
            if name in self.score_names:
                raise UserError(f"score {name!r}: the name is reserved for rescoring; rename the score")
        ids = set()
        for utterance in self.utterances:
            if utterance.id in ids:
                raise UserError(f"utterance {utterance.id!r} occurs twice; ids must be unique")
            ids.add(utterance.id)
            if (utterance.reference is None) == self.has_references:
                id_without_reference = utterance.id if self.has_references else self.utterances[0].id
                raise UserError(
                    f"utterance {id_without_reference}: expected a reference; either all or no utterances have one"
                )

    @property
    def has_references(self) -> bool:
        """Whether the utterances have references; either all or no utterances have one."""
        return self.utterances[0].reference is not None

    @property
    def columns(self) -> list[str]:
        """The names of the columns that any utterance has."""
        return list(dict.fromkeys(name for utterance in self.utterances for name in utterance.columns))


def read_nbest(source: Any) -> NBest:
    """Read n-best lists.

    Args:
        source: A file of JSON lines, or a table in memory whose rows have the same fields.

    Raises:
        UserError: The lists are invalid; the message names the file and the line.
    """
    if not isinstance(source, (str, Path)):
        rows = source if isinstance(source, (list, tuple)) else to_rows(source)
        return _nbest_from_rows((f"utterance {number}", row) for number, row in enumerate(rows, 1))
    try:
        return _nbest_from_rows(_read_json_lines(Path(source)))
    except UserError as error:
        message = str(error)
        raise (error if message.startswith(str(source)) else UserError(f"{source}: {message}")) from None


def _read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield pairs of a location (file and line number, for error messages) and a JSON value; skip blank lines."""
    input_files.check(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path} line {number}"
            if text := input_files.decode(line, where).strip():
                try:
                    yield where, json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{where}: not valid JSON ({error})") from None


def _nbest_from_rows(rows: Iterable[tuple[str, Any]]) -> NBest:
    """Return the n-best lists from pairs of a location (for error messages) and a row of the JSON lines format."""
    score_names: tuple[str, ...] | None = None
    utterances = []
    for where, row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), (str, int)):
            raise UserError(f"{where}: expected an object with id and hypotheses")
        row = _without_numpy(row)
        hypotheses = row.get("hypotheses")
        if not isinstance(hypotheses, list) or not hypotheses:
            actual = "an empty list" if hypotheses == [] else f"{hypotheses!r:.40}"
            raise UserError(f"{where}: hypotheses: expected a list of at least one object, got {actual}")
        if score_names is None:
            first_hypothesis, *_ = hypotheses
            fields = first_hypothesis if isinstance(first_hypothesis, Mapping) else {}
            score_names = tuple(name for name in fields if name != "text")
        reference, columns = row.get("reference"), {name: row[name] for name in row if name not in UTTERANCE_FIELDS}
        if not isinstance(reference, (str, type(None))):
            raise UserError(f"{where}: reference: expected a text, got {reference!r:.40}")
        for name, value in columns.items():
            if not isinstance(value, (str, int, float, type(None))):
                raise UserError(f"{where}: {name}: expected a text or a number, got {value!r:.40}")
        parsed_hypotheses = [
            _parse_hypothesis(hypothesis, score_names, f"{where} hypothesis {number}")
            for number, hypothesis in enumerate(hypotheses, 1)
        ]
        utterances.append(
            replace(_new_utterance(str(row["id"]), parsed_hypotheses), reference=reference, columns=columns)
        )
    return NBest(score_names or (), tuple(utterances))


def _parse_hypothesis(entry: Any, score_names: Sequence[str], where: str) -> Hypothesis:
    """Return the text and the scores of a hypothesis in the JSON lines format, which must have all `score_names`."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("text"), str):
        raise UserError(f"{where}: expected an object with text and scores, got {entry!r:.60}")
    entry = _without_numpy(entry)
    if set(entry) != {"text", *score_names}:
        difference = ", ".join(sorted(set(entry) ^ {"text", *score_names}))
        raise UserError(
            f"{where}: expected scores with the same names as in the first hypothesis; the names differ in {difference}"
        )
    for name in score_names:
        value = entry[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -MAX_SCORE <= value <= MAX_SCORE:
            raise UserError(f"{where}: {name}: expected {SCORE_RANGE} (log probability in nats), got {value!r:.40}")
    return entry["text"], [float(entry[name]) for name in score_names]


def _without_numpy(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with NumPy scalars converted to Python's types."""
    floats = {name: to_float64(value) for name, value in row.items() if isinstance(value, np.floating)}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()} | floats


def _new_utterance(utterance_id: str, hypotheses: Sequence[Hypothesis]) -> Utterance:
    texts, scores = zip(*hypotheses, strict=True)
    return Utterance(utterance_id, texts, np.array(scores, dtype=np.float64))
