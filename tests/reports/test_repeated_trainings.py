"""The report of several trainings of a model: with different seeds they share a row, with the same seed they do not."""

import numpy as np

from factorcell.reports import runs
from tests.pages import Page
from tests.reports.test_report import evaluation, two_runs


def test_trainings_of_a_model_share_a_row() -> None:
    plain, adapted = two_runs()
    config = {"model": {"adapt": ()}, "training": {"seed": 0, "rank": 1}}
    trained = {"trained": ["a", 100, "train.csv", None], "config": config}
    others = []
    for seed, perplexity in enumerate((70.0, 76.0, 83.0)):
        training = {"config": {**config, "training": {"seed": seed, "rank": 1}}, "folder": f"runs/a-seed-{seed}"}
        others.append({**plain, **trained, **training, "results": [evaluation(perplexity)]})
    page = Page(runs.run_report([*others, {**adapted, "trained": ["a", 100, "train.csv", None]}]))
    mean = (70.0 * 76.0 * 83.0) ** (1 / 3)
    assert f"{mean:.2f} ± {np.std([70.0, 76.0, 83.0], ddof=1):.2f}" in page.text
    assert "runs/a-seed-0, runs/a-seed-1, runs/a-seed-2" in page.text
    assert "not significant" in page.text
    assert not [cell for cell in page.attributes_of("td") if "best" in str(cell.get("class"))]
    assert "Comparison of 4 runs" in page.text


def test_trainings_with_the_same_seed_have_a_row_each() -> None:
    plain, _ = two_runs()
    trained = {"trained": ["a", 100, "train.csv", None], "config": {"training": {"seed": 0}}}
    trainings = [
        {**plain, **trained, "title": name, "folder": f"runs/{name}", "results": [evaluation(perplexity)]}
        for name, perplexity in (("limited", 70.0), ("repeated", 76.0))
    ]
    page = Page(runs.run_report(trainings))
    assert "70.00" in page.text
    assert "76.00" in page.text
    assert "±" not in page.text
