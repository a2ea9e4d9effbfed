"""Rescoring of n-best lists: each hypothesis is scored by a model in the context of its utterance.

    total(h) = sum_k w_k score_k(h) + w_model log p(h | context) + w_words words(h)

All scores are in nats. The hypothesis with the largest total is chosen, of equal ones the first, so that a model of
weight zero changes nothing. Weights come from a file, from a fit on lists with references, which makes the hypotheses
with the fewest word errors most likely, or from a share of the model in the first pass.

Word errors are Levenshtein distances over words, which are separated by white space and compared as written.

Shapes: H hypotheses of an utterance, S scores, F = S + 2 features, R words of a reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap, files, limits
from factorcell.config import UserError, choose
from factorcell.data.corpus import Corpus
from factorcell.data.values import is_missing
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.perplexity import text_tallies, value_groups
from factorcell.evaluation.rescoring import weighting
from factorcell.evaluation.rescoring.nbest import LM, MODEL, WORDS, NBest, Utterance
from factorcell.model.run import Run
from factorcell.progress import progress_bar

Floats = NDArray[np.float64]
Row = dict[str, Any]

AT_ONCE, CHARACTERS = 4_000, 4_000_000  # hypotheses that are read at once, and their characters
ROW = "in-memory table row 1: "  # begins errors about a table of one row in memory
ALL = ("all", "all")  # the group of all utterances: the name of a column, and its value


@dataclass(frozen=True)
class ScoreWeights:
    """The weights of the scores, of the model and of the number of words, by name."""

    values: Mapping[str, float]

    @classmethod
    def with_model_share(cls, names: Sequence[str], share: float = 0.5) -> "ScoreWeights":
        """Weigh all scores 1, but give the model a `share` of the weight of the first pass's language model."""
        limits.check(share=share)
        values = {name: 1 - share if name == LM else 1.0 for name in names}
        return cls({**values, MODEL: share, WORDS: 0.0})

    @classmethod
    def open(cls, path: str | Path) -> "ScoreWeights":
        values = files.read_json(path)
        valid = isinstance(values, dict) and all(
            isinstance(value, (int, float)) and np.isfinite(value) for value in values.values()
        )
        if not valid:
            raise UserError(f"{path}: {values!s:.60} is not an object of names and finite numbers")
        return cls({name: float(value) for name, value in values.items()})

    def save(self, path: str | Path) -> None:
        files.write_json(path, dict(self.values))

    def array(self, names: Sequence[str]) -> Floats:
        """Return the weights (F,) of the features `names`, 0 by default; `UserError` for a weight of no feature."""
        for name in self.values:
            choose("weight", name, names)
        return np.array([self.values.get(name, 0.0) for name in names])


@dataclass(frozen=True)
class ScoredNBest:
    """Lists with the log probability of every hypothesis in nats: `model` (H,) for each utterance."""

    nbest: NBest
    model: tuple[Floats, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.nbest.names, MODEL, WORDS)

    def features(self) -> list[Floats]:
        """Return the features (H, F) of each utterance: scores, log probability, number of words."""
        return [
            np.column_stack([one.scores, model, [float(len(text.split())) for text in one.texts]])
            for one, model in zip(self.nbest.utterances, self.model, strict=True)
        ]


def contexts(model: Run | NGram, nbest: NBest, given: Mapping[str, Any]) -> list[Row]:
    """Return the context of each utterance by the model's columns: `given` for all, else its own, else None."""
    columns = model.schema.columns()
    for name in given:
        choose("context column", name, columns)
    return [{name: given.get(name, one.columns.get(name)) for name in columns} for one in nbest.utterances]


def read(
    model: Run | NGram, utterances: Sequence[Utterance], rows: Sequence[Row], optional: tuple[str, ...], unknown: str
) -> Corpus:
    """Read the hypotheses of all utterances, uncut, as one corpus."""
    text = model.config.data.text
    pairs = zip(utterances, rows, strict=True)
    lines = [{**row, text: hypothesis} for utterance, row in pairs for hypothesis in utterance.texts]
    return model.prepare(lines, unknown=unknown, optional=optional, truncate=False)


def checked(model: Run | NGram, nbest: NBest, rows: Sequence[Row], unknown: str) -> tuple[str, ...]:
    """Return the variables that no utterance has; a `UserError` for a bad value names the utterance."""
    there = {name for row in rows for name, value in row.items() if not is_missing(value)}
    optional = tuple(variable.name for variable in model.schema.variables if variable.source_column not in there)
    seen = set()
    for utterance, row in zip(nbest.utterances, rows, strict=True):
        if (key := repr(row)) in seen:
            continue
        seen.add(key)
        try:
            read(model, [replace(utterance, texts=("",))], [row], optional, unknown)
        except UserError as error:
            raise error.with_message(f"utterance {utterance.id}: {error.message.removeprefix(ROW)}") from None
    return optional


