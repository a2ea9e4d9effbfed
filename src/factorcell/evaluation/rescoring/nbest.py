"""N-best lists of a recogniser, read from files of four formats.

JSON lines   one utterance per line; all other fields are columns (context, or to report by):
             {"id": "a1", "hypotheses": [{"text": "so it is", "acoustic": -31.2, "lm": -9.5}, ...],
              "reference": "so is it", "speaker": "ann"}
             Every number of a hypothesis is a score, a log probability in nats; all hypotheses have the same scores.
Kaldi        a folder of text files as nbest-to-linear writes them: words_text (or words) with lines `a1-1 so it is`,
             and costs `a1-1 31.2` in any of ac_cost, lm_cost, lmwt.nolm and lmwt.lmonly.
NeMo         JSON lines of `transcribe_speech.py` with all beams:
             {"audio_filepath": "a1.wav", "beams": [["so it is", -31.2], ...], "text": "so is it"}
SRILM        a file per utterance, named after it, or a folder of them, with lines `acoustic lm words-count so it is`.

The first hypothesis is the recogniser's own choice. Scores become nats, the higher the better: costs of Kaldi are
negated, logarithms to base 10 of SRILM are converted. Files may be compressed (.gz).

Shapes: H hypotheses of an utterance, S scores.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import input_files
from factorcell.config import UserError
from factorcell.data.rows import to_rows
from factorcell.data.tables import open_table
from factorcell.data.values import category_name, to_float64

Floats = NDArray[np.float64]
Hypothesis = tuple[str, list[float]]  # text and scores

LARGEST = 1e9  # nats: sums of larger numbers would have no digits left
MODEL, WORDS, LM = "model", "words", "lm"  # names of weights: the rescoring model, the length, the first pass's model
KALDI_TEXTS = ("words_text", "words")
KALDI_COSTS = {"ac_cost": "acoustic", "lm_cost": LM, "lmwt.nolm": "graph", "lmwt.lmonly": LM}
SRILM_SUFFIXES = (  # which SRILM strips from names of files
    *(".Z", ".gz", ".score", ".nbest", ".lat", ".slf", ".plp"),
    *(".wav", ".wav_cep", ".wv", ".wv1", ".sph"),
)
SRILM_LINE = "ACOUSTIC LM WORDS-COUNT WORD ..."
SILENT = ("<s>", "</s>", "-pau-")  # in SRILM's lists; not words
NEMO_SCORE = "score"
OWN = ("id", "hypotheses", "reference")  # fields of an utterance; all others are columns


@dataclass(frozen=True)
class Utterance:
    """The hypotheses of an utterance: `texts` (H), best first, their `scores` (H, S), the reference, and `columns`."""

    id: str
    texts: tuple[str, ...]
    scores: Floats
    reference: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NBest:
    """The utterances in their order, and the `names` (S) of their scores."""

    names: tuple[str, ...]
    utterances: tuple[Utterance, ...]

    def __post_init__(self) -> None:
        if not self.utterances:
            raise UserError("no utterances: there is nothing to rescore")
        for name in (MODEL, WORDS):
            if name in self.names:
                raise UserError(f"a score is named {name!r}, which stands for the rescoring itself; rename it")
        seen = set()
        for utterance in self.utterances:
            if utterance.id in seen:
                raise UserError(f"utterance {utterance.id!r} comes twice; ids must differ")
            seen.add(utterance.id)
            if (utterance.reference is None) == self.referenced:
                without = utterance.id if self.referenced else self.utterances[0].id
                raise UserError(f"utterance {without} has no reference, others have; all or none must have one")

    @property
    def referenced(self) -> bool:
        """Whether utterances have references: all or none."""
        return self.utterances[0].reference is not None

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for utterance in self.utterances for name in utterance.columns))


def read_nbest(source: Any) -> NBest:
    """Read the n-best lists of utterances from a file or folder, or a table whose rows are like the lines of JSON.

    Raises:
        UserError: The lists cannot be read; the message names the file and the line.
    """
    if not isinstance(source, (str, Path)):
        rows = source if isinstance(source, (list, tuple)) else to_rows(source)
        return _from_rows((f"utterance {number}", row) for number, row in enumerate(rows, 1))
    path = Path(source)
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder")
    try:
        if path.is_dir():
            return _kaldi(path) if any((path / name).is_file() for name in KALDI_TEXTS) else _srilm(path)
        first = next((line for _, line in _lines(path)), "")
        if not first.startswith("{"):
            return _srilm(path)
        lists = _rows(_lines(path))
        if '"beams"' in first and '"hypotheses"' not in first:
            return _from_rows((where, _nemo_row(row, where)) for where, row in lists)
        return _from_rows(lists)
    except UserError as error:
        text = str(error)
        raise (error if text.startswith(str(path)) else UserError(f"{path}: {text}")) from None


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, each with its place for error messages."""
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


