"""Rescoring n-best lists: hypotheses scored by a model in the context of their utterance, and chosen anew.

    total(h) = sum_k w_k score_k(h) + w_model log p(h | context) + w_words words(h)

All scores are in nats; of hypotheses with the same total the first in the list is chosen, so that a model of weight
zero changes nothing. Weights come from a file, from a first pass of which the model takes a share, or from lists:

- with references, those with the fewest word errors (`mert.fewest_errors`), or those under which the best
  hypotheses are most likely;
- without any, all weights are 1 but that of the first pass's language model, 1 - s, and of the model, s: the share s
  under which the recogniser's own choices are most likely as texts of a mixture of the two. To make these choices most
  likely within their lists would teach nothing: without the model they are the best already.

Shapes: H hypotheses of an utterance, S scores, F = S + 2 features, k numbers of a person's vector.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap, files, limits
from factorcell.choices import OBJECTIVES
from factorcell.config import UserError, choose
from factorcell.data.corpus import Corpus
from factorcell.data.values import is_missing
from factorcell.evaluation.groups import value_groups
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.perplexity import text_tallies
from factorcell.evaluation.rescoring import mert
from factorcell.evaluation.rescoring.nbest import LM, MODEL, WORDS, NBest, Utterance
from factorcell.evaluation.rescoring.word_errors import align, distances
from factorcell.model.run import Run
from factorcell.progress import progress_bar

Floats = NDArray[np.float64]
Row = dict[str, Any]

AT_ONCE, CHARACTERS = 4_000, 4_000_000  # hypotheses that are read at once, and their characters
ROW = "the rows given row 1: "  # how a table in memory names its first row
ALL = ("all", "all")  # the group of all utterances: the name of a column, and its value
KINDS = ("substituted", "deleted", "inserted")


@dataclass(frozen=True)
class ScoreWeights:
    """The weight of every score, of the model and of a word, by name."""

    values: Mapping[str, float]

    @classmethod
    def shared(cls, names: Sequence[str], share: float = 0.5) -> "ScoreWeights":
        """All scores count alike, but the model takes a `share` of the weight of the first pass's language model."""
        limits.check(share=share)
        values = {name: 1 - share if name == LM else 1.0 for name in names}
        return cls({**values, MODEL: share, WORDS: 0.0})

    @classmethod
    def open(cls, path: str | Path) -> "ScoreWeights":
        """Those in a file that `save` wrote, or somebody: an object of names and numbers."""
        found = files.read_json(path)
        numbers = isinstance(found, dict) and all(
            isinstance(value, (int, float)) and np.isfinite(value) for value in found.values()
        )
        if not numbers:
            raise UserError(f"{path}: {found!s:.60} is not an object of names and finite numbers")
        return cls({name: float(value) for name, value in found.items()})

    def save(self, path: str | Path) -> None:
        """Keep them as JSON."""
        files.write_json(path, dict(self.values))

    def array(self, names: Sequence[str]) -> Floats:
        """The weights (F,) of the features `names`, 0 where none is given; `UserError` for a weight of no feature."""
        for name in self.values:
            choose("weight", name, names)
        return np.array([self.values.get(name, 0.0) for name in names])


