"""Start-up time of commands: Python alone, `import factorcell`, and the help of every command.

    python benchmarks/start.py                        # this checkout
    python benchmarks/start.py --against OTHER/src    # compared with another one

Every run is a new process. Runs of all commands and checkouts alternate, so other work on the machine affects all of
them alike; figures are medians, in seconds.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from factorcell.commands.cli.main import COMMANDS

SOURCE = Path(__file__).parent.parent / "src"


def commands() -> dict[str, list[str]]:
    """Return the measured commands by name."""
    names = [name.split() for name in COMMANDS]
    helps = {" ".join(["factorcell", *name, "--help"]): ["-m", "factorcell", *name, "--help"] for name in [[], *names]}
    return {"python -c pass": ["-c", "pass"], "import factorcell": ["-c", "import factorcell"], **helps}


def seconds(command: list[str], source: Path) -> float:
    """Return the time of one run, from start to end."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(source)}
    subprocess.run([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def measure(sources: list[Path], repeats: int) -> dict[tuple[str, Path], float]:
    """Return the median time of every command with every source."""
    pairs = [(name, source) for name in commands() for source in sources]
    times: dict[tuple[str, Path], list[float]] = {key: [] for key in pairs}
    generator = random.Random(0)
    for number in range(repeats + 1):
        for name, source in generator.sample(pairs, len(pairs)):
            spent = seconds(commands()[name], source)
            if number:  # the first run writes the compiled modules and fills the caches
                times[name, source].append(spent)
    return {key: statistics.median(durations) for key, durations in times.items()}


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each (default: 7)")
    arguments = parser.parse_args()
    sources = [arguments.against, SOURCE] if arguments.against else [SOURCE]
    seconds = measure([source.resolve() for source in sources], arguments.repeats)
    columns = ["before", "now"] if arguments.against else ["now"]
    print(f"| command | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name in commands():
        print(f"| `{name}` | {' | '.join(f'{seconds[name, source.resolve()]:.3f}' for source in sources)} |")


if __name__ == "__main__":
    main()
