"""Compare methods that make a frozen base depend on contexts, with equal numbers of trained values.

    python experiments/backbones.py --stages --core-hours 60 --data DATA --out OUT --results experiments/results
    python experiments/backbones.py --stages-gpu --data DATA --out OUT --results experiments/results

backbones.toml has the data sets, the methods and the stages (backbone_stages.py). A row is named "SET STAGE METHOD
RATE"; --only accepts patterns such as "hotels * default *". RESULTS/backbones.jsonl gets a line for each finished
training; the same command resumes after a stop. --list prints the rows that remain.
"""

import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import backbone_stages
import study
from backbone_parts import StagedSet
from backbone_pretrained import StagedMethod
from backbone_stages import Limits, Plan, Stage
from study import EXPERIMENTS_FOLDER

SPEC = tomllib.loads((EXPERIMENTS_FOLDER / "backbones.toml").read_text(encoding="utf-8"))


def as_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


PLAN = Plan(
    {name: StagedSet(**as_tuples(values)) for name, values in SPEC["staged_sets"].items()},
    {name: StagedMethod(**as_tuples(values)) for name, values in SPEC["staged_methods"].items()},
    {name: Stage(**values) for name, values in SPEC["stages"].items()},
)


def main(argv: Sequence[str]) -> int:
    parser = study.parser("Compare methods that make a frozen base depend on contexts.")
    group = parser.add_mutually_exclusive_group(required=True)
    for name, text in {"stages": "rows for a processor", "stages-gpu": "rows for a GPU"}.items():
        group.add_argument(f"--{name}", dest="plan", action="store_const", const=name, help=text)
    parser.add_argument("--core-hours", type=float, default=60, help="of all finished rows together")
    parser.add_argument("--list", action="store_true", help="print the rows that remain")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # about the tables, such as unseen users
    results = options.results or options.out
    folders = options.data, options.out, results
    selected = backbone_stages.experiment(PLAN)
    job = study.Job(selected, *folders, (), options.threads, 1, options.trial, (__file__, *argv))
    torch.set_num_threads(options.threads)
    results.mkdir(parents=True, exist_ok=True)
    limits = Limits(options.plan, options.core_hours, options.only or (), options.seeds or ())
    return backbone_stages.make_rows(selected, job, limits, options.list)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
