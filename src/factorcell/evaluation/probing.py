"""What the hidden state of a run knows of a column that it was never given (TACL 2018, section 4.3, figure 4).

A unit indicates a value as well as its AUC says: how often a text of that value has a higher state than another text.
It is chosen on one half of the texts and judged on the other, since the best of hundreds is partly so by chance. Texts
are read without context, so that no state contains the answer.

Shapes: B texts, T tokens of one, N states, H hidden units, K values.
"""

import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell import limits
from factorcell.config import UserError
from factorcell.data.cache import report_truncated
from factorcell.data.corpus import Batch, Corpus
from factorcell.data.rows import labels_of
from factorcell.data.tables import open_table
from factorcell.data.tokens import truncated
from factorcell.data.values import category_name, is_missing
from factorcell.evaluation.statistics import ranks
from factorcell.model.run import Run
from factorcell.progress import progress_bar

STATES = 1 << 18  # states of all tokens that are compared at most

Row = dict[str, Any]
Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


def labelled(run: Run, source: Any, target: str) -> tuple[list[str], list[str]]:
    """The texts of a table and their values in the column `target`; texts without a value are omitted.

    A `Notice` counts the texts that the other functions cut after `max_tokens` tokens.
    """
    table, texts, values = open_table(source), [], []
    for chunk in table.chunks([run.config.data.text, target]):
        for text, value in zip(chunk[run.config.data.text], chunk[target], strict=True):
            if not is_missing(value):
                texts.append(text)
                values.append(category_name(value))
    report_truncated(
        truncated(texts, run.tokenizer, run.config.data.max_tokens), table.name, run.config.data.max_tokens
    )
    return texts, values


def final_states(run: Run, texts: Sequence[str], *, progress: bool = False) -> Floats:
    """The hidden state (B, H) of the last layer after each text."""
    corpus = _read(run, texts)
    found = np.zeros((len(texts), run.model.backbone.size), dtype=np.float32)
    for batch, hidden in _hidden(run, corpus, progress):
        last = hidden[torch.arange(len(hidden), device=hidden.device), batch.lengths - 1]
        found[batch.rows.cpu().numpy()] = last.cpu().numpy()
    return found


def states(run: Run, texts: Sequence[str], *, progress: bool = False) -> list[Floats]:
    """The hidden states (T, H) of the last layer after each token of every text."""
    found: dict[int, Floats] = {}
    for batch, hidden in _hidden(run, _read(run, texts), progress):
        for row, length, own in zip(batch.rows.tolist(), batch.lengths.tolist(), hidden.cpu().numpy(), strict=True):
            found[row] = own[1:length].copy()  # the first is after the start token
    return [found[row] for row in range(len(texts))]


def _read(run: Run, texts: Sequence[str]) -> Corpus:
    if not texts:
        raise UserError("there is no text to read")
    return run.read(texts, [{}] * len(texts))


def _hidden(run: Run, corpus: Corpus, progress: bool) -> Iterator[tuple[Batch, Tensor]]:
    """Every batch of the corpus and its hidden states (B, T, H)."""
    with run.scoring(), progress_bar(total=len(corpus), desc="reading", unit="texts", show=progress) as bar:
        for batch in run.batches(corpus):
            yield batch, run.model.representations(batch, run.model.condition(batch.context))
            bar.update(len(batch.rows))


def along(run: Run, texts: Sequence[str], unit: int) -> list[Row]:
    """A row per text: `tokens`, and the `value` of a hidden unit after each, up to `max_tokens` tokens."""
    rows = []
    for text, own in zip(texts, states(run, texts), strict=True):
        written = run.tokenizer.split(text)[: len(own)]
        tokens = [{"token": token, "value": value} for token, value in zip(written, own[:, unit].tolist(), strict=True)]
        rows.append({"text": text, "unit": run.config.tokenizer.kind, "hidden_unit": unit, "tokens": tokens})
    return rows


