"""Peak memory of a training step and of exact scoring with a vocabulary of 90,000 words, each in its own process.

    python benchmarks/memory.py --out memory.jsonl

The whole process counts, including PyTorch's code. The baseline is PyTorch's cross_entropy over all logits at once.
"""

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import speed
import torch
from torch.nn import functional as F

from factorcell.nn.kernels import softmax

WORDS, COUNT = 90_000, 4000
CASES = ("imports", "training step", "exact nats", "exact nats, plain", "exact nats, cross_entropy")


def run_case(case: str) -> None:
    """Run a training step or the scoring that `case` names; "imports" does nothing more."""
    if case == "training step":
        trainer = speed.trainer(speed.texts(5800, 400, 40, WORDS), 40)
        for batch, _ in zip(trainer.batches(), range(3), strict=False):
            trainer.step(batch)
    elif case.startswith("exact nats"):
        os.environ["FACTORCELL_KERNEL"] = "off" if case.endswith("plain") else ""
        values, table, bias = torch.randn(COUNT, 216), torch.randn(WORDS, 216), torch.randn(WORDS)
        targets = torch.from_numpy(np.random.default_rng(0).integers(0, WORDS, COUNT))
        with torch.inference_mode():
            if case.endswith("cross_entropy"):
                F.cross_entropy(torch.addmm(bias, values, table.T), targets)
            else:
                softmax.nats(values, table, bias, targets)


def main() -> None:
    """Measure each case in its own process, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    parser.add_argument("--case", choices=CASES, help="run this case in this process and print its peak memory")
    arguments = parser.parse_args()
    if arguments.case:
        run_case(arguments.case)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    for case in CASES:
        process = subprocess.run([sys.executable, __file__, "--case", case], capture_output=True, text=True, check=True)
        megabytes = int(process.stdout) // 1024
        speed.write_row({"group": "memory", "what": case, "words": WORDS, "megabytes": megabytes}, arguments.out)


if __name__ == "__main__":
    main()
