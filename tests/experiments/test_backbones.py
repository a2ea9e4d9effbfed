"""The tables of the study of backbones, from made-up rows, and its adapter."""

import re

import numpy as np
import torch

import backbone_pages
import study
from aggregate import Rows
from backbone_adapters import Hypernetwork
from factorcell.adapters.adapters import LayerSizes
from factorcell.evaluation.text_figures import TextSums


def test_the_hypernetwork_starts_unadapted_and_computes_its_equation() -> None:
    vector = torch.randn(2, 3)
    hypernetwork = Hypernetwork(LayerSizes(context=3, inputs=4, outputs=5, rank=2))
    hypernetwork.start_unadapted()
    start = hypernetwork(vector).right
    assert start is not None
    assert not start.any()
    for parameter in hypernetwork.parameters():
        torch.nn.init.normal_(parameter)
    shift = hypernetwork(vector)
    hidden = torch.tanh(vector @ hypernetwork.hidden)
    torch.testing.assert_close(shift.left, torch.einsum("bh,hdr->bdr", hidden, hypernetwork.factor.left))
    torch.testing.assert_close(shift.right, torch.einsum("bh,hro->bro", hidden, hypernetwork.factor.right))


def test_tables_have_a_line_for_each_method_and_its_interval() -> None:
    """Differences from the model without context have the sign of the figure."""
    random = np.random.default_rng(0)
    sizes = random.integers(20, 60, 50).astype(float)
    rows = []
    for method, level in (("none", 2.0), ("factor", 1.5)):
        bits = TextSums("k", sizes * level + random.normal(0, 1, 50), sizes)
        sums = {"bits_per_byte": study.group_sums(bits)}
        rows.append({"row": f"agnews recurrent {method}", "seed": 0, "sums": sums})
    lines = backbone_pages.TABLES["recurrent"](lambda *_: Rows(rows)).splitlines()[2:]
    unadapted, factor = (line.removeprefix("| agnews | ").split(" | ") for line in lines)
    assert (unadapted[0], factor[0]) == ("none", "factor")
    assert unadapted[1].startswith("2.0")
    assert unadapted[2] == ""
    assert factor[1].startswith("1.5")
    assert factor[2].startswith("-0.")
    assert backbone_pages.TABLES["smollm2"](lambda *_: Rows(rows)) == backbone_pages.NOT_MEASURED


def test_intervals_of_accuracies_end_at_100_per_cent() -> None:
    """With 20 of 20, 19 of 20 and 17 of 20 texts right, the variance of the trainings would widen it beyond."""
    rows = []
    for seed, wrong in enumerate((0, 1, 3)):
        right = TextSums("k", np.repeat([1.0, 0.0], [20 - wrong, wrong]), np.ones(20))
        sums = {"accuracy": study.group_sums(right)}
        rows.append({"row": "agnews recurrent factor", "seed": seed, "sums": sums})
    [line] = backbone_pages.TABLES["recurrent"](lambda *_: Rows(rows)).splitlines()[2:]
    interval = re.search(r"\| 93\.3 \[(.+), (.+)\] \|", line)
    assert interval is not None
    assert 0 < float(interval[1]) < 90
    assert interval[2] == "100.0"


def best_methods_of(levels: list[tuple[str, int, float]]) -> str:
    """Return the cell of the best methods from the method, the seed and the bits per byte of each training."""
    random = np.random.default_rng(0)
    sizes = random.integers(20, 60, 50).astype(float)
    rows = []
    for method, seed, level in levels:
        bits = TextSums("k", sizes * level + random.normal(0, 1, 50), sizes)
        row = {"row": f"agnews recurrent {method}", "seed": seed, "sums": {"bits_per_byte": study.group_sums(bits)}}
        rows.append({**row, "bits_per_byte": level})
    [line] = backbone_pages.best_methods(lambda *_: Rows(rows)).splitlines()[2:]
    return line


def test_best_methods_are_the_lowest_and_those_that_do_not_differ_from_it() -> None:
    line = best_methods_of([("none", 0, 2.0), ("factor", 0, 1.502), ("scale", 0, 1.5)])
    assert line == "| recurrent | `scale`, `factor` |  |  |  |  |"


def test_the_best_method_is_the_lowest_of_the_seeds_that_both_have() -> None:
    """The mean of three seeds of `factor` is higher than the only seed of `scale`, but its first seed is lower."""
    line = best_methods_of([("factor", 0, 1.5), ("factor", 1, 1.7), ("factor", 2, 1.7), ("scale", 0, 1.6)])
    assert line == "| recurrent | `factor` |  |  |  |  |"
