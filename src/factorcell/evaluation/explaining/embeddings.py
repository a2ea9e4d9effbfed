"""Inspection of the learned embeddings of a context variable: neighbours, softmax biases, maps.

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
        encoder, config = run.model.encoder, run.config.model
        if encoder is None or not (weight_adapters(config) or {*config.output_bias} & {*LOW_RANK_BIASES}):
            reason = "the run is not adapted" if encoder is None else "only the bias of each value is adapted"
            reason = "the context is read as a prefix" if run.model.prefix is not None else reason
            raise UserError(f"{run.folder}: the run has no embeddings of contexts, because {reason}")
        categories = [category for category in run.schema.categories if not category.is_all_rare]
        if not categories:
            kinds = ", ".join(f"{candidate.name} ({candidate.kind})" for candidate in run.schema.variables)
            problem = "expected a categorical context variable with values that are not rare in training"
            raise UserError(f"{run.folder}: {problem}, got {kinds}")
        names = [candidate.name for candidate in categories]
        check_choice("categorical context with frequent values", variable or names[0], names)
        value_names = set(map(category_name, values))
        chosen_variable = max(
            (candidate for candidate in categories if variable in ("", candidate.name)),
            key=lambda candidate: (len(value_names & set(candidate.values[1:])), len(candidate.values)),
        )
        table = encoder.tables[run.schema.categories.index(chosen_variable)].detach().double().cpu().numpy()
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


def bias_shift(
    run: Run, context: Mapping[str, Any], against: Mapping[str, Any] | None = None, *, unknown: str = "error"
) -> Floats:
    """Return how much the softmax bias of `context` raises the log probability of each token, in nats (V,).

    The shift of token w is log p(w | h = 0, c) - log p(w | h = 0, c'), where c' is the context `against`. With a hidden
    state h of zero, only the adapted biases depend on the context, as in table 5 of TACL 2018. A column that a context
    lacks has the expected value. The shift of a token of probability 0 is 0.
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
    first, second = np.where(is_possible, log_probs, 0.0)
    return np.asarray(first - second)


def read_column(embeddings: Embeddings, source: Any, column: str) -> dict[str, Any]:
    """Aggregate `column` of a table over the rows of each value: the mean of numbers, or the most frequent name.

    `column` may state its kind: NAME:number or NAME:category. A value without an entry is left out. Raises a
    `UserError` if no row of the table has one of the values.
    """
    declaration = parse_column(column)
    name, kind = declaration.name, declaration.kind
    check_choice("kind of column to colour by", kind or "number", ("category", "number"))
    table = open_table(source)
    entries_by_value: dict[str, Counter[str]] = {}  # value -> entries with their counts
    for chunk in table.chunks([embeddings.source, name]):
        for value, entry in zip(chunk[embeddings.source], chunk[name], strict=True):
            if not is_missing(value) and not is_missing(entry):
                entry = entry if declaration.notation else category_name(entry)
                entries_by_value.setdefault(category_name(value), Counter())[entry] += 1
    known_entries = {value: entries_by_value[value] for value in embeddings.values if value in entries_by_value}
    if not known_entries:
        raise UserError(f"{table.name}: no row has {name} and a value of {embeddings.source} that the run knows")
    numbers = {entry: to_number(entry, declaration.notation) for entries in known_entries.values() for entry in entries}
    invalid = next((entry for entry, number in numbers.items() if number is None), None)
    if kind == "number" and invalid is not None:
        raise UserError(f"{table.name}: {name}: expected numbers, got {invalid!r}")
    if kind == "category" or invalid is not None:
        return {value: entries.most_common(1)[0][0] for value, entries in known_entries.items()}
    return {
        value: sum(count * (numbers[entry] or 0.0) for entry, count in entries.items()) / entries.total()
        for value, entries in known_entries.items()
    }


def project_to_plane(vectors: Floats) -> tuple[Floats, Floats]:
    """Project `vectors` (N, k) to two principal axes; return points (N, 2) and shares of variance (2,)."""
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
    kind = "group" if any(isinstance(entry, str) for entry in entries.values()) else "number"
    return [
        {"value": value, "count": count, "x": x, "y": y, kind: entries[value]}
        for value, count, (x, y) in zip(embeddings.values, embeddings.counts.tolist(), points.tolist(), strict=True)
        if value in entries
    ]
