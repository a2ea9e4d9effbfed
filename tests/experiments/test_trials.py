"""Models of random sizes: the same draws everywhere, and figures that follow from the law which made the rows."""

from typing import Any

import numpy as np
import pytest

import draws
import study
import tacl
import tacl_trials


def rows(size: float, rank: float, noise: float = 0.0, slope: float = -0.5) -> list[dict[str, Any]]:
    """Trials of a set whose log perplexity is 5 + size log W + rank r; accuracy follows it with `slope`."""
    random, made = np.random.default_rng(0), []
    for name, options in tacl_trials.experiment("dbpedia").rows.items():
        model = dict(options["model"])
        weights = 3 * (model["embedding_size"] + model["hidden_size"]) * model["hidden_size"]
        ranks = model["rank"] if name.startswith("factorcell") else 0
        logs = 5 + size * np.log(weights) + rank * ranks + noise * random.normal()
        accuracy = 0.5 + slope * (logs - 4) / 10
        row = {"row": name, "seed": 0, "perplexity_known": float(np.exp(logs)), "accuracy": float(accuracy)}
        made.append({**row, "config": {"model": model}, "sums": {}})
    return made


def test_trials_are_drawn_once_and_for_all() -> None:
    """Forty-two models in their ranges, of the same sizes in each class; biases of each value are of few contexts."""
    made = tacl_trials.experiment("agnews").rows
    assert len(made) == 42
    assert len({repr(options["model"]) for options in made.values()}) == 42
    assert dict(made["factorcell 00"]["model"]) == {**tacl_trials.drawn("agnews", "factorcell", 0)["model"]}
    for key, (low, high) in tacl_trials.SIZES.items():
        values = [options["model"][key] for options in made.values()]
        assert low <= min(values) < (low + high) / 3
        assert (low + high) / 2 < max(values) <= high
    for number in range(tacl_trials.TRIALS):
        models = [dict(made[f"{model} {number:02}"]["model"]) for model in tacl_trials.ADAPTED]
        assert len({repr(one | {"adapt": []}) for one in models}) == 1
    kinds = {tuple(options["model"]["output_bias"]) for options in made.values()}
    assert kinds == {("one_hot",), ("low_rank",)}
    many = tacl_trials.experiment("hotels").rows.values()
    assert {tuple(options["model"]["output_bias"]) for options in many} == {("low_rank",)}


@pytest.mark.parametrize("row", tacl_trials.experiment("agnews").rows)
def test_the_library_knows_every_option(row: str) -> None:
    """Over the recipe of the set, what is drawn is what is trained; a class adapts what the paper says."""
    made = tacl_trials.experiment("agnews")
    config = made.config(study.Training(row, 0), 1)
    assert config.model.adapt == tuple(tacl.options(row.split()[0])["model"]["adapt"])
    assert (
        config.to_dict()["model"].items()
        >= {
            key: tuple(value) if isinstance(value, list) else value for key, value in made.rows[row]["model"].items()
        }.items()
    )


@pytest.mark.parametrize("name", tacl.SETS)
def test_the_four_models_of_a_set_differ_in_what_they_adapt_alone(name: str) -> None:
    """Every set has its recipe, in which what is told apart is a context, none is stopped early and one precision."""
    made = tacl.experiment(name)
    configs = [made.config(study.Training(row, 1), 1).to_dict() for row in made.rows]
    assert [config["model"]["adapt"] for config in configs] == [(), (), ("concat",), ("concat", "factor")]
    assert configs[-1]["model"]["rank"] == (tacl.SETS[name].rank or configs[0]["model"]["rank"])
    alike = {"adapt": (), "output_bias": (), "rank": 0}  # a rank is the FactorCell's alone
    rest = [{**one["model"], **alike} | one["data"] | one["training"] for one in configs]
    assert all(one == rest[0] for one in rest)
    target, unit = tacl.SETS[name].target, "char" if tacl.SETS[name].unit == "character" else rest[0]["unit"]
    assert (target if isinstance(target, str) else "lat:number") in rest[0]["context"]
    assert (rest[0]["unit"], rest[0]["patience"]) == (unit, 0)
    assert rest[0]["precision"] != "auto"


def test_draws_are_even() -> None:
    """A number in each part of each range; columns hardly correlate; the same every time, and ranges in logarithms."""
    points = draws.evenly(14, "abcdef")
    columns = np.array([list(point.values()) for point in points])
    assert (np.sort((columns * 14).astype(int), axis=0) == np.arange(14)[:, None]).all()
    assert np.abs(np.corrcoef(columns, rowvar=False) - np.eye(6)).max() < 0.3
    assert draws.evenly(14, "abcdef") == points
    assert [draws.size((2, 32), point) for point in (0.0, 0.5, 1.0)] == pytest.approx([2, 8, 32])
