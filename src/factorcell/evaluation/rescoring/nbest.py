"""N-best lists of a speech recognizer, read from JSON lines, Kaldi, NeMo or SRILM (docs/rescoring.md has the formats).

Scores are log probabilities in nats: Kaldi's costs are negated, and SRILM's logarithms to base 10 are multiplied by
ln 10. Shapes: H hypotheses of an utterance, S scores.
"""

import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.rows import to_rows
from factorcell.data.columns.values import category_name
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.io import input_files

Floats = NDArray[np.float64]
Rows = Iterator[tuple[str, Any]]  # locations (file and line, for error messages), and rows of the JSON lines format

MAX_SCORE = 1e9  # nats; sums of larger numbers would lose precision
SCORE_RANGE = "a number from -1e9 to 1e9"
LM = "lm"  # name of the score of the first-pass language model
KALDI_TEXTS = ("words_text", "words")
KALDI_COSTS = {"ac_cost": "acoustic", "lm_cost": LM, "lmwt.nolm": "graph", "lmwt.lmonly": LM}
SRILM_SUFFIXES = (  # SRILM strips these suffixes from names of files
    *(".Z", ".gz", ".score", ".nbest", ".lat", ".slf", ".plp"),
    *(".wav", ".wav_cep", ".wv", ".wv1", ".sph"),
)
SRILM_LINE = "ACOUSTIC LM WORDS-COUNT WORD ..."
SRILM_MARKS = ("<s>", "</s>", "-pau-")  # tokens in SRILM's lists that are not words
UTTERANCE_FIELDS = ("id", "hypotheses", "reference")  # all other fields are columns


@dataclass(frozen=True)
class Utterance:
    """The n-best list of an utterance."""

    id: str  # the unique name of the utterance
    texts: tuple[str, ...]  # the hypotheses (H), in the order of the first pass, the best first
    scores: Floats  # the scores of each hypothesis in nats (H, S)
    reference: str | None = None  # the correct transcript, if it is known
    columns: Mapping[str, Any] = field(default_factory=dict)  # the values of other columns, such as the speaker


@dataclass(frozen=True)
class NBest:
    """The n-best lists of utterances, and the `score_names` (S) of the scores of each hypothesis."""

    score_names: tuple[str, ...]
    utterances: tuple[Utterance, ...]

    def __post_init__(self) -> None:
        if not self.utterances:
            raise UserError("utterances: expected at least one, got none")
        repeated = [name for name, count in Counter(utterance.id for utterance in self.utterances).items() if count > 1]
        if repeated:
            raise UserError(f"utterance {repeated[0]!r} occurs twice; ids must be unique")
        bare = [utterance.id for utterance in self.utterances if utterance.reference is None]
        if 0 < len(bare) < len(self.utterances):
            raise UserError(f"utterance {bare[0]}: expected a reference; either all or no utterances have one")

    @property
    def has_references(self) -> bool:
        """Whether the utterances have references; either all or no utterances have one."""
        return self.utterances[0].reference is not None

    @property
    def columns(self) -> list[str]:
        """The names of the columns that any utterance has."""
        return list(dict.fromkeys(name for utterance in self.utterances for name in utterance.columns))


def read_nbest(source: Any) -> NBest:
    """Read n-best lists in the format of JSON lines, Kaldi, NeMo or SRILM, which is recognized from the files.

    Args:
        source: A file, a folder, or a table in memory whose rows have the fields of the JSON lines format.

    Raises:
        UserError: The lists are invalid; the message names the file and the line.
    """
    if not isinstance(source, (str, Path)):
        rows = source if isinstance(source, (list, tuple)) else to_rows(source)
        return _parse_rows((f"utterance {number}", row) for number, row in enumerate(rows, 1))
    path = Path(source)
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder")
    try:
        return _parse_rows(_read_rows(path))
    except UserError as error:
        message = str(error)
        raise (error if message.startswith(str(path)) else UserError(f"{path}: {message}")) from None


def _read_rows(path: Path) -> Rows:
    if path.is_dir():
        yield from _read_kaldi(path) if any((path / name).is_file() for name in KALDI_TEXTS) else _read_srilm(path)
        return
    first_line = next((line for _, line in _read_lines(path)), "")
    if not first_line.startswith("{"):
        yield from _read_srilm(path)
        return
    is_nemo = '"beams"' in first_line and '"hypotheses"' not in first_line
    for where, line in _read_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON ({error})") from None
        yield where, _convert_nemo_row(row, where) if is_nemo else row


