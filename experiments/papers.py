"""All tables and figures of the papers, one script after another; what is finished is not made again.

    python experiments/papers.py --data DATA --out OUT --results experiments/results

Options are those of the scripts, which come in the order of what is wanted most. A script that fails leaves the others
alone. What is measured in runs of another table comes behind it.
"""

import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
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
from pages.markdown import markdown
from study import Experiment, Row

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


def whole(read: Callable[[str], Sequence[Row]]) -> str:
    """What of all commands is trained, and the hours of one core that it took; `read` has the rows of an experiment.

    Models that are trained are those of rows of their own: others are measured in runs of another command, or are
    mixtures, models per value, n-grams and classifiers.
    """
    lines, sums = [], [0, 0, 0, 0.0]
    for command in COMMANDS:
        of = experiment(*command)
        rows, wanted = read(of.name), of.trainings()
        done = {(row["row"], row["seed"]) for row in rows} & set(wanted)
        models = 0 if of.runs else sum(row not in of.baselines for row, _ in done)
        hours = 0.0 if of.runs else sum(row.get("minutes", 0.0) for row in rows) / 60
        lines.append(
            [f"`{' '.join(command)}`", str(len(wanted)), str(len(done)), str(models), f"{hours:.1f}" if done else ""]
        )
        sums = [total + one for total, one in zip(sums, (len(wanted), len(done), models, hours), strict=True)]
    lines.append(["all", *(f"{total:,}" for total in sums[:3]), f"{sums[3]:.1f}"])
    return markdown(["command", "rows by seed", "finished", "models trained", "hours of training"], lines)


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
