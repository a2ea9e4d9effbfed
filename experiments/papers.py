"""Train and measure the rows of an experiment, or of all experiments one after the other.

    python experiments/papers.py tacl_agnews --data DATA --out OUT --results experiments/results
    python experiments/papers.py all --data DATA --out OUT --results experiments/results

RESULTS/EXPERIMENT.jsonl gets a line for each training; rows that are there are not made again. Stop it as you like: the
same command resumes. With `all`, an experiment that fails leaves the others alone.
"""

import subprocess
import sys
from collections.abc import Sequence

import advice
import communities
import exposure
import study
import tacl
import tacl_baselines
import tacl_beyond
import thesis_finetuning
import thesis_queries
import thesis_sixteen
import thesis_sparse
import variations
import written
from study import Experiment

# Experiments that measure the runs of another one come after it.
ORDER: Sequence[Experiment] = (
    *(module.EXPERIMENTS[name] for name in tacl.SETS for module in (tacl, tacl_baselines, tacl_beyond)),
    thesis_queries.EXPERIMENT,
    communities.EXPERIMENT,
    *thesis_sixteen.EXPERIMENTS.values(),
    thesis_sixteen.VARIABLES,
    *variations.EXPERIMENTS.values(),
    *written.EXPERIMENTS.values(),
    thesis_sparse.EXPERIMENT,
    thesis_finetuning.EXPERIMENT,
    thesis_queries.TRIALS,
    advice.EXPERIMENT,
    *exposure.EXPERIMENTS.values(),
)
EXPERIMENTS = {one.name: one for one in ORDER}


def every(argv: Sequence[str], names: Sequence[str] = tuple(EXPERIMENTS), script: str = __file__) -> int:
    """Run all experiments with the same options; 1 if one of them failed, 130 if it was stopped."""
    running, failed = dict[str, "subprocess.Popen[bytes]"](), list[str]()
    with study.until_stopped(running):
        for name in names:
            print(name, flush=True)
            running[name] = subprocess.Popen([sys.executable, script, name, *argv])
            code = running[name].wait()
            del running[name]
            if code == study.STOPPED:
                return code
            failed += [name] if code else []
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run what the command line names; the exit code."""
    parser = study.parser("Train and measure the rows of an experiment, or of all of them.")
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all"], metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    options = parser.parse_args(argv)
    if options.experiment != "all":
        return study.main(EXPERIMENTS[options.experiment], options, [__file__, *argv])
    if options.only:
        print("error: rows belong to an experiment; give --only with its name", file=sys.stderr)
        return 2
    return every([one for one in argv if one != "all"])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(study.STOPPED)
