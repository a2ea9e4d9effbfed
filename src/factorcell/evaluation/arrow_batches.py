"""Arrow batches in and out, for engines that apply a run to the parts of a large table, such as Ray and Spark.

Each function returns the rows of a batch in their order, with all columns of the batch and further ones. A result does
not depend on other batches, so that an engine may divide, repeat and move the batches.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from factorcell.data.columns.rows import Row, to_rows
from factorcell.errors import UserError
from factorcell.evaluation.classification import classify
from factorcell.evaluation.likelihoods import check_adapted
from factorcell.generation.generate import DEFAULT, GenerationOptions, generate
from factorcell.runs.run import Run

SCORES = pa.schema(
    {"nats": pa.float64(), "targets": pa.int64(), "perplexity": pa.float64(), "unknown_targets": pa.int64()}
)
PREDICTIONS = pa.schema({"predicted": pa.string(), "probability": pa.float64()})
VECTORS = pa.schema({"context_vector": pa.list_(pa.float32())})
TEXTS = pa.schema({"generated": pa.string(), "log_probability": pa.float64()})
MAX_CONTEXTS = 10_000  # contexts whose vectors are computed at once


def score_arrow(run: Run, batch: Any, *, unknown: str = "group") -> pa.Table:
    """Score the texts of a batch, with the figures of `Run.score_rows`.

    Args:
        run: The run.
        batch: An Arrow table or record batch with the text column and the context columns of the run.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        The batch with the columns `nats`, `targets`, `perplexity` and `unknown_targets`.

    Raises:
        UserError: The batch cannot be read, or has a column of these names.
    """
    return _with_columns(batch, SCORES, lambda table: run.score_rows(table, unknown=unknown))


def predict_arrow(run: Run, batch: Any, target: str, **options: Any) -> pa.Table:
    """Classify the texts of a batch by the values of a categorical variable, as `classify` does.

    Args:
        run: An adapted run.
        batch: An Arrow table or record batch with the text column and the other context columns of the run.
        target: The name of the variable.
        **options: Options of `classify`, such as `values` and `priors`.

    Returns:
        The batch with the columns `predicted` and `probability`, the posterior probability of the predicted value.

    Raises:
        UserError: The batch cannot be read, has a column of these names, or an option is not valid.
    """

    def rows(table: pa.Table) -> list[dict[str, Any]]:
        predictions = classify(run, table, target, **options).rows()
        return [{**row, "probability": row["probabilities"][row["predicted"]]} for row in predictions]

    return _with_columns(batch, PREDICTIONS, rows)


def embed_arrow(run: Run, batch: Any, *, unknown: str = "group") -> pa.Table:
    """Compute the context vector of each row of a batch.

    Args:
        run: An adapted run.
        batch: An Arrow table or record batch with context columns of the run. A column that it lacks has its expected
            value; texts are not read.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        The batch with the column `context_vector`, lists of `context_size` numbers.

    Raises:
        UserError: The batch cannot be read, has a column of this name, or the run has no context vectors.
    """
    check_adapted(run)
    if (encoder := run.model.encoder) is None:
        raise UserError(f"{run.folder}: expected a run with context vectors, got one that reads its context as tokens")

    def rows(table: pa.Table) -> list[dict[str, Any]]:
        corpus = run.read([""] * table.num_rows, _contexts(run, table), unknown=unknown)
        parts = np.array_split(np.arange(len(corpus)), -(-len(corpus) // MAX_CONTEXTS))
        with run.scoring():
            vectors = [encoder(corpus.context(part).to(run.device)).float().cpu().numpy() for part in parts]
        return [{"context_vector": vector} for vector in np.concatenate(vectors)]

    return _with_columns(batch, VECTORS, rows)


def generate_arrow(
    run: Run, batch: Any, *, options: GenerationOptions = DEFAULT, unknown: str = "group", **settings: Any
) -> pa.Table:
    """Generate a text for the context in each row of a batch.

    The texts depend only on the seed and on the rows of the batch: a batch that is computed again has the same texts,
    and other rows have other random numbers.

    Args:
        run: The run.
        batch: An Arrow table or record batch with context columns of the run. A column that it lacks has its expected
            value.
        options: The options of generation; a batch with a time limit may get fewer texts, and is then an error.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        **settings: The `prompt` and the `case` of `generate`.

    Returns:
        The batch with the columns `generated` and `log_probability`.

    Raises:
        UserError: The batch cannot be read, has a column of these names, or an option is not valid.
    """
    if options.seconds is not None:
        raise UserError("seconds: expected no time limit for batches, because each row needs a text")

    def rows(table: pa.Table) -> list[dict[str, Any]]:
        seed = zlib.crc32(repr(table.to_pylist()).encode(), options.seed & 0xFFFFFFFF)
        texts = generate(run, _contexts(run, table), options=replace(options, seed=seed), unknown=unknown, **settings)
        return [{**row, "generated": row["text"]} for row in texts]

    return _with_columns(batch, TEXTS, rows)


def _contexts(run: Run, table: pa.Table) -> list[Row]:
    names = [name for name in run.schema.columns() if name in table.column_names]
    return to_rows(table.select(names)) if names else [{}] * table.num_rows


def _with_columns(batch: Any, added: pa.Schema, compute: Callable[[pa.Table], Sequence[dict[str, Any]]]) -> pa.Table:
    """Return a batch with the columns `added`, from a function that computes their values for each row."""
    table = pa.table(batch)
    if clash := [name for name in added.names if name in table.column_names]:
        raise UserError(f"batch: expected no column {clash[0]!r}, which the result adds; rename it")
    rows = compute(table) if table.num_rows else []
    for field in added:
        table = table.append_column(field, pa.array([row[field.name] for row in rows], field.type))
    return table
