"""All tables and figures of the papers, one script after another; what is finished is not made again.

    python experiments/papers.py --data DATA --out OUT --results experiments/results

Options are those of the scripts, which come in the order of what is wanted most. A script that fails leaves the others
alone. What is measured in runs of another table comes behind it.
"""

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import lengths
import ranks
import restraint
import sampled
import study
import switches
import tacl
import tacl_trials
import thesis_sixteen
import thesis_specificity
from study import Experiment

COMMANDS: tuple[tuple[str, ...], ...] = (
    *((script, name) for name in tacl.SETS for script in ("tacl", "tacl_baselines", "tacl_beyond")),
    ("rescoring",),
    *(("sampled", name) for name in sampled.SETS),
    ("thesis_queries",),
    ("thesis_speakers",),
    *(("thesis_specificity", name + also) for also in ("", "_prefix") for name in thesis_specificity.SETS),
    *(("lengths", name) for name in lengths.EXPERIMENTS),
    ("thesis_variables",),
    ("thesis_subreddits",),
    *(("switches", name) for name in switches.EXPERIMENTS),
    *(("restraint", name) for name in restraint.EXPERIMENTS),
    *(("ranks", name) for name in ranks.EXPERIMENTS),
    *(("thesis_sixteen", name) for name in thesis_sixteen.EXPERIMENTS),
    ("thesis_sparse",),
    ("thesis_finetuning",),
    ("thesis_queries_trials",),
    ("family",),
    *(("tacl_trials", name) for name in tacl_trials.DRAWN),
    *(("thesis_specificity", name) for name in thesis_specificity.EXPERIMENTS if name.endswith("_trials")),
    ("sampled", "hotels_trials"),
)


def experiment(script: str, *names: str) -> Experiment:
    """What a command trains and measures."""
    module = importlib.import_module(script)
    found = module.EXPERIMENTS[names[0]] if names else module.EXPERIMENT
    assert isinstance(found, Experiment)
    return found


def main(argv: Sequence[str], commands: Sequence[Sequence[str]] = COMMANDS, folder: Path = study.HERE) -> int:
    """Run all `commands` with the same options; 1 if one of them failed, 130 if it was stopped."""
    if study.parser("All tables and figures of the papers.").parse_args(argv).only:
        print("error: rows are those of each script; give --only to it", file=sys.stderr)
        return 2
    running, failed = dict[str, "subprocess.Popen[bytes]"](), list[str]()
    with study.until_stopped(running):
        for script, *names in commands:
            name = " ".join((script, *names))
            print(name, flush=True)
            running[name] = subprocess.Popen([sys.executable, str(folder / f"{script}.py"), *names, *argv])
            code = running[name].wait()
            del running[name]
            if code == study.STOPPED:
                return code
            failed += [name] if code else []
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(study.STOPPED)
