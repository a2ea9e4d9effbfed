"""Rescoring of n-best lists: a language model scores each hypothesis in the context of its utterance.

    total(h) = sum_k w_k score_k(h) + w_model log p(h | context) + w_words words(h)

score_k are the scores of the n-best list, words(h) is the number of words of hypothesis h, and w are weights. All
scores are in nats. The hypothesis with the largest total is chosen, and the first one in case of ties. Weights are read
from a file, set by `ScoreWeights.with_model_share`, or fitted on lists with references. Fitted weights make the
hypotheses with the fewest word errors most likely.

log p(h | context) includes the spellings of out-of-vocabulary words (`model.spelling`). Otherwise, a hypothesis with
such a word could win because p(<unk>) is the probability of all of them together.

The word errors of a hypothesis are its Levenshtein distance over words to the reference. Words are separated by white
space and compared literally.

Shapes: H hypotheses of an utterance, S scores, F = S + 2 features, R words of a reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.data.columns.schema import EXPECTED_READING
from factorcell.data.columns.values import is_missing
from factorcell.data.corpus import Corpus
from factorcell.data.table_findings import CONTEXTS
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError, check_choice, nearest_hint
from factorcell.evaluation.perplexity import reads_context, value_groups
from factorcell.evaluation.rescoring import weighting
from factorcell.evaluation.rescoring.nbest import LM, MODEL, WORDS, NBest, Utterance
from factorcell.evaluation.text_figures import sum_per_text
from factorcell.io import files
from factorcell.io.findings import Finding, report
from factorcell.io.progress import progress_bar
from factorcell.ngram.ngram import NGram
from factorcell.ngram.spelling import spelling_nats
from factorcell.nn.scoring import check_lengths
from factorcell.options import limits
from factorcell.runs.run import Run

Floats = NDArray[np.float64]
Row = dict[str, Any]

MAX_HYPOTHESES, MAX_CHARACTERS = 4_000, 4_000_000  # per batch of utterances
ROW_PREFIX = f"{CONTEXTS} row 1: "  # prefix of error messages about a table of one row in memory
ALL = ("all", "all")  # `by` and `value` of the group of all utterances


@dataclass(frozen=True)
class ScoreWeights:
    """The weight of each score, of the rescoring model (`model`) and of the number of words (`words`)."""

    values: Mapping[str, float]

    @classmethod
    def with_model_share(cls, names: Sequence[str], share: float = 0.5) -> "ScoreWeights":
        """Return weights for the scores `names` without fitting.

        The rescoring model has the weight `share`, the first-pass language model (`lm`) 1 - `share`, other scores 1,
        and the number of words 0.
        """
        [share] = limits.check(share=share)
        weights = {name: 1 - share if name == LM else 1.0 for name in names}
        return cls({**weights, MODEL: share, WORDS: 0.0})

    @classmethod
    def open(cls, path: str | Path) -> "ScoreWeights":
        """Read weights from a JSON file with an object from names to numbers."""
        weights = files.read_json(path)
        is_valid = isinstance(weights, dict) and all(
            isinstance(value, (int, float)) and np.isfinite(value) for value in weights.values()
        )
        if not is_valid:
            raise UserError(f"{path}: expected an object of names and finite numbers, got {weights!s:.60}")
        return cls({name: float(value) for name, value in weights.items()})

    def save(self, path: str | Path) -> None:
        files.write_json(path, dict(self.values))

    def array(self, names: Sequence[str]) -> Floats:
        """Return the weights (F,) of the features `names`; a feature without a weight has weight 0.

        Raises a `UserError` if a weight belongs to none of the features.
        """
        for name in self.values:
            check_choice("weight", name, names)
        return np.array([self.values.get(name, 0.0) for name in names])


@dataclass(frozen=True)
class ScoredNBest:
    """N-best lists with log probabilities.

    Attributes:
        nbest: The lists.
        log_probs: For each utterance, the log probabilities (H,) of its hypotheses in nats.
    """

    nbest: NBest
    log_probs: tuple[Floats, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features (F)."""
        return (*self.nbest.score_names, MODEL, WORDS)

    def features(self) -> list[Floats]:
        """Return for each utterance the features (H, F) of its hypotheses: scores, log probability, number of words."""
        return [
            np.column_stack([utterance.scores, log_probs, [float(len(text.split())) for text in utterance.texts]])
            for utterance, log_probs in zip(self.nbest.utterances, self.log_probs, strict=True)
        ]


