"""Measure what the schedule of `train --minutes` costs in perplexity where the speed of a machine changes.

    python benchmarks/clocks.py DATA RUNS --set agnews --speeds 12500 19000 --speeds 19000 9500

A simulated clock gives the steps the first speed, in targets a second, for 45 of 112 seconds, and then the second.
Then the same model is trained with as many steps and without a limit. The script prints both perplexities of the
development texts; it does not depend on the speed of the machine. DATA and RUNS are those of minutes.py.
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from minutes import CASES, development_perplexity

from factorcell.__main__ import main as factorcell
from factorcell.training import fit
from factorcell.training.schedule import Progress, TimeLimit

SECONDS, CHANGE = 112.0, 45.0  # of the training, and after which the speed changes
EVALUATION_SECONDS = 0.9


def train(folder: Path, data: Path, options: list[str]) -> None:
    """Train a run without the work after the steps."""
    shutil.rmtree(folder, ignore_errors=True)
    tables = [str(data / "train.parquet"), "--dev", str(data / "dev.parquet"), "--out", str(folder)]
    without_work = {"mix_with_ngrams": lambda *_: None, "save_other_models": lambda *_: {}}
    with mock.patch.multiple(fit, **without_work):
        factorcell(["train", *tables, *options])


def simulated_clock(first: float, second: float) -> Callable[..., None]:
    """Return the method of `Progress` that counts the seconds of steps at these speeds."""
    count_seconds = Progress.count_seconds

    def count(progress: Progress, _seconds: float, targets: int = 0) -> None:
        speed = first if progress.seconds < CHANGE else second
        count_seconds(progress, targets / speed if targets else EVALUATION_SECONDS, targets)

    return count


def main() -> None:
    """Print the perplexities of each pair of speeds."""
    parser = argparse.ArgumentParser(description="Measure the schedule of train --minutes with simulated clocks.")
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("runs", type=Path, help="folder for the trainings")
    parser.add_argument("--set", choices=CASES, default="agnews")
    parser.add_argument("--speeds", nargs=2, type=float, action="append", required=True, help="targets a second")
    arguments = parser.parse_args()
    data = arguments.data / arguments.set
    for first, second in arguments.speeds:
        limited, repeated = arguments.runs / f"{first:g}-{second:g}", arguments.runs / f"{first:g}-{second:g}-repeated"
        remaining = mock.patch.object(TimeLimit, "remaining_seconds", return_value=SECONDS)
        with remaining, mock.patch.object(Progress, "count_seconds", simulated_clock(first, second)):
            train(limited, data, [*CASES[arguments.set], "--minutes", "2"])
        train(repeated, data, ["--config", str(limited / "config.json")])
        perplexities = [development_perplexity(folder, data) for folder in (limited, repeated)]
        shown = f"{perplexities[0]:.1f}, without a limit {perplexities[1]:.1f}"
        sys.stdout.write(f"{first:,.0f} and {second:,.0f} targets a second: perplexity {shown}\n")


if __name__ == "__main__":
    main()