def _number(text: str, where: str, valid: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not -LARGEST <= value <= LARGEST:
        raise UserError(f"{where}: {text!r} is not a finite number; a line is {valid}")
    return value


def _rows(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Parse lines of JSON; each keeps the place that errors name."""
    for where, line in lines:
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON ({error})") from None


def _from_rows(rows: Iterable[tuple[str, Any]]) -> NBest:
    names: tuple[str, ...] | None = None
    utterances = []
    for where, row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), (str, int)):
            raise UserError(f"{where}: no id; an utterance is an object with id and hypotheses")
        row = _without_numpy(row)
        hypotheses = row.get("hypotheses")
        if not isinstance(hypotheses, list) or not hypotheses:
            got = "an empty list" if hypotheses == [] else f"{hypotheses!r:.40}"
            raise UserError(f"{where}: hypotheses is {got}; it must be a list of at least one object")
        if names is None:
            first = hypotheses[0] if isinstance(hypotheses[0], Mapping) else {}
            names = tuple(name for name in first if name != "text")
        reference, columns = row.get("reference"), {name: row[name] for name in row if name not in OWN}
        if not isinstance(reference, (str, type(None))):
            raise UserError(f"{where}: reference is {reference!r:.40}, not a text")
        if odd := [name for name, value in columns.items() if not isinstance(value, (str, int, float, type(None)))]:
            raise UserError(f"{where}: {odd[0]} is {columns[odd[0]]!r:.40}; a column has a text or a number")
        lines = [_hypothesis(one, names, f"{where} hypothesis {place}") for place, one in enumerate(hypotheses, 1)]
        utterances.append(replace(_utterance(str(row["id"]), lines), reference=reference, columns=columns))
    return NBest(names or (), tuple(utterances))


def _hypothesis(one: Any, names: Sequence[str], where: str) -> Hypothesis:
    if not isinstance(one, Mapping) or not isinstance(one.get("text"), str):
        raise UserError(f"{where}: {one!r:.60} has no text; a hypothesis is an object with text and scores")
    one = _without_numpy(one)
    if set(one) != {"text", *names}:
        differ = ", ".join(sorted(set(one) ^ {"text", *names}))
        raise UserError(f"{where}: with and without {differ}; all hypotheses must have the scores of the first")
    for name in names:
        value = one[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
            raise UserError(f"{where}: {name} is {value!r:.40}; a score is a finite number, a log probability in nats")
    return one["text"], [float(one[name]) for name in names]


def _without_numpy(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: to_float64(value) for name, value in row.items() if isinstance(value, np.floating)}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()} | numbers


def _utterance(name: str, hypotheses: Sequence[Hypothesis]) -> Utterance:
    texts, scores = zip(*hypotheses, strict=True)
    return Utterance(name, texts, np.array(scores, dtype=np.float64))


def _nemo_row(row: Any, where: str) -> dict[str, Any]:
    """Return a line with beams as a row for `_from_rows`, without lists, such as timestamps."""
    beams: Any = row.get("beams") if isinstance(row, dict) else None
    pairs = isinstance(beams, list) and all(isinstance(beam, list) and len(beam) == 2 for beam in beams)
    if not pairs or not isinstance(row.get("audio_filepath"), str):
        raise UserError(f"{where}: expected audio_filepath and beams, a list of [TEXT, SCORE], got {row!r:.60}")
    columns = {name: value for name, value in row.items() if isinstance(value, (str, int, float, type(None)))}
    reference = columns.pop("text", None)
    hypotheses = [{"text": text, NEMO_SCORE: score} for text, score in beams]
    return {**columns, "id": row["audio_filepath"], "hypotheses": hypotheses, "reference": reference}


def _kaldi(path: Path) -> NBest:
    texts = next(path / name for name in KALDI_TEXTS if (path / name).is_file())
    costs: dict[str, dict[str, float]] = {}
    for name, score in KALDI_COSTS.items():
        if (path / name).is_file():
            lines = ((where, (*line.split(maxsplit=1), "")) for where, line in _lines(path / name))
            costs[score] = {parts[0]: _number(parts[1], where, "UTTERANCE-NUMBER COST") for where, parts in lines}
    found: dict[str, list[Hypothesis]] = {}
    for where, line in _lines(texts):
        key, *rest = line.split(maxsplit=1)
        name, dash, number = key.rpartition("-")
        if not dash or not name or not number.isdecimal():
            raise UserError(f"{where}: {key!r} is not UTTERANCE-NUMBER, the name of a hypothesis")
        for score, known in costs.items():
            if key not in known:
                raise UserError(f"{where}: {key} has no {score} cost; every hypothesis must have one")
        found.setdefault(name, []).append((" ".join(rest), [-known[key] for known in costs.values()]))
    words = [word for hypotheses in found.values() for text, _ in hypotheses for word in text.split()]
    if words and all(word.isdecimal() for word in words):
        raise UserError(f"{texts}: numbers of words, not words; map them by words.txt into {path / KALDI_TEXTS[0]}")
    return NBest(tuple(costs), tuple(_utterance(name, hypotheses) for name, hypotheses in found.items()))


def _srilm(path: Path) -> NBest:
    files = [one for one in input_files.list_visible(path) if one.is_file()] if path.is_dir() else [path]
    utterances = []
    for file in files:
        name = file.name
        while suffix := next((one for one in SRILM_SUFFIXES if name.endswith(one)), ""):
            name = name.removesuffix(suffix)
        hypotheses = [_srilm_line(line, where) for where, line in _lines(file)]
        if not hypotheses:
            raise UserError(f"{file}: an empty list; an utterance needs at least one hypothesis")
        utterances.append(_utterance(name or file.name, hypotheses))
    return NBest(("acoustic", LM), tuple(utterances))


def _srilm_line(line: str, where: str) -> Hypothesis:
    parts = line.split()
    if len(parts) < 3:
        raise UserError(f"{where}: {line!r:.40} is not {SRILM_LINE}; lists are JSON lines, Kaldi's, NeMo's or SRILM's")
    acoustic, lm, _ = (_number(text, where, SRILM_LINE) for text in parts[:3])
    return " ".join(word for word in parts[3:] if word not in SILENT), [math.log(10) * acoustic, math.log(10) * lm]


def with_references(nbest: NBest, path: str | Path) -> NBest:
    """Return the lists with references from a file of lines `UTTERANCE word word ...`, which has every utterance."""
    said = {}
    for where, line in _lines(Path(path)):
        name, *rest = line.split(maxsplit=1)
        if name in said:
            raise UserError(f"{where}: {name} comes twice")
        said[name] = rest[0] if rest else ""
    for utterance in nbest.utterances:
        if utterance.id not in said:
            raise UserError(f"{path}: no reference of {utterance.id}; a line is UTTERANCE WORD ...")
    return replace(nbest, utterances=tuple(replace(one, reference=said[one.id]) for one in nbest.utterances))


def with_columns(nbest: NBest, path: str | Path) -> NBest:
    """Return the lists with the columns of a table whose first column is the utterance, and which has every one."""
    table = open_table(path)
    key, *others = table.columns
    known: dict[str, dict[str, Any]] = {}
    for chunk in table.chunks(table.columns):
        for name, *values in zip(*chunk.values(), strict=True):
            known[name if isinstance(name, str) else category_name(name)] = dict(zip(others, values, strict=True))
    for utterance in nbest.utterances:
        if utterance.id not in known:
            raise UserError(f"{path}: no row of {utterance.id}; its first column, {key}, names utterances")
    merged = (replace(one, columns={**one.columns, **known[one.id]}) for one in nbest.utterances)
    return replace(nbest, utterances=tuple(merged))
