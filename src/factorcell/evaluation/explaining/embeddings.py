"""Inspection of the learned embeddings of a context variable: neighbours and tokens.

    shift(w) = log p(w | h = 0, c) - log p(w | h = 0, c')

is the change of the log probability of token w from context c' (by default the expected context) to context c, for a
hidden state h of zero. For this h, only the softmax bias depends on the context: the low-rank bias Q c of TACL 2018
(table 5) and all other adapted biases.

Shapes: N values, M selected values, k embedding, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.adapters.adapters import weight_adapters
from factorcell.config import LOW_RANK_BIASES
from factorcell.data.columns.values import category_name
from factorcell.errors import UserError, check_choice, nearest_hint
from factorcell.options import limits
from factorcell.options.choices import EMBEDDING_MEASURES
from factorcell.runs.run import Run

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Embeddings:
    """The embeddings `vectors` (N, k) of the `values` of one variable, most frequent first, without the unknown value.

    `counts` (N,) are the numbers of training texts with each value, and `source` is the column that the variable reads.
    If the values are users (`are_users`), error messages do not suggest similar values.
    """

    variable: str
    source: str
    values: tuple[str, ...]
    counts: NDArray[np.int64]
    vectors: Floats
    are_users: bool = False

    @classmethod
    def from_run(cls, run: Run, variable: str = "", values: Sequence[str] = ()) -> "Embeddings":
        """Return the embeddings that a run has learned for a categorical `variable`.

        By default, the variable is the one that has the most of `values`; in case of a tie, the one with the most
        values in total.

        Raises:
            UserError: The run has no embeddings of categories, or all values of the variable are rare.
        """
        if run.model.encoder is None or not _has_embeddings(run):
            raise UserError(f"{run.folder}: the run has no embeddings of contexts, because {_missing_reason(run)}")
        categories = run.schema.categories
        if not categories:
            kinds = ", ".join(f"{candidate.name} ({candidate.kind})" for candidate in run.schema.variables)
            raise UserError(f"{run.folder}: expected a categorical context variable, got {kinds}")
        if variable:
            check_choice("categorical context", variable, [candidate.name for candidate in categories])
        value_names = set(map(category_name, values))
        chosen_variable = max(
            (candidate for candidate in categories if variable in ("", candidate.name)),
            key=lambda candidate: (len(value_names & set(candidate.values[1:])), len(candidate.values)),
        )
        if chosen_variable.is_all_rare:
            others = ", ".join(candidate.name for candidate in categories if not candidate.is_all_rare)
            remedy = f"choose another variable: {others}" if others else "train with a lower --min-context-count"
            problem = f"all values of {chosen_variable.name} are rare in training and share one embedding"
            raise UserError(f"{run.folder}: {problem}; {remedy}")
        table = run.model.encoder.tables[categories.index(chosen_variable)].detach().double().cpu().numpy()
        return cls(  # without the first value, which is the unknown value
            variable=chosen_variable.name,
            source=chosen_variable.source_column,
            values=chosen_variable.values[1:],
            counts=np.array(chosen_variable.counts[1:], dtype=np.int64),
            vectors=table[1:],
            are_users=chosen_variable.source_column == run.config.data.user,
        )

    def row(self, value: object) -> int:
        """Return the row of a value in `vectors`.

        Raises a `UserError` for an unknown value; its message suggests a similar value unless the values are users.
        """
        name = category_name(value)
        if name in self.values:
            return self.values.index(name)
        hint = "" if self.are_users else nearest_hint(name, self.values)
        raise UserError(
            f"{self.variable} {name!r} was never seen in training or is a rare value{hint}; "
            f"the run has {len(self.values):,} values"
        )

    def neighbours(self, values: Sequence[object], count: int = 10, measure: str = "cosine") -> list[Row]:
        """Return a row for each of the `count` nearest values of each of `values`.

        A row has `value`, the nearby value (`near`), the numbers of training texts of the value (`value_count`) and of
        the nearby value (`count`), and `cosine` or `distance`, depending on `measure`.
        """
        check_choice("measure", measure, EMBEDDING_MEASURES)
        [count] = limits.check(count=count)
        indices = [self.row(value) for value in values]
        similarities_of_values = similarities(self.vectors[np.array(indices, dtype=np.int64)], self.vectors, measure)
        results: list[Row] = []
        for index, similarities_of_value in zip(indices, similarities_of_values, strict=True):
            by_similarity = np.argsort(-similarities_of_value, kind="stable").tolist()
            for other in [other for other in by_similarity if other != index][:count]:
                counts = {"value_count": int(self.counts[index]), "count": int(self.counts[other])}
                row = {"value": self.values[index], "near": self.values[other], **counts}
                similarity = float(similarities_of_value[other])  # the cosine, or minus the distance
                results.append({**row, measure: similarity if measure == "cosine" else -similarity})
        return results


def _has_embeddings(run: Run) -> bool:
    """Return whether an adapter or a low-rank softmax bias of a run reads the embeddings of values.

    Other softmax biases learn a coefficient for each value and token instead.
    """
    config = run.config.model
    return bool(weight_adapters(config) or set(config.output_bias) & set(LOW_RANK_BIASES))


def _missing_reason(run: Run) -> str:
    """Return why a run has no embeddings of contexts."""
    if run.model.prefix is not None:
        return "the context is read as a prefix"
    return "only the bias of each value is adapted" if run.model.encoder is not None else "the run is not adapted"


def similarities(first: Floats, second: Floats, measure: str) -> Floats:
    """Return the similarities (M, N) of the vectors `first` (M, k) and `second` (N, k); larger is more similar.

    A similarity is the cosine, or minus the Euclidean distance if `measure` is "distance".
    """
    if measure == "cosine":
        first, second = (
            vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) for vectors in (first, second)
        )
        cosines: Floats = first @ second.T
        return cosines
    squared_distances: Floats = (first**2).sum(1)[:, None] - 2 * first @ second.T + (second**2).sum(1)
    return -np.sqrt(np.maximum(squared_distances, 0.0))


def bias_shift(
    run: Run, context: Mapping[str, Any], against: Mapping[str, Any] | None = None, *, unknown: str = "error"
) -> Floats:
    """Return how much the softmax bias of `context` raises the log probability of each token, in nats (V,).

    The module header defines this shift. `against` is the context to compare with. A column that a context lacks has
    the expected value. The shift of a token of probability 0 is 0.
    """
    head = run.model.head
    if not run.model.is_adapted or not run.config.model.output_bias:
        raise UserError(f"{run.folder}: the context does not change the softmax bias; train with --output-bias")
    log_probs = []
    with run.scoring():
        for values_by_column in (context, against or {}):
            corpus = run.read([""], [values_by_column], unknown=unknown)
            head_conditions = run.model.condition(run.batch(corpus, np.array([0])).context).head
            zero_state = run.model.embedding.new_zeros(1, run.model.backbone.size)
            (token_log_probs,) = head.log_probabilities(zero_state, head_conditions)
            log_probs.append(token_log_probs.double().cpu().numpy())
    is_possible = np.isfinite(log_probs).all(axis=0)  # a token of probability 0 has log probability -infinity
    first, second = (np.where(is_possible, token_log_probs, 0.0) for token_log_probs in log_probs)
    return first - second
