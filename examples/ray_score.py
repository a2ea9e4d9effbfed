"""Apply a run to a large table with Ray Data: score, classify or generate texts, or compute context vectors.

    python examples/ray_score.py runs/reviews reviews.parquet scores
    python examples/ray_score.py s3://bucket/runs/reviews s3://bucket/reviews s3://bucket/classes --target stars

RUN and the Parquet files of TABLE and OUT must be readable from all machines of the cluster. OUT gets the rows of
TABLE with further columns, in any order. Each worker opens the run once. Ray restarts a worker that dies and repeats
its batches. `ray job submit -- python examples/ray_score.py ...` runs the script on a cluster that exists.
"""

import argparse
from functools import partial

import pyarrow as pa
import ray
import torch

from factorcell import Run

TASKS = {"score": Run.score_arrow, "embed": Run.embed_arrow, "generate": Run.generate_arrow}


class Worker:
    """A worker, which opens a run once and applies it to many batches."""

    def __init__(self, run: str, task: str, target: str | None) -> None:
        """Open a run from a path or an address."""
        torch.set_num_threads(1)  # one worker per core
        self.run = Run.open(run)
        self.apply = partial(Run.predict_arrow, target=target) if target else TASKS[task]

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return a batch with the columns of the result."""
        result: pa.Table = self.apply(self.run, batch)
        return result


def main() -> None:
    """Read the table, apply the run and write the result."""
    parser = argparse.ArgumentParser(description="Apply a run to a large table with Ray Data.")
    for name in ("run", "table", "out"):
        parser.add_argument(name, metavar=name.upper())
    parser.add_argument("--task", choices=sorted(TASKS), default="score")
    parser.add_argument("--target", metavar="COLUMN", help="classify by this context column instead")
    help_text = "largest number of workers, with a core each (default: chosen by Ray for the cores of the cluster)"
    parser.add_argument("--workers", type=int, help=help_text)
    help_text = "number of rows that a worker computes at once, and again if it dies (default: 20000)"
    parser.add_argument("--batch", type=int, default=20_000, help=help_text)
    options = parser.parse_args()
    rows = ray.data.read_parquet(options.table).repartition(target_num_rows_per_block=options.batch)
    results = rows.map_batches(
        Worker,
        fn_constructor_args=(options.run, options.task, options.target),
        batch_format="pyarrow",
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=options.workers),
    )
    results.write_parquet(options.out)


if __name__ == "__main__":
    main()