def _read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield pairs of a location (file and line number, for error messages) and a line; skip blank lines."""
    input_files.check(path)
    if path.suffix == ".Z":
        raise UserError(f"{path}: expected a plain file or a .gz file, got a .Z file; unpack it (uncompress)")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path} line {number}"
                if text := input_files.decode(line, where).strip():
                    yield where, text
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def _parse_score(text: str, where: str, line_format: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not -MAX_SCORE <= value <= MAX_SCORE:
        raise UserError(f"{where}: expected {SCORE_RANGE}, got {text!r}; a line is {line_format}")
    return value


def _parse_rows(rows: Iterable[tuple[str, Any]]) -> NBest:
    score_names: tuple[str, ...] | None = None
    utterances = []
    for where, row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), (str, int)):
            raise UserError(f"{where}: expected an object with id and hypotheses")
        hypotheses = row.get("hypotheses")
        if not isinstance(hypotheses, list) or not hypotheses:
            actual = "an empty list" if hypotheses == [] else f"{hypotheses!r:.40}"
            raise UserError(f"{where}: hypotheses: expected a list of at least one object, got {actual}")
        if score_names is None:
            fields = hypotheses[0] if isinstance(hypotheses[0], Mapping) else {}
            score_names = tuple(name for name in fields if name != "text")
        reference, columns = row.get("reference"), {name: row[name] for name in row if name not in UTTERANCE_FIELDS}
        if not isinstance(reference, (str, type(None))):
            raise UserError(f"{where}: reference: expected a text, got {reference!r:.40}")
        for name, value in columns.items():
            if not isinstance(value, (str, int, float, type(None))):
                raise UserError(f"{where}: {name}: expected a text or a number, got {value!r:.40}")
        scores = [
            _parse_hypothesis(hypothesis, score_names, f"{where} hypothesis {number}")
            for number, hypothesis in enumerate(hypotheses, 1)
        ]
        texts = tuple(hypothesis["text"] for hypothesis in hypotheses)
        utterances.append(Utterance(str(row["id"]), texts, np.array(scores, dtype=np.float64), reference, columns))
    return NBest(score_names or (), tuple(utterances))


def _parse_hypothesis(entry: Any, score_names: Sequence[str], where: str) -> list[float]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("text"), str):
        raise UserError(f"{where}: expected an object with text and scores, got {entry!r:.60}")
    if set(entry) != {"text", *score_names}:
        difference = ", ".join(sorted(set(entry) ^ {"text", *score_names}))
        raise UserError(
            f"{where}: expected scores with the same names as in the first hypothesis; the names differ in {difference}"
        )
    for name in score_names:
        value = entry[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -MAX_SCORE <= value <= MAX_SCORE:
            raise UserError(f"{where}: {name}: expected {SCORE_RANGE} (log probability in nats), got {value!r:.40}")
    return [float(entry[name]) for name in score_names]


def _convert_nemo_row(row: Any, where: str) -> dict[str, Any]:
    beams: Any = row.get("beams") if isinstance(row, dict) else None
    has_pairs = isinstance(beams, list) and all(isinstance(beam, list) and len(beam) == 2 for beam in beams)
    if not has_pairs or not isinstance(row.get("audio_filepath"), str):
        raise UserError(f"{where}: expected audio_filepath and beams, a list of [TEXT, SCORE], got {row!r:.60}")
    columns = {name: value for name, value in row.items() if isinstance(value, (str, int, float, type(None)))}
    reference = columns.pop("text", None)
    hypotheses = [{"text": text, "score": score} for text, score in beams]
    return {**columns, "id": row["audio_filepath"], "hypotheses": hypotheses, "reference": reference}


def _read_kaldi(path: Path) -> Rows:
    texts_path = next(path / name for name in KALDI_TEXTS if (path / name).is_file())
    costs_by_score: dict[str, dict[str, float]] = {}  # score -> hypothesis -> cost
    for file_name, score in KALDI_COSTS.items():
        if (path / file_name).is_file():
            costs_by_score[score] = {}
            for where, line in _read_lines(path / file_name):
                # A line without a cost gets the empty string as its cost, which `_parse_score` rejects.
                hypothesis_id, cost, *_ = *line.split(maxsplit=1), ""
                costs_by_score[score][hypothesis_id] = _parse_score(cost, where, "UTTERANCE-NUMBER COST")
    lists: dict[str, list[dict[str, Any]]] = {}
    for where, line in _read_lines(texts_path):
        hypothesis_id, text, *_ = *line.split(maxsplit=1), ""  # the text of a line without words is empty
        utterance_id, _, number = hypothesis_id.rpartition("-")
        if not utterance_id or not number.isdecimal():
            raise UserError(f"{where}: expected a hypothesis named UTTERANCE-NUMBER, got {hypothesis_id!r}")
        for score, costs in costs_by_score.items():
            if hypothesis_id not in costs:
                raise UserError(f"{where}: {hypothesis_id} has no {score} cost; every hypothesis must have one")
        scores = {score: -costs[hypothesis_id] for score, costs in costs_by_score.items()}
        lists.setdefault(utterance_id, []).append({"text": text, **scores})
    words = [word for hypotheses in lists.values() for hypothesis in hypotheses for word in hypothesis["text"].split()]
    if words and all(word.isdecimal() for word in words):
        hint = f"map word ids to words with words.txt, and write the words to {path / KALDI_TEXTS[0]}"
        raise UserError(f"{texts_path}: expected words, got only numbers; {hint}")
    for utterance_id, hypotheses in lists.items():
        yield str(texts_path), {"id": utterance_id, "hypotheses": hypotheses}


def _read_srilm(path: Path) -> Rows:
    files = [entry for entry in input_files.list_visible(path) if entry.is_file()] if path.is_dir() else [path]
    for file in files:
        utterance_id = file.name
        while suffix := next((suffix for suffix in SRILM_SUFFIXES if utterance_id.endswith(suffix)), ""):
            utterance_id = utterance_id.removesuffix(suffix)
        hypotheses = [_parse_srilm_line(line, where) for where, line in _read_lines(file)]
        if not hypotheses:
            raise UserError(f"{file}: expected at least one hypothesis, got an empty file")
        yield str(file), {"id": utterance_id or file.name, "hypotheses": hypotheses}


def _parse_srilm_line(line: str, where: str) -> dict[str, Any]:
    """Return the hypothesis in a line of SRILM's format: its text without marks such as `<s>`, and scores in nats."""
    fields = line.split()
    if len(fields) < 3:
        hint = "lists are in the format of JSON lines, Kaldi, NeMo or SRILM"
        raise UserError(f"{where}: expected {SRILM_LINE}, got {line!r:.40}; {hint}")
    acoustic, lm, _ = (_parse_score(field, where, SRILM_LINE) for field in fields[:3])
    text = " ".join(word for word in fields[3:] if word not in SRILM_MARKS)
    return {"text": text, "acoustic": math.log(10) * acoustic, LM: math.log(10) * lm}