def indicators(
    run: Run,
    texts: Sequence[str],
    values: Sequence[Any],
    *,
    every_token: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> list[Row]:
    """The hidden unit that best indicates each value: `value`, `hidden_unit`, `sign`, `auc`, `correlation`, `texts`.

    It is chosen on one half of the texts and judged on the other, by the states after whole texts, or after
    `every_token`. `sign` is -1 for a unit that is lower where the value is; `correlation` is the point-biserial one.
    """
    limits.check(seed=seed)
    values = _every(values, len(texts))
    names = _names(values, 2)
    labels = _labels(values, names)
    found: list[tuple[Floats, Ids]] = []
    for rows_of_half in halves(labels, seed):
        chosen, own = [texts[row] for row in rows_of_half], labels[rows_of_half]
        if every_token:
            fits = max(2, int(np.searchsorted(_read(run, chosen).lengths.cumsum(), STATES)))
            read = states(run, chosen[:fits], progress=progress)
            found.append((np.concatenate(read), np.repeat(own[:fits], [len(each) for each in read])))
        else:
            found.append((final_states(run, chosen, progress=progress), own))
    (first, of_first), (second, of_second) = found
    chosen_by, judged_by = aucs(first, of_first, len(names)), aucs(second, of_second, len(names))
    rows: list[Row] = []
    for index, name in enumerate(names):
        unit = int(np.abs(chosen_by[index] - 0.5).argmax())
        sign = 1 if chosen_by[index, unit] >= 0.5 else -1
        auc = judged_by[index, unit] if sign == 1 else 1 - judged_by[index, unit]
        correlation = _correlation(second[:, unit], of_second == index)
        count = int((labels == index).sum())
        row = {"value": name, "hidden_unit": unit, "sign": sign, "auc": float(auc), "correlation": correlation}
        rows.append({**row, "texts": count})
    return sorted(rows, key=lambda row: -row["auc"])


def halves(labels: Ids, seed: int) -> tuple[Ids, Ids]:
    """The rows of `labels` (B,) that are not negative, shuffled, in two halves with texts of every value in both."""
    random = np.random.default_rng(seed)
    order = random.permutation(np.flatnonzero(labels >= 0))
    order = order[np.argsort(labels[order], kind="stable")]  # by value, so that every other row is half of each
    return random.permutation(order[::2]), random.permutation(order[1::2])


def _labels(values: Sequence[str], names: Sequence[str]) -> Ids:
    """The place of each value among `names` (B,), -1 of others."""
    places = {name: index for index, name in enumerate(names)}
    return np.array([places.get(value, -1) for value in values])


def _every(values: Sequence[Any], count: int) -> list[str]:
    """Return the names of the values of `count` texts, none of which may lack one."""
    labels = labels_of(values, "values", count)
    if None in labels:
        raise UserError(f"values: expected one for each text, got a missing one for text {labels.index(None) + 1}")
    return [label for label in labels if label is not None]


def _names(values: Sequence[str], least: int) -> list[str]:
    """The values that at least so many texts have, two at least."""
    counts = dict(sorted(Counter(values).items()))
    names = [name for name, count in counts.items() if count >= least]
    if len(names) < 2:
        most = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1])[:5])
        raise UserError(f"fewer than two values have {least} texts or more ({most}): there is nothing to tell apart")
    return names


def aucs(states: Floats, labels: Ids, count: int) -> NDArray[np.float64]:
    """The AUC (K, H) of every unit of `states` (N, H) for each of the values 0 to `count` - 1; NaN of an empty one."""
    own = np.bincount(labels, minlength=count)
    found = np.empty((count, states.shape[1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        for unit, column in enumerate(states.T):
            sums = np.bincount(labels, weights=ranks(column), minlength=count)
            found[:, unit] = (sums - own * (own + 1) / 2) / (own * (len(labels) - own))
    return found


def _correlation(values: Floats, wanted: NDArray[np.bool_]) -> float | None:
    """The point-biserial correlation of `values` (N,) with being `wanted` (N,); None if `values` never vary."""
    if np.ptp(values) == 0:
        return None
    return float(np.corrcoef(values, wanted)[0, 1])


def few_examples(states: Floats, values: Sequence[Any], *, examples: int = 30, repeats: int = 10, seed: int = 0) -> Row:
    """Accuracy of logistic regression from `states` (B, H), given so many `examples` of each value, on all others.

    The mean over `repeats` draws of the examples, and its `deviation` between them. `UserError` without scikit-learn.
    """
    limits.check(examples=examples, repeats=repeats, seed=seed)
    if not examples:
        raise UserError("logistic regression learns from examples: 0 are none")
    try:
        library = importlib.import_module("sklearn.linear_model")
    except ImportError:
        raise UserError(
            "logistic regression needs scikit-learn; the extra brings it: pip install 'factorcell[analysis]'"
        ) from None
    values = _every(values, len(states))
    names = _names(values, examples + 1)
    labels = _labels(values, names)
    accuracies, tested = [], 0
    for repeat in range(repeats):
        order = np.random.default_rng((seed, repeat)).permutation(len(labels))
        places = [order[labels[order] == index] for index in range(len(names))]
        known = np.concatenate([place[:examples] for place in places])
        held = np.concatenate([place[examples:] for place in places])
        model = library.LogisticRegression(max_iter=2000).fit(states[known], labels[known])
        accuracies.append(float((model.predict(states[held]) == labels[held]).mean()))
        tested = len(held)
    frequent = max(int((labels == index).sum()) - examples for index in range(len(names)))
    return {
        "examples": examples,
        "values": names,
        "repeats": repeats,
        "accuracy": float(np.mean(accuracies)),
        "deviation": float(np.std(accuracies)),
        "chance": frequent / tested,
        "tested": tested,
    }
