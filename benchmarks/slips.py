"""How often is a text suggested when a slip was made in what is typed of it: with slips forgiven, and not.

    python benchmarks/slips.py RUN TABLE --counted TRAIN

Prints a JSON object for each way: the share of texts among the first k suggestions, their mean reciprocal rank,
milliseconds. The beginnings are as they should be ("clean") or with one slip ("slipped"), the same ones every time.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from factorcell import Completer, Forgiving, Popularity, Run
from factorcell.completion import Suggestion
from factorcell.slips import Slips
from factorcell.tables import Table, rows_of

LETTERS = "etaoinsrhldcumfpgwybvk"


def slip(prefix: str, chosen: random.Random) -> str:
    """`prefix` with one slip at a random place: a letter too many, too few, a wrong one, two in the wrong order."""
    while True:
        place, letter = chosen.randrange(len(prefix)), chosen.choice(LETTERS)
        before, here, after = prefix[:place], prefix[place], prefix[place + 1 :]
        slipped = chosen.choice(
            [
                before + letter + here + after,
                before + after,
                before + letter + after,
                before + after[:1] + here + after[1:],
            ]
        )
        if slipped != prefix:
            return slipped
