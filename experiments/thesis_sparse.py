"""Table A.1 of the thesis: low-rank and sparse softmax biases over an unadapted recurrent layer.

    python experiments/thesis_sparse.py --data DATA --out OUT

A sparse bias is tried with each of `PENALTIES`; the best of them stands in the table, as in the thesis.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import corpora
import study
from corpora import Tables
from factorcell.evaluation import perplexity
from factorcell.model.run import Run
from study import Experiment, Measured, Options

PENALTIES = (0.0, 0.01, 0.1)


def rows() -> dict[str, Options]:
    """No bias, the low-rank ones, and sparse ones with and without a low-rank one."""
    plain: dict[str, tuple[str, ...]] = {
        "none": (),
        "low_rank_each": ("low_rank_each",),
        "low_rank": ("low_rank",),
    }
    made: dict[str, Options] = {name: {"model": {"output_bias": list(biases)}} for name, biases in plain.items()}
    for penalty in PENALTIES:
        for name, biases in (("sparse", ("sparse",)), ("low_rank_each+sparse", ("low_rank_each", "sparse"))):
            made[f"{name}-{penalty:g}"] = {"model": {"output_bias": list(biases), "sparse_penalty": [f"{penalty:g}"]}}
    return made


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Hotel reviews."""
    return corpora.parts(data, folder, "hotels", share)


def measure(run: Run, tables: Tables) -> Measured:
    """How often the next word is among the three most probable ones."""
    return Measured(perplexity.top_accuracy(run, run.prepare(tables["test"], unknown="group")))


EXPERIMENT = Experiment("sparse", "thesis_hotels.toml", rows(), tables, measure)


def main(argv: Sequence[str]) -> int:
    """Train what the arguments ask for."""
    given = study.parser("Table A.1: sparse softmax biases.").parse_args(argv)
    return study.main(EXPERIMENT, given, [__file__, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