def score_hypotheses(
    model: Run | NGram,
    nbest: NBest,
    *,
    context: Mapping[str, Any] | None = None,
    unknown: str = "error",
    progress: bool = False,
) -> ScoredNBest:
    """Score every hypothesis in the context of its utterance; `context` has values for all utterances.

    `unknown` says how to read values that training never saw, as in `Run.prepare`. `UserError` if a value is not valid.
    """
    rows = contexts(model, nbest, context or {})
    optional = checked(model, nbest, rows, unknown)
    scores: list[Floats] = []
    with progress_bar(total=len(rows), desc="scoring", unit="utterances", show=progress) as bar:
        for part in parts(nbest):
            utterances = nbest.utterances[part]
            corpus = read(model, utterances, rows[part], optional, unknown)
            flat = np.array([-tally.nats for tally in text_tallies(model, corpus)])
            scores += np.split(flat, np.cumsum([len(one.texts) for one in utterances])[:-1])
            bar.update(len(utterances))
    return ScoredNBest(nbest, tuple(scores))


def parts(nbest: NBest) -> Iterator[slice]:
    """Yield slices of utterances that have at most `AT_ONCE` hypotheses of `CHARACTERS` characters together."""
    begin = size = length = 0
    for place, utterance in enumerate(nbest.utterances):
        count, characters = len(utterance.texts), sum(map(len, utterance.texts))
        if place > begin and (size + count > AT_ONCE or length + characters > CHARACTERS):
            yield slice(begin, place)
            begin, size, length = place, 0, 0
        size, length = size + count, length + characters
    yield slice(begin, len(nbest.utterances))


def chosen(scored: ScoredNBest, weights: ScoreWeights) -> list[int]:
    wanted = weights.array(scored.names)
    return [int((features @ wanted).argmax()) for features in scored.features()]


def fit_weights(scored: ScoredNBest) -> tuple[ScoreWeights, float]:
    """Return the weights under which the hypotheses with the fewest word errors are most likely, and their nats a list.

    `UserError` if the lists have no references.
    """
    nbest = scored.nbest
    if not nbest.referenced:
        raise UserError("the lists have no references: weights cannot be fitted")
    lists = scored.features()
    features = np.asarray(weighting.padded(lists), dtype=np.float64)
    errors = [word_errors(one.reference or "", one.texts) for one in nbest.utterances]
    padded = np.asarray(weighting.padded(errors), dtype=np.int64)
    real = np.arange(features.shape[1]) < np.array([len(one) for one in lists])[:, None]
    weights, nats = weighting.likeliest(features, real, padded)
    return ScoreWeights(dict(zip(scored.names, weights.tolist(), strict=True))), -nats


def rescore(scored: ScoredNBest, weights: ScoreWeights) -> list[Row]:
    """Choose a hypothesis for each utterance; return a row with `id`, `text`, `place` (from 1), `first`, `columns`.

    With a reference the row has its `words`, the `errors` of the chosen text, and `errors_first` and `errors_oracle`,
    those of the first and of the best text.
    """
    rows: list[Row] = []
    for utterance, place in zip(scored.nbest.utterances, chosen(scored, weights), strict=True):
        text = utterance.texts[place]
        row: Row = {"id": utterance.id, "text": text, "place": place + 1, "first": utterance.texts[0]}
        if utterance.reference is not None:
            errors = word_errors(utterance.reference, utterance.texts)
            row |= {"reference": utterance.reference, "words": len(utterance.reference.split())}
            row |= {"errors": int(errors[place]), "errors_first": int(errors[0]), "errors_oracle": int(errors.min())}
        rows.append({**row, "columns": dict(utterance.columns)})
    return rows


def word_error_rates(rows: Sequence[Row], by: Sequence[str] = (), seed: int = 0) -> list[Row]:
    """Compute the word error rates of rows of `rescore` with references: of all, and by values of the columns `by`.

    A row has `by`, `value`, `utterances` and `words`; the rates `first`, `rescored` and `oracle` as shares of the
    words; and `gain`, the reduction of the rate, with its interval over draws of utterances by `seed` (None for few).
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
    drawn = bootstrap.resampled_sums(counts, seed=seed)
    words, first, rescored, oracle = drawn[0]
    if not words:
        of = "" if key == ALL else f" of {key[0]} {key[1]!r}"
        raise UserError(f"the references{of} have no words: there is no word error rate")
    gains = (drawn[:, 1] - drawn[:, 2]) / np.maximum(drawn[:, 0], 1)
    return {
        **dict(zip(("by", "value"), key, strict=True)),
        **{"utterances": len(rows), "words": int(words)},
        **{"first": float(first / words), "rescored": float(rescored / words), "oracle": float(oracle / words)},
        **bootstrap.percentile_interval(gains, len(rows)).to_row("gain"),
    }


def word_errors(reference: str, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the word errors (H,) of texts: the fewest words to substitute, delete and insert."""
    said, read = reference.split(), [text.split() for text in texts]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(said))}
    target = np.array([numbers[word] for word in said], dtype=np.int64)
    lengths = np.array([len(words) for words in read])
    tokens = np.full((len(read), max(lengths, default=0)), -1)
    for row, words in enumerate(read):
        tokens[row, : len(words)] = [numbers.get(word, -1) for word in words]
    places = np.arange(len(said) + 1)
    costs = np.tile(places, (len(read), 1))  # of the words read so far, for each prefix of the reference
    for step in range(tokens.shape[1]):
        after = costs + 1  # an inserted word
        after[:, 1:] = np.minimum(after[:, 1:], costs[:, :-1] + (tokens[:, step, None] != target))
        after = np.minimum.accumulate(after - places, axis=1) + places  # deleted words
        costs = np.where((step < lengths)[:, None], after, costs)
    return costs[:, -1].astype(np.int64)
