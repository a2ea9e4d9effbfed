"""Train and measure the rows of an experiment.

    python experiments/papers.py tacl_agnews --data DATA --out OUT --results experiments/results

RESULTS/EXPERIMENT.jsonl gets a line for each training. Finished rows are skipped, and the same command resumes after a
stop.
"""

import sys
from collections.abc import Sequence

import advice
import communities
import exposure
import generated_texts
import study
import tacl
import tacl_baselines
import tacl_beyond
import thesis_finetuning
import thesis_queries
import thesis_sixteen
import thesis_sparse
import variations
from study import Experiment

# An experiment that measures the runs of another one comes after it.
ORDER: Sequence[Experiment] = (
    *(module.EXPERIMENTS[name] for name in tacl.SETS for module in (tacl, tacl_baselines, tacl_beyond)),
    thesis_queries.EXPERIMENT,
    communities.EXPERIMENT,
    *thesis_sixteen.EXPERIMENTS.values(),
    thesis_sixteen.VARIABLES,
    *variations.EXPERIMENTS.values(),
    *generated_texts.EXPERIMENTS.values(),
    thesis_sparse.EXPERIMENT,
    thesis_finetuning.EXPERIMENT,
    thesis_queries.TRIALS,
    advice.EXPERIMENT,
    *exposure.EXPERIMENTS.values(),
)
EXPERIMENTS = {experiment.name: experiment for experiment in ORDER}


def main(argv: Sequence[str]) -> int:
    parser = study.parser("Train and measure the rows of an experiment.")
    parser.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    options = parser.parse_args(argv)
    return study.main(EXPERIMENTS[options.experiment], options, [__file__, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