def _utterance_contexts(model: Run | NGram, nbest: NBest, shared: Mapping[str, Any]) -> list[Row]:
    """Return the context of each utterance: a value for each context column of the model.

    The value comes from `shared` or, if that lacks the column, from the utterance; otherwise it is None.
    """
    columns = model.schema.columns()
    for name in shared:
        check_choice("context column", name, columns)
    return [{name: shared.get(name, utterance.columns.get(name)) for name in columns} for utterance in nbest.utterances]


def _read_hypotheses(
    model: Run | NGram,
    utterances: Sequence[Utterance],
    contexts: Sequence[Row],
    optional: tuple[str, ...],
    unknown: str,
) -> Corpus:
    """Return the hypotheses of all `utterances`, without truncation, as one corpus.

    The contexts may lack the columns of the variables `optional`.
    """
    text_column = model.config.data.text
    pairs = zip(utterances, contexts, strict=True)
    rows = [{**context, text_column: hypothesis} for utterance, context in pairs for hypothesis in utterance.texts]
    table = replace(open_table(rows), name=CONTEXTS)
    return model.prepare(table, unknown=unknown, optional=optional, truncate=False)


def _absent_variables(model: Run | NGram, nbest: NBest, contexts: Sequence[Row], unknown: str) -> tuple[str, ...]:
    """Return the names of the variables whose column has no value in any context.

    A finding names columns without values. If the lists have a column with a similar name instead, this raises a
    `UserError`, unless the policy `unknown` is "expected".
    """
    columns = model.schema.columns()
    absent = [name for name in columns if all(is_missing(context[name]) for context in contexts)]
    if reads_context(model):
        other_columns = [name for name in nbest.columns if name not in columns]
        for name in absent if unknown != "expected" else ():
            if hint := nearest_hint(name, other_columns):
                raise UserError(f"n-best lists: no column {name!r}{hint}", (("unknown", "expected"),))
        if absent:
            report(Finding("missing values", f"n-best lists: no column {', '.join(absent)}; {EXPECTED_READING}"))
    return tuple(variable.name for variable in model.schema.variables if variable.source_column in absent)


def _check_contexts(
    model: Run | NGram, nbest: NBest, contexts: Sequence[Row], optional: tuple[str, ...], unknown: str
) -> None:
    """Raise a `UserError` if a context has an invalid value; the message names the utterance."""
    checked = set()
    for utterance, context in zip(nbest.utterances, contexts, strict=True):
        if (key := repr(context)) in checked:
            continue
        checked.add(key)
        try:
            _read_hypotheses(model, [replace(utterance, texts=("",))], [context], optional, unknown)
        except UserError as error:
            raise error.with_message(f"utterance {utterance.id}: {error.message.removeprefix(ROW_PREFIX)}") from None


def score_hypotheses(
    model: Run | NGram,
    nbest: NBest,
    *,
    context: Mapping[str, Any] | None = None,
    unknown: str = "group",
) -> ScoredNBest:
    """Compute log p(hypothesis given context) of every hypothesis in the context of its utterance.

    Args:
        model: A run or an n-gram model.
        nbest: The n-best lists.
        context: Values of context columns for all utterances.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        The lists with the log probabilities in nats.

    Raises:
        UserError: A context value is invalid, and the message names the utterance; or the lists lack a context column
            and have one with a similar name.
    """
    contexts = _utterance_contexts(model, nbest, context or {})
    optional = _absent_variables(model, nbest, contexts, unknown)
    _check_contexts(model, nbest, contexts, optional, unknown)
    log_probs = list[Floats]()
    with progress_bar(total=len(contexts), desc="scoring", unit="utterances") as bar:
        for batch in batches(nbest):
            utterances = nbest.utterances[batch]
            corpus = _read_hypotheses(model, utterances, contexts[batch], optional, unknown)
            if isinstance(model, Run):
                names = [f"utterance {utterance.id}" for utterance in utterances for _ in utterance.texts]
                check_lengths(corpus, model.model.max_tokens, names.__getitem__)
            batch_log_probs = -sum_per_text(model.nats(corpus), corpus) - spelling_nats(corpus)
            ends = np.cumsum([len(utterance.texts) for utterance in utterances])
            log_probs += np.split(batch_log_probs, ends[:-1])
            bar.update(len(utterances))
    return ScoredNBest(nbest, tuple(log_probs))


