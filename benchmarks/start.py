"""How long a command takes before it does anything: Python alone, `import factorcell`, and the help of every verb.

    python benchmarks/start.py                        # this checkout
    python benchmarks/start.py --against OTHER/src    # beside another one

Every run is a process of its own. Runs of all commands and checkouts take turns, so that what else the machine does
falls on all of them alike; figures are medians, in seconds.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from factorcell.commands.main import ROOT_COMMAND

HERE = Path(__file__).parent.parent / "src"


def commands() -> dict[str, list[str]]:
    """What is measured, by what it is called."""
    verbs = [[verb.name] for verb in ROOT_COMMAND.subcommands]
    verbs += [[verb.name, kind.name] for verb in ROOT_COMMAND.subcommands for kind in verb.subcommands]
    helps = {" ".join(["factorcell", *verb, "--help"]): ["-m", "factorcell", *verb, "--help"] for verb in [[], *verbs]}
    return {"python -c pass": ["-c", "pass"], "import factorcell": ["-c", "import factorcell"], **helps}


def seconds(command: list[str], source: Path) -> float:
    """The time of one run, from start to end."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(source)}
    subprocess.run([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def measure(sources: list[Path], repeats: int) -> dict[tuple[str, Path], float]:
    """The median time of every command with every source."""
    every = [(name, source) for name in commands() for source in sources]
    times: dict[tuple[str, Path], list[float]] = {key: [] for key in every}
    turns = random.Random(0)
    for number in range(repeats + 1):
        for name, source in turns.sample(every, len(every)):
            spent = seconds(commands()[name], source)
            if number:  # the first writes the compiled modules and fills the caches
                times[name, source].append(spent)
    return {key: statistics.median(durations) for key, durations in times.items()}


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each (default: 7)")
    arguments = parser.parse_args()
    sources = [arguments.against, HERE] if arguments.against else [HERE]
    seconds = measure([source.resolve() for source in sources], arguments.repeats)
    columns = ["before", "now"] if arguments.against else ["now"]
    print(f"| command | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name in commands():
        print(f"| `{name}` | {' | '.join(f'{seconds[name, source.resolve()]:.3f}' for source in sources)} |")


if __name__ == "__main__":
    main()
