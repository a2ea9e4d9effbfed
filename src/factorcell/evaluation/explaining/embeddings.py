"""Inspection of the learned embeddings of a context variable: neighbours, tokens, maps.

    shift(w) = log p(w | h = 0, c) - log p(w | h = 0, c')

is the change of the log probability of token w from context c' (by default the expected context) to context c, for a
hidden state h of zero. For this h, only the softmax bias depends on the context: the low-rank bias Q c of TACL 2018
(table 5) and all other adapted biases.

Shapes: N values, k embedding, V vocabulary.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.adapters.adapters import weight_adapters
from factorcell.config import LOW_RANK_BIASES
from factorcell.data.columns.declarations import parse_column
from factorcell.data.columns.values import category_name, is_missing, to_number
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError, check_choice, nearest_hint
from factorcell.options import limits
from factorcell.runs.run import Run

MIN_VALUES = 3  # minimum number of values for a map
VALUE_COLUMN_KINDS = ("category", "number")

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
        encoder, missing_reason = run.model.encoder, _missing_reason(run)
        if encoder is None or missing_reason:
            raise UserError(f"{run.folder}: the run has no embeddings of contexts, because {missing_reason}")
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
        table = encoder.tables[categories.index(chosen_variable)].detach().double().cpu().numpy()
        return cls(  # without the first value, which is the unknown value
            variable=chosen_variable.name,
            source=chosen_variable.source_column,
            values=chosen_variable.values[1:],
            counts=np.array(chosen_variable.counts[1:], dtype=np.int64),
            vectors=table[1:],
            are_users=chosen_variable.source_column == run.config.data.user,
        )

    def row(self, value: object) -> int:
        """Return the row of a value in `vectors`."""
        name = category_name(value)
        if name in self.values:
            return self.values.index(name)
        hint = "" if self.are_users else nearest_hint(name, self.values)
        raise UserError(
            f"{self.variable} {name!r} was never seen in training or is a rare value{hint}; "
            f"the run has {len(self.values):,} values"
        )

    def neighbours(self, values: Sequence[object], count: int = 10) -> list[Row]:
        """Return a row for each of the `count` nearest values, by cosine, of each of `values`.

        A row has `value`, the nearby value (`near`), the numbers of training texts of the value (`value_count`) and of
        the nearby value (`count`), and the `cosine` of their embeddings.
        """
        [count] = limits.check(count=count)
        directions = self.vectors / np.maximum(np.linalg.norm(self.vectors, axis=1, keepdims=True), 1e-12)
        results: list[Row] = []
        for index in map(self.row, values):
            cosines = directions @ directions[index]
            others = [other for other in np.argsort(-cosines, kind="stable").tolist() if other != index]
            results += [
                {
                    "value": self.values[index],
                    "near": self.values[other],
                    "value_count": int(self.counts[index]),
                    "count": int(self.counts[other]),
                    "cosine": float(cosines[other]),
                }
                for other in others[:count]
            ]
        return results


def _missing_reason(run: Run) -> str | None:
    """Return why no adapter and no low-rank softmax bias of a run reads embeddings of values; None if one does."""
    config = run.config.model
    if run.model.encoder is not None and (weight_adapters(config) or {*config.output_bias} & {*LOW_RANK_BIASES}):
        return None
    if run.model.prefix is not None:
        return "the context is read as a prefix"
    return "only the bias of each value is adapted" if run.model.encoder is not None else "the run is not adapted"


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


def read_column(embeddings: Embeddings, source: Any, column: str) -> dict[str, Any]:
    """Aggregate `column` of a table over the rows of each value: the mean of numbers, or the most frequent name.

    `column` may state its kind: NAME:number or NAME:category. A value without an entry is left out. Raises a
    `UserError` if no row of the table has one of the values.
    """
    declaration = parse_column(column)
    name, kind = declaration.name, declaration.kind
    check_choice("kind of column to colour by", kind or "number", VALUE_COLUMN_KINDS)
    table = open_table(source)
    entries_by_value: dict[str, Counter[str]] = {}  # value -> entries with their counts
    for chunk in table.chunks([embeddings.source, name]):
        for value, entry in zip(chunk[embeddings.source], chunk[name], strict=True):
            if not is_missing(value) and not is_missing(entry):
                entries_by_value.setdefault(category_name(value), Counter())[category_name(entry)] += 1
    known_entries = {value: entries_by_value[value] for value in embeddings.values if value in entries_by_value}
    if not known_entries:
        raise UserError(f"{table.name}: no row has {name} and a value of {embeddings.source} that the run knows")
    means = {value: _mean(entries) for value, entries in known_entries.items()}
    if kind == "category" or (not kind and None in means.values()):
        return {value: entries.most_common(1)[0][0] for value, entries in known_entries.items()}
    for value, mean in means.items():
        if mean is None:
            invalid = next(entry for entry in known_entries[value] if to_number(entry) is None)
            raise UserError(f"{table.name}: {name} of {value!r} is {invalid!r}, not a number")
    return means


def _mean(entries: Counter[str]) -> float | None:
    """Return the mean of entries, weighted by their counts; None if any entry is not a number."""
    total = 0.0
    for entry, count in entries.items():
        number = to_number(entry)
        if number is None:
            return None
        total += number * count
    return total / entries.total()


def project_to_plane(vectors: Floats) -> tuple[Floats, Floats]:
    """Project `vectors` (N, k) to their first two principal axes; return points (N, 2) and shares of variance (2,).

    Principal axes have no sign; scikit-learn makes the component of an axis that is largest in absolute value positive.
    """
    from sklearn.decomposition import PCA

    if vectors.shape[0] < MIN_VALUES or vectors.shape[1] < 2:
        actual = f"{vectors.shape[0]} of size {vectors.shape[1]}"
        raise UserError(f"map: expected at least {MIN_VALUES} embeddings of size 2 or more, got {actual}")
    analysis = PCA(2, svd_solver="full")
    points: Floats = analysis.fit_transform(vectors)
    return points, np.nan_to_num(analysis.explained_variance_ratio_)


def map_points(embeddings: Embeddings, entries: Mapping[str, Any]) -> list[Row]:
    """Project all embeddings to a plane; return a row for each value with an entry of `read_column`."""
    points, _ = project_to_plane(embeddings.vectors)
    return [
        {
            "value": value,
            "count": int(count),
            "x": x,
            "y": y,
            "group" if isinstance(entries[value], str) else "number": entries[value],
        }
        for value, count, (x, y) in zip(embeddings.values, embeddings.counts, points.tolist(), strict=True)
        if value in entries
    ]