def batches(nbest: NBest) -> Iterator[slice]:
    """Yield slices of utterances with at most `MAX_HYPOTHESES` hypotheses and `MAX_CHARACTERS` characters together.

    A slice of a single utterance may exceed these limits.
    """
    begin = hypothesis_count = character_count = 0
    for index, utterance in enumerate(nbest.utterances):
        characters_of_utterance = sum(map(len, utterance.texts))
        hypothesis_count += len(utterance.texts)
        character_count += characters_of_utterance
        exceeds_limit = hypothesis_count > MAX_HYPOTHESES or character_count > MAX_CHARACTERS
        if index > begin and exceeds_limit:
            yield slice(begin, index)
            begin, hypothesis_count, character_count = index, len(utterance.texts), characters_of_utterance
    yield slice(begin, len(nbest.utterances))


def choose_hypotheses(scored: ScoredNBest, weights: ScoreWeights) -> list[int]:
    """Return the index of the hypothesis with the largest total for each utterance."""
    feature_weights = weights.array(scored.feature_names)
    return [int((features @ feature_weights).argmax()) for features in scored.features()]


def fit_weights(scored: ScoredNBest) -> tuple[ScoreWeights, float]:
    """Fit the weights that make the hypotheses with the fewest word errors most likely within their lists.

    Returns:
        The weights, and the negative log likelihood of these hypotheses in nats, averaged over lists.

    Raises:
        UserError: The lists have no references.
    """
    nbest = scored.nbest
    if not nbest.has_references:
        raise UserError("n-best lists: weights cannot be fitted without references")
    features_by_list = scored.features()
    features = np.asarray(weighting.pad_lists(features_by_list), dtype=np.float64)
    errors_by_list = [word_errors(utterance.reference or "", utterance.texts) for utterance in nbest.utterances]
    padded_errors = np.asarray(weighting.pad_lists(errors_by_list), dtype=np.int64)
    list_lengths = np.array([len(list_features) for list_features in features_by_list])
    is_real = np.arange(features.shape[1]) < list_lengths[:, None]
    weights, log_prob = weighting.maximize_likelihood(features, is_real, padded_errors)
    return ScoreWeights(dict(zip(scored.feature_names, weights.tolist(), strict=True))), -log_prob


def rescore(scored: ScoredNBest, weights: ScoreWeights) -> list[Row]:
    """Choose the hypothesis with the largest total for each utterance.

    Returns:
        A row per utterance with its `id`, the chosen `text`, the `place` of this text in the list (from 1), the `first`
        text of the list, and the `columns` of the utterance. With references, a row also has the `reference`, the
        number of its `words`, and three numbers of word errors: those of the chosen text (`errors`), of the first text
        (`errors_first`), and of the text with the fewest (`errors_oracle`).
    """
    rows: list[Row] = []
    for utterance, index in zip(scored.nbest.utterances, choose_hypotheses(scored, weights), strict=True):
        text = utterance.texts[index]
        row: Row = {"id": utterance.id, "text": text, "place": index + 1, "first": utterance.texts[0]}
        if utterance.reference is not None:
            errors = word_errors(utterance.reference, utterance.texts)
            row |= {"reference": utterance.reference, "words": len(utterance.reference.split())}
            row |= {"errors": int(errors[index]), "errors_first": int(errors[0]), "errors_oracle": int(errors.min())}
        rows.append({**row, "columns": dict(utterance.columns)})
    return rows


