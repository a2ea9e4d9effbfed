"""Apply a run to a large table with Spark: score, classify or generate texts, or compute context vectors.

    spark-submit examples/spark_score.py runs/reviews reviews.parquet scores
    spark-submit --master yarn examples/spark_score.py hdfs:///runs/reviews reviews classes --target stars

RUN and the Parquet files of TABLE and OUT must be readable from all machines of the cluster. OUT gets the rows of
TABLE with further columns. Each task opens the run once, so that tasks should have many rows: a task reads
`spark.sql.files.maxPartitionBytes` of TABLE. Spark repeats the task of a worker that dies (`spark.task.maxFailures`).
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from pyspark.sql import SparkSession

from factorcell import Run

TASKS = {
    "score": (Run.score_arrow, "nats double, targets bigint, perplexity double, unknown_targets bigint"),
    "classify": (Run.predict_arrow, "predicted string, probability double"),
    "embed": (Run.embed_arrow, "context_vector array<float>"),
    "generate": (Run.generate_arrow, "generated string, log_probability double"),
}


def apply_to_batches(
    batches: Iterator[pa.RecordBatch], address: str, function: Callable[..., pa.Table], options: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Open a run from a path or an address, and yield each batch with the columns of the result."""
    torch.set_num_threads(1)  # one task per core
    run = Run.open(address)
    for batch in batches:
        yield from function(run, batch, **options).to_batches()


def main() -> None:
    """Read the table, apply the run and write the result."""
    parser = argparse.ArgumentParser(description="Apply a run to a large table with Spark.")
    for name in ("run", "table", "out"):
        parser.add_argument(name, metavar=name.upper())
    parser.add_argument("--task", choices=sorted(TASKS.keys() - {"classify"}), default="score")
    parser.add_argument("--target", metavar="COLUMN", help="classify by this context column instead")
    options = parser.parse_args()
    function, columns = TASKS["classify" if options.target else options.task]
    spark = SparkSession.builder.appName("factorcell").getOrCreate()
    rows = spark.read.parquet(options.table)
    apply = partial(
        apply_to_batches,
        address=options.run,
        function=function,
        options={"target": options.target} if options.target else {},
    )
    schema = ", ".join([*(f"`{name}` {kind}" for name, kind in rows.dtypes), columns])
    rows.mapInArrow(apply, schema).write.parquet(options.out)
    spark.stop()


if __name__ == "__main__":
    main()
