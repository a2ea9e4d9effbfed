"""Check that two checkouts compute the same: 200 steps of three recipes, and the results of each run.

    python benchmarks/same_results.py DATA --write before.json      # in one checkout
    python benchmarks/same_results.py DATA --against before.json    # in the other, on the same machine

DATA holds a folder for each set, with train.parquet and dev.parquet. All runs use one thread, where results are equal
bit for bit; they differ between processors and versions of PyTorch. A figure is the SHA-256 of a result. The names of
tensors and of generation options do not count.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from safetensors.numpy import load_file

ROOT = Path(__file__).parent.parent
STEPS = 200
DEV_TEXTS = 300  # development texts that are scored and classified
TIMES = ("seconds", "tokens_per_second", "minutes", "time")

ONLINE = """
import sys
from factorcell import Completer, Run
from factorcell.completion import User, learn_one
run = Run.open(sys.argv[1])
user = User.new(run)
for text in sys.argv[2:]:
    user = learn_one(run, user, text)
print(user.vector.tobytes().hex())
for suggestion in Completer(run).complete("Fix", user):
    print(suggestion.text, suggestion.log_probability.hex())
"""


@dataclass(frozen=True)
class Recipe:
    """A recipe under experiments/, the number of texts for `STEPS` steps of it, and the commands for the run."""

    name: str
    data: str
    rows: int
    classify: tuple[str, ...] = ()
    generate: tuple[str, ...] = ()
    complete: tuple[str, ...] = ()
    learn: tuple[str, ...] = ()


RECIPES = (
    Recipe("agnews_words", "agnews_words", 9_000, ("--target", "section"), ("--each", "section", "--number", "3")),
    Recipe(
        "commonvoice9",
        "commonvoice9",
        13_000,
        ("--target", "language"),
        ("--each", "language", "--method", "beam", "--prompt", "L"),
        ("Ne",),
    ),
    Recipe(
        "commits_small",
        "commits",
        4_000,
        (),
        ("--number", "5", "--prompt", "Fix "),
        ("Add t", "--history", "Add tests", "--history", "Fix a typo"),
        ("Fix a typo in the docs", "Add a test of the parser", "Merge branch 'next'"),
    ),
)


def factorcell(*arguments: str) -> str:
    """Run a command and return its output."""
    return python("-m", "factorcell", *arguments)


def python(*arguments: str) -> str:
    """Run Python with this checkout's package and one thread, and return its output."""
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run([sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True)
    if process.returncode:
        sys.exit(process.stderr)
    return process.stdout


def digest(content: str | bytes) -> str:
    """Return the first half of a SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:32]


def texts_without_options(output: str) -> str:
    """Return rows of generated texts without their options."""
    rows = [json.loads(line) for line in output.splitlines()]
    return json.dumps([{name: row[name] for name in row if name != "options"} for row in rows])


def log_rows(path: Path) -> list[dict[str, Any]]:
    """Return the log of a training without the values that depend on its speed."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def figures(recipe: Recipe, data: Path, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each result of a run of `recipe`."""
    train, dev, run = folder / "train.parquet", folder / "dev.parquet", folder / "run"
    pq.write_table(pq.read_table(data / recipe.data / "train.parquet").slice(0, recipe.rows), train)
    pq.write_table(pq.read_table(data / recipe.data / "dev.parquet").slice(0, DEV_TEXTS), dev)
    config = ROOT / "experiments" / f"{recipe.name}.toml"
    paths = (str(train), "--dev", str(dev), "--config", str(config), "--out", str(run))
    factorcell("train", *paths, "--epochs", "1", "--threads", "1", "--precision", "float32")
    log = log_rows(run / "log.jsonl")
    yield "steps", log[-1]["steps"]
    assert log[-1]["steps"] >= STEPS, f"{recipe.name}: {log[-1]['steps']} steps"
    yield "log", digest(json.dumps(log))
    yield "development perplexity", log[-1]["perplexity"]
    tensors = sorted(load_file(run / "weights.safetensors").items())
    yield "weights", digest("".join(sorted(digest(tensor.tobytes()) for _, tensor in tensors)))
    common = ("--threads", "1", "--unknown", "group", "--json", "--precision", "float32")
    yield "scores", digest(factorcell("score", str(run), str(dev), "--tokens", *common))
    if recipe.classify:
        output = factorcell(
            "classify", str(run), str(dev), *recipe.classify, "--out", str(folder / "rows.jsonl"), *common
        )
        rows = (folder / "rows.jsonl").read_text(encoding="utf-8")
        yield "classification", digest(output + rows)
    yield "generated texts", digest(texts_without_options(factorcell("generate", str(run), *recipe.generate, *common)))
    if recipe.complete:
        yield "completions", digest(factorcell("complete", str(run), *recipe.complete, *common))
    if recipe.learn:
        yield "an online user", digest(python("-c", ONLINE, str(run), *recipe.learn))


def machine() -> dict[str, Any]:
    """Return the properties of the machine that figures depend on."""
    model = python("-c", "import torch; print(torch.__version__, torch.backends.cpu.get_cpu_capability())")
    return {"processor": f"{platform.machine()} {processor()}", "torch": model.strip()}


def processor() -> str:
    """Return the name of the processor on Linux, elsewhere an empty string."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def main() -> None:
    """Compute all figures; write them, or compare them with a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the figures of this file")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {"machine": machine()}
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            results[recipe.name] = dict(figures(recipe, arguments.data, Path(folder)))
        print(recipe.name, json.dumps(results[recipe.name], indent=1), flush=True)
    if arguments.write:
        arguments.write.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.against:
        expected = json.loads(arguments.against.read_text(encoding="utf-8"))
        different = [
            f"{name}: {key}" for name, row in expected.items() for key in row if results[name].get(key) != row[key]
        ]
        print("all equal" if not different else "different: " + "; ".join(different))
        sys.exit(bool(different))


if __name__ == "__main__":
    main()