def word_error_rates(rows: Sequence[Row], by: Sequence[str] = (), seed: int = 0) -> list[Row]:
    """Compute word error rates over all utterances, and over groups with the same value of a column.

    Args:
        rows: Rows of `rescore` for lists with references.
        by: The names of the columns.
        seed: The seed of the bootstrap over utterances.

    Returns:
        A row per group with `by` (the column), `value`, and the numbers of `utterances` and `words`. Word errors are
        divided by the number of words: of the first pass (`first`), after rescoring (`rescored`), and of the
        hypotheses with the fewest errors (`oracle`). `gain` is `first` minus `rescored`; its interval is None for fewer
        than 10 utterances.

    Raises:
        UserError: No utterance has a column of `by`, or the references of a group have no words.
    """
    groups: dict[tuple[str, str], list[Row]] = {ALL: list(rows)}
    for name in by:
        check_choice("column", name, dict.fromkeys(column for row in rows for column in row["columns"]))
        group_names = value_groups([row["columns"].get(name) for row in rows])
        for row, group_name in zip(rows, group_names, strict=True):
            groups.setdefault((name, group_name), []).append(row)

    def sort_key(group: tuple[str, str]) -> tuple[bool, str, int]:
        column, _ = group
        return column != "all", column, -len(groups[group])  # all utterances first, then large groups of each column

    return [_compute_rates(group, groups[group], seed) for group in sorted(groups, key=sort_key)]


def _compute_rates(group: tuple[str, str], rows: Sequence[Row], seed: int) -> Row:
    """Return the row of `word_error_rates` for the group, a pair of a column and a value, with these `rows`."""
    names = ("words", "errors_first", "errors", "errors_oracle")
    counts_of_utterances = np.array([[row[name] for name in names] for row in rows], dtype=np.float64)
    sums = bootstrap.resampled_sums(counts_of_utterances, seed=seed)
    words, first, rescored, oracle = sums[0]  # over all utterances
    column, value = group
    if not words:
        group_description = "" if group == ALL else f" of {column} {value!r}"
        raise UserError(f"the references{group_description} have no words, so the word error rate is undefined")
    resampled_words, resampled_first, resampled_rescored, _ = sums.T
    gains = (resampled_first - resampled_rescored) / np.maximum(resampled_words, 1)
    return {
        **{"by": column, "value": value, "utterances": len(rows), "words": int(words)},
        **{"first": float(first / words), "rescored": float(rescored / words), "oracle": float(oracle / words)},
        **bootstrap.percentile_interval(gains, len(rows)).to_row("gain"),
    }


def word_errors(reference: str, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return for each of `texts` (H) the fewest insertions, deletions and substitutions of words from `reference`."""
    reference_words, hypotheses = reference.split(), [text.split() for text in texts]
    id_by_word = {word: word_id for word_id, word in enumerate(dict.fromkeys(reference_words))}
    reference_ids = np.array([id_by_word[word] for word in reference_words], dtype=np.int64)
    lengths = np.array([len(words) for words in hypotheses])
    word_ids = np.full((len(hypotheses), max(lengths, default=0)), -1)  # -1 for words that the reference lacks
    for index, words in enumerate(hypotheses):
        word_ids[index, : len(words)] = [id_by_word.get(word, -1) for word in words]
    positions = np.arange(len(reference_words) + 1)
    # costs[h, r] (H, R + 1): word errors of the part of hypothesis h read so far against the first r reference words.
    costs = np.tile(positions, (len(hypotheses), 1))
    for step in range(word_ids.shape[1]):
        next_costs = costs + 1  # insertions
        substitution_costs = costs[:, :-1] + (word_ids[:, step, None] != reference_ids)
        next_costs[:, 1:] = np.minimum(next_costs[:, 1:], substitution_costs)
        next_costs = np.minimum.accumulate(next_costs - positions, axis=1) + positions  # deletions
        costs = np.where((step < lengths)[:, None], next_costs, costs)
    return costs[:, -1].astype(np.int64)
