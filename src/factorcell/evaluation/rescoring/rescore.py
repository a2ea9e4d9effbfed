"""Rescoring of n-best lists: a language model scores each hypothesis in the context of its utterance.

    total(h) = sum_k w_k score_k(h) + w_model log p(h | context) + w_words words(h)

All scores are in nats, score_k are those of the n-best list. log p(h | context) includes the spellings of
out-of-vocabulary words. Shapes: U utterances, H hypotheses of the longest list (shorter lists are padded), F scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from factorcell import bootstrap
from factorcell.data.columns.schema import EXPECTED_READING
from factorcell.data.columns.values import is_missing
from factorcell.errors import UserError, check_choice, nearest_hint
from factorcell.evaluation.perplexity import value_groups
from factorcell.evaluation.rescoring.nbest import LM, NBest
from factorcell.evaluation.text_figures import sum_per_text
from factorcell.io import files
from factorcell.io.findings import Finding, report
from factorcell.io.progress import progress_bar
from factorcell.ngram.ngram import NGram, spelling_nats
from factorcell.nn.scoring import check_lengths
from factorcell.options import limits
from factorcell.runs.run import Run

Floats = NDArray[np.float64]
Row = dict[str, Any]
Weights = Mapping[str, float]  # the weight of each score; a score without a weight has weight 0

MODEL, WORDS = "model", "words"  # names of two scores: the log probability by the model, and the number of words
RIDGE = 1e-3  # penalty on the scaled weights, which keeps them finite for perfectly separated lists
UTTERANCES_AT_ONCE = 500


def share_weights(names: Sequence[str], share: float = 0.5) -> Weights:
    """Return weights without fitting: `share` for the model, 1 - `share` for `lm`, 0 for words, 1 for others."""
    [share] = limits.check(share=share)
    weights = {name: 1 - share if name == LM else 1.0 for name in names}
    return {**weights, MODEL: share, WORDS: 0.0}


def read_weights(path: str | Path) -> Weights:
    """Read weights from a JSON file with an object from names to numbers."""
    weights = files.read_json(path)
    is_valid = isinstance(weights, dict) and all(
        isinstance(value, (int, float)) and np.isfinite(value) for value in weights.values()
    )
    if not is_valid:
        raise UserError(f"{path}: expected an object of names and finite numbers, got {weights!s:.60}")
    return {name: float(value) for name, value in weights.items()}


def _read_contexts(model: Run | NGram, nbest: NBest, shared: Mapping[str, Any], unknown: str) -> list[Row]:
    """Return the values of each utterance in the context columns of the model; those of `shared` have precedence.

    A finding, or an error if the lists have a similar name, is about columns that no utterance has.
    """
    columns = model.schema.columns()
    for name in shared:
        check_choice("context column", name, columns)
    rows = [{**utterance.columns, **shared} for utterance in nbest.utterances]
    contexts = [{name: row[name] for name in columns if name in row} for row in rows]
    absent = [name for name in columns if all(is_missing(context.get(name)) for context in contexts)]
    if absent and model.reads_context:
        other_columns = [name for name in nbest.columns if name not in columns]
        for name in absent if unknown != "expected" else ():
            if hint := nearest_hint(name, other_columns):
                raise UserError(f"n-best lists: no column {name!r}{hint}", (("unknown", "expected"),))
        report(Finding("missing values", f"n-best lists: no column {', '.join(absent)}; {EXPECTED_READING}"))
    checked = set()
    for utterance, context in zip(nbest.utterances, contexts, strict=True):
        if (key := repr(context)) not in checked:
            checked.add(key)
            try:
                model.read([""], [context], unknown=unknown)
            except UserError as error:
                message = f"utterance {utterance.id}: {error.message.removeprefix('context: ')}"
                raise error.with_message(message) from None
    return contexts


def score_hypotheses(
    model: Run | NGram, nbest: NBest, *, context: Mapping[str, Any] | None = None, unknown: str = "group"
) -> NBest:
    """Compute log p(hypothesis given context) of every hypothesis in the context of its utterance.

    Args:
        model: A run or an n-gram model.
        nbest: The n-best lists.
        context: Values of context columns for all utterances.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        The lists with two more scores: the log probabilities in nats (`model`), and the numbers of words (`words`).

    Raises:
        UserError: A context value is invalid, and the message names the utterance; or the lists lack a context column
            and have one with a similar name.
    """
    for name in (MODEL, WORDS):
        if name in nbest.score_names:
            raise UserError(f"score {name!r}: the name is reserved for rescoring; rename the score")
    contexts = _read_contexts(model, nbest, context or {}, unknown)
    scored_utterances = []
    with progress_bar(total=len(contexts), desc="scoring", unit="utterances") as bar:
        for begin in range(0, len(contexts), UTTERANCES_AT_ONCE):
            utterances = nbest.utterances[begin : begin + UTTERANCES_AT_ONCE]
            pairs = zip(utterances, contexts[begin:], strict=False)
            rows = [(f"utterance {utterance.id}", text, row) for utterance, row in pairs for text in utterance.texts]
            names, texts, text_contexts = zip(*rows, strict=True)
            corpus = model.read(texts, text_contexts, unknown=unknown, truncate=False)
            if isinstance(model, Run):
                check_lengths(corpus, model.model.max_tokens, names.__getitem__)
            log_probs = -sum_per_text(model.nats(corpus), corpus) - spelling_nats(corpus)
            ends = np.cumsum([len(utterance.texts) for utterance in utterances])
            for utterance, values in zip(utterances, np.split(log_probs, ends[:-1]), strict=True):
                word_counts = [float(len(text.split())) for text in utterance.texts]
                scores = np.column_stack([utterance.scores, values, word_counts])
                scored_utterances.append(replace(utterance, scores=scores))
            bar.update(len(utterances))
    return NBest((*nbest.score_names, MODEL, WORDS), tuple(scored_utterances))


def fit_weights(scored: NBest) -> tuple[Weights, float]:
    """Fit the weights that make the hypotheses with the fewest word errors most likely within their lists.

        maximize  1/U sum_u log p(best hypotheses of u) - RIDGE / 2 w . w,    p(h) ~ exp(w . x(h))

    x(h) (F,) are the scores of hypothesis h, scaled to unit standard deviation, and w (F,) are the weights. The
    objective is concave in w.

    Args:
        scored: The lists that `score_hypotheses` returns.

    Returns:
        The weights, and the negative log likelihood of these hypotheses in nats, averaged over lists.

    Raises:
        UserError: The lists have no references.
    """
    if not scored.has_references:
        raise UserError("n-best lists: weights cannot be fitted without references")
    features = pad_lists([utterance.scores for utterance in scored.utterances])
    errors = pad_lists([word_errors(utterance.reference or "", utterance.texts) for utterance in scored.utterances])
    list_lengths = np.array([len(utterance.texts) for utterance in scored.utterances])
    is_real = np.arange(features.shape[1]) < list_lengths[:, None]
    weights, log_prob = maximize_likelihood(features, is_real, errors)
    return dict(zip(scored.score_names, weights.tolist(), strict=True)), -log_prob


def pad_lists(lists: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stack U arrays (H_u, ...) as one array (U, H, ...); shorter ones are padded with copies of their first row."""
    longest = max(map(len, lists))
    return np.stack([np.concatenate([rows, np.repeat(rows[:1], longest - len(rows), axis=0)]) for rows in lists])