@dataclass(frozen=True)
class Scored:
    """Lists with the model's log p of every hypothesis in nats, `model` (H,) for each utterance."""

    nbest: NBest
    model: tuple[Floats, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features (F)."""
        return (*self.nbest.names, MODEL, WORDS)

    def features(self) -> list[Floats]:
        """The features (H, F) of each utterance: scores, log p of the model, words."""
        pairs = zip(self.nbest.utterances, self.model, strict=True)
        return [features_of(utterance, model) for utterance, model in pairs]


def features_of(utterance: Utterance, model: Floats) -> Floats:
    """The features (H, F) of an utterance with log p of the `model` (H,)."""
    words = [float(len(text.split())) for text in utterance.texts]
    return np.column_stack([utterance.scores, model, words])


def contexts(model: Run | NGram, nbest: NBest, given: Mapping[str, Any]) -> list[Row]:
    """The context of each utterance as the model's columns: `given` for all, else its own; None where there is none."""
    columns = model.schema.columns()
    for name in given:
        choose("context column", name, columns)
    return [{name: given.get(name, one.columns.get(name)) for name in columns} for one in nbest.utterances]


def read(
    model: Run | NGram, utterances: Sequence[Utterance], rows: Sequence[Row], optional: tuple[str, ...], unknown: str
) -> Corpus:
    """The hypotheses of all utterances as one corpus, one after the other, each whole whatever its length."""
    text = model.config.data.text
    pairs = zip(utterances, rows, strict=True)
    lines = [{**row, text: hypothesis} for utterance, row in pairs for hypothesis in utterance.texts]
    return model.prepare(lines, unknown=unknown, optional=optional, truncate=False)


def checked(model: Run | NGram, nbest: NBest, rows: Sequence[Row], unknown: str) -> tuple[str, ...]:
    """The variables that no utterance has, which are expected; `UserError` that names the utterance for a bad value."""
    there = {name for row in rows for name, value in row.items() if not is_missing(value)}
    optional = tuple(variable.name for variable in model.schema.variables if variable.source not in there)
    seen = set()
    for utterance, row in zip(nbest.utterances, rows, strict=True):
        if (key := repr(row)) in seen:
            continue
        seen.add(key)
        try:
            read(model, [replace(utterance, texts=("",))], [row], optional, unknown)
        except UserError as error:
            raise error.saying(f"utterance {utterance.id}: {error.message.removeprefix(ROW)}") from None
    return optional


def score(
    model: Run | NGram,
    nbest: NBest,
    *,
    context: Mapping[str, Any] | None = None,
    unknown: str = "error",
    kept: str | Path | None = None,
    progress: bool = False,
) -> Scored:
    """The lists with log p of every hypothesis in the context of its utterance; `context` stands for all utterances.

    `unknown` says what of values never seen, as `Run.prepare`. The scores are kept in the file `kept` as they come,
    and those that are in it already are not computed again.
    """
    rows = contexts(model, nbest, context or {})
    optional = checked(model, nbest, rows, unknown)
    known = {} if kept is None else {row["key"]: row[MODEL] for row in files.read_rows(kept) if None not in row[MODEL]}
    keys = [_key(one, row, unknown) for one, row in zip(nbest.utterances, rows, strict=True)]
    found: list[Any] = [known.get(key) for key in keys]

    def compute(places: Sequence[int]) -> list[list[float]]:
        utterances = [nbest.utterances[place] for place in places]
        corpus = read(model, utterances, [rows[place] for place in places], optional, unknown)
        flat = [-tally.nats for tally in text_tallies(model, corpus)]
        ends = np.cumsum([len(one.texts) for one in utterances])
        return [part.tolist() for part in np.split(np.array(flat), ends[:-1])]

    missing = [place for place, values in enumerate(found) if values is None]
    done = next((place for place, values in enumerate(found) if values is not None), None)
    if done is not None and not np.allclose(compute([done])[0], found[done], rtol=1e-3, atol=0.05):
        raise UserError(f"{kept}: has scores of another model than {model.folder}; choose another file")
    with progress_bar(total=len(missing), desc="scoring", unit="utterances", show=progress) as bar:
        for places in parts(nbest, missing):
            for place, values in zip(places, compute(places), strict=True):
                found[place] = values
            if kept is not None:
                files.append_rows(kept, ({"key": keys[place], MODEL: found[place]} for place in places))
            bar.update(len(places))
    return Scored(nbest, tuple(np.array(values) for values in found))


def parts(nbest: NBest, places: Sequence[int]) -> Iterator[list[int]]:
    """Places of utterances, as many at a time as have `AT_ONCE` hypotheses of `CHARACTERS` characters in all."""
    part: list[int] = []
    size = length = 0
    for place in places:
        texts = nbest.utterances[place].texts
        count, characters = len(texts), sum(map(len, texts))
        if part and (size + count > AT_ONCE or length + characters > CHARACTERS):
            yield part
            part, size, length = [], 0, 0
        part.append(place)
        size, length = size + count, length + characters
    if part:
        yield part


def _key(utterance: Utterance, row: Row, unknown: str) -> str:
    content = json.dumps([utterance.id, utterance.texts, row, unknown], default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def chosen(scored: Scored, weights: ScoreWeights) -> list[int]:
    """The place of the hypothesis with the largest total in each list, the first among equals."""
    wanted = weights.array(scored.names)
    return [int((features @ wanted).argmax()) for features in scored.features()]


def fit(
    scored: Scored, objective: str = "errors", *, seed: int = 0, progress: bool = False
) -> tuple[ScoreWeights, dict[str, float]]:
    """Weights fitted to lists, and what they reach: `word_errors`, or `nats` of a list; the module says how.

    `objective` is errors or likelihood where there are references. `UserError` where there are none, nor scores of a
    first pass's language model to share with.
    """
    choose("objective", objective, OBJECTIVES)
    limits.check(seed=seed)
    nbest, names = scored.nbest, scored.names
    if not nbest.referenced:
        return _fit_share(scored)
    lists = scored.features()
    features = np.asarray(mert.padded(lists), dtype=np.float64)
    errors = [distances(one.reference or "", one.texts) for one in nbest.utterances]
    padded = np.asarray(mert.padded(errors), dtype=np.int64)
    real = np.arange(features.shape[1]) < np.array([len(one) for one in lists])[:, None]
    likely, nats = mert.likeliest(features, real, padded)
    if objective == "likelihood":
        return _named(names, likely), {"nats": -nats}
    starts = [likely, ScoreWeights.shared(nbest.names).array(names), ScoreWeights.shared(nbest.names, 0.0).array(names)]
    best, fewest = mert.fewest_errors(features, padded, starts, seed, progress)
    first = next((abs(weight) for weight in best if weight), 1.0)  # their scale changes nothing: 1 for the first score
    return _named(names, best / first), {"word_errors": fewest}


def _fit_share(scored: Scored) -> tuple[ScoreWeights, dict[str, float]]:
    """What lists without references tell: how the model and the first pass's share a weight."""
    nbest = scored.nbest
    if LM not in nbest.names:
        has = ", ".join(nbest.names) or "none"
        raise UserError(f"no references, and no score {LM!r} to share with (scores: {has}): weights cannot be fitted")
    column = nbest.names.index(LM)
    first = np.array([utterance.scores[0, column] for utterance in nbest.utterances])
    model = np.array([values[0] for values in scored.model])
    share = mert.share(first, model)
    return ScoreWeights.shared(nbest.names, share), {"share": share}


def _named(names: Sequence[str], weights: Floats) -> ScoreWeights:
    return ScoreWeights(dict(zip(names, weights.tolist(), strict=True)))


def rescore(scored: Scored, weights: ScoreWeights) -> list[Row]:
    """A row an utterance: its id, the chosen `text`, the `place` that had (1 the first), the `first` text, its columns.

    With a reference also its `words`, the `errors` of the chosen text, by kind too, of the first, and of the best there
    is, the oracle.
    """
    rows: list[Row] = []
    for utterance, place in zip(scored.nbest.utterances, chosen(scored, weights), strict=True):
        text = utterance.texts[place]
        row: Row = {"id": utterance.id, "text": text, "place": place + 1, "first": utterance.texts[0]}
        if utterance.reference is not None:
            errors = distances(utterance.reference, utterance.texts)
            kinds = [edit for edit, _, _ in align(utterance.reference, text)]
            row |= {"reference": utterance.reference, "words": len(utterance.reference.split())}
            row |= {"errors": int(errors[place]), **{kind: kinds.count(kind) for kind in KINDS}}
            row |= {"errors_first": int(errors[0]), "errors_oracle": int(errors.min())}
        rows.append({**row, "columns": dict(utterance.columns)})
    return rows


def summarise(rows: Sequence[Row], by: Sequence[str] = (), seed: int = 0) -> list[Row]:
    """Word error rates of rows of `rescore`: of all utterances, and for every value of the columns `by`.

    A row: by, value, utterances, words; `first`, `rescored`, `oracle` as shares of the words; the kinds of errors;
    `gain`, how much lower the rate is than that of the first pass, with an interval of 95 % over draws of utterances,
    `gain_low` and `gain_high`, None of few utterances.
    """
    groups: dict[tuple[str, str], list[Row]] = {ALL: list(rows)}
    for name in by:
        choose("column", name, dict.fromkeys(column for row in rows for column in row["columns"]))
        for row, group in zip(rows, value_groups([row["columns"].get(name) for row in rows]), strict=True):
            groups.setdefault((name, group), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != "all", item[0][0], -len(item[1])))
    return [_rates(key, members, seed) for key, members in ordered]


def _rates(key: tuple[str, str], rows: Sequence[Row], seed: int) -> Row:
    names = ("words", "errors_first", "errors", "errors_oracle")
    counts = np.array([[row[name] for name in names] for row in rows], dtype=np.float64)
    drawn = bootstrap.sums(counts, seed=seed)
    words, first, rescored, oracle = drawn[0]
    if not words:
        of = "" if key == ALL else f" of {key[0]} {key[1]!r}"
        raise UserError(f"the references{of} have no words: there is no word error rate")
    gains = (drawn[:, 1] - drawn[:, 2]) / np.maximum(drawn[:, 0], 1)
    return {
        **dict(zip(("by", "value"), key, strict=True)),
        **{"utterances": len(rows), "words": int(words)},
        **{"first": float(first / words), "rescored": float(rescored / words), "oracle": float(oracle / words)},
        **{kind: sum(row[kind] for row in rows) for kind in KINDS},
        **bootstrap.middle(gains, len(rows)).row("gain"),
    }


def by_depth(scored: Scored, weights: ScoreWeights) -> list[Row]:
    """Word error rates if lists were shorter: rows of `depth` 1, 2, 5, 10, ... with `rescored` and `oracle`."""
    wanted, features = weights.array(scored.names), scored.features()
    errors = [distances(one.reference or "", one.texts) for one in scored.nbest.utterances]
    words = sum(len((one.reference or "").split()) for one in scored.nbest.utterances)
    longest = max(len(one) for one in errors)
    depths = (step * 10**power for power in range(len(str(longest))) for step in (1, 2, 5))
    rows = []
    for depth in (*(depth for depth in depths if depth < longest), longest):
        pairs = list(zip(features, errors, strict=True))
        rescored = sum(int(one[(part[:depth] @ wanted).argmax()]) for part, one in pairs)
        oracle = sum(int(one[:depth].min()) for one in errors)
        rows.append({"depth": depth, "rescored": rescored / words, "oracle": oracle / words})
    return rows