def with_references(nbest: NBest, path: str | Path) -> NBest:
    """Return n-best lists with the references in a file of lines `UTTERANCE word word ...`."""
    reference_by_id = {}
    for where, line in _read_lines(Path(path)):
        utterance_id, reference, *_ = *line.split(maxsplit=1), ""  # the reference of a line without words is empty
        if utterance_id in reference_by_id:
            raise UserError(f"{where}: {utterance_id} occurs twice; utterances must be unique")
        reference_by_id[utterance_id] = reference
    for utterance in nbest.utterances:
        if utterance.id not in reference_by_id:
            raise UserError(f"{path}: no reference for {utterance.id}; a line is UTTERANCE WORD ...")
    utterances = (replace(utterance, reference=reference_by_id[utterance.id]) for utterance in nbest.utterances)
    return replace(nbest, utterances=tuple(utterances))


def with_columns(nbest: NBest, path: str | Path) -> NBest:
    """Return n-best lists with the columns of a table whose first column is the id of the utterance."""
    table = open_table(path)
    id_column, *column_names = table.columns
    columns_by_id: dict[str, dict[str, Any]] = {}
    for chunk in table.chunks(table.columns):
        for id_value, *values in zip(*chunk.values(), strict=True):
            utterance_id = id_value if isinstance(id_value, str) else category_name(id_value)
            columns_by_id[utterance_id] = dict(zip(column_names, values, strict=True))
    for utterance in nbest.utterances:
        if utterance.id not in columns_by_id:
            raise UserError(f"{path}: no row for {utterance.id}; the first column, {id_column}, has the utterances")
    utterances = (
        replace(utterance, columns={**utterance.columns, **columns_by_id[utterance.id]})
        for utterance in nbest.utterances
    )
    return replace(nbest, utterances=tuple(utterances))