def deviations(features: Floats) -> Floats:
    """Return the standard deviation (F,) within lists of each of the features (U, H, F), or 1 for a constant one."""
    result: Floats = np.sqrt(features.var(axis=1).mean(axis=0))
    return np.where(result > 0, result, 1.0)


def maximize_likelihood(features: Floats, is_real: NDArray[np.bool_], errors: NDArray[Any]) -> tuple[Floats, float]:
    """Return the weights (F,) that make the best hypotheses of each list most likely, and their objective in nats.

    `features` (U, H, F), `errors` (U, H) in words; `is_real` (U, H) is false for padding. If several hypotheses of a
    list have the fewest errors, the mean of their log p is maximized, which is concave.
    """
    scales = deviations(features)
    scaled_features = features / scales
    fewest_errors = np.where(is_real, errors, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    is_best = (errors == fewest_errors) & is_real
    shares = is_best / is_best.sum(axis=1, keepdims=True)  # (U, H): equal for the best hypotheses of a list, else 0
    mean_features_of_best = np.einsum("uh,uhf->uf", shares, scaled_features)

    def loss(weights: Floats) -> tuple[float, Floats]:
        log_probs = log_softmax(np.where(is_real, scaled_features @ weights, -np.inf), axis=1)
        mean_features = np.einsum("uh,uhf->uf", np.exp(log_probs), scaled_features)
        gradient = RIDGE * weights - (mean_features_of_best - mean_features).mean(axis=0)
        log_likelihood = float((shares * np.where(is_best, log_probs, 0.0)).sum()) / len(scaled_features)
        return RIDGE / 2 * float(weights @ weights) - log_likelihood, gradient

    result = minimize(loss, np.zeros(scaled_features.shape[2]), jac=True, method="BFGS", options={"gtol": 1e-9})
    return result.x / scales, -float(result.fun)


def rescore(scored: NBest, weights: Weights) -> list[Row]:
    """Choose the hypothesis with the largest total for each utterance, and the first one in case of ties.

    Returns:
        A row per utterance with its `id`, the chosen `text`, the `place` of this text in the list (from 1), the `first`
        text of the list, and the `columns` of the utterance. With references, a row also has the `reference`, the
        number of its `words`, and three numbers of word errors: those of the chosen text (`errors`), of the first text
        (`errors_first`), and of the text with the fewest (`errors_oracle`).
    """
    rows: list[Row] = []
    for name in weights:
        check_choice("weight", name, scored.score_names)
    score_weights = np.array([weights.get(name, 0.0) for name in scored.score_names])
    for utterance in scored.utterances:
        index = int((utterance.scores @ score_weights).argmax())
        text = utterance.texts[index]
        row: Row = {"id": utterance.id, "text": text, "place": index + 1, "first": utterance.texts[0]}
        if utterance.reference is not None:
            errors = word_errors(utterance.reference, utterance.texts)
            row |= {"reference": utterance.reference, "words": len(utterance.reference.split())}
            row |= {"errors": int(errors[index]), "errors_first": int(errors[0]), "errors_oracle": int(errors.min())}
        rows.append({**row, "columns": dict(utterance.columns)})
    return rows


def word_error_rates(rows: Sequence[Row], by: Sequence[str] = ()) -> list[Row]:
    """Compute word error rates over all utterances, and over groups with the same value of a column.

    Args:
        rows: Rows of `rescore` for lists with references.
        by: The names of the columns.

    Returns:
        A row per group with `by` (the column), `value`, and the numbers of `utterances` and `words`. Word errors are
        divided by the number of words: of the first pass (`first`), after rescoring (`rescored`), and of the
        hypotheses with the fewest errors (`oracle`). `gain` is `first` minus `rescored`; its interval is None for fewer
        than 10 utterances.

    Raises:
        UserError: No utterance has a column of `by`, or the references have no words.
    """
    groups = {("all", "all"): list(rows)}
    for name in sorted(by):
        check_choice("column", name, dict.fromkeys(column for row in rows for column in row["columns"]))
        members: dict[tuple[str, str], list[Row]] = {}
        values = value_groups([row["columns"].get(name) for row in rows], has_ranges=False)
        for row, value in zip(rows, values, strict=True):
            members.setdefault((name, value), []).append(row)
        groups |= sorted(members.items(), key=lambda group: -len(group[1]))
    if not any(row["words"] for row in rows):
        raise UserError("the references have no words, so the word error rate is undefined")
    return [
        _compute_rates(column, value, members)
        for (column, value), members in groups.items()
        if any(row["words"] for row in members)
    ]


def _compute_rates(column: str, value: str, rows: Sequence[Row]) -> Row:
    counts = np.array([[row[name] for name in ("words", "errors_first", "errors", "errors_oracle")] for row in rows])
    sums = bootstrap.resampled_sums(counts.astype(np.float64))
    words, first, rescored, oracle = sums[0].tolist()  # over all utterances
    gains = (sums[:, 1] - sums[:, 2]) / np.maximum(sums[:, 0], 1)
    return {
        **{"by": column, "value": value, "utterances": len(rows), "words": int(words)},
        **{"first": first / words, "rescored": rescored / words, "oracle": oracle / words},
        **bootstrap.percentile_interval(gains, len(rows)).to_row("gain"),
    }


def word_errors(reference: str, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the Levenshtein distance over words of each of `texts` (H) from `reference`."""
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
