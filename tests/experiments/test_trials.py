"""Models of random sizes: the same draws everywhere, and figures that follow from the law which made the rows."""

import re
import tomllib
from typing import Any

import numpy as np
import pytest

import draws
import study
import tacl
import tacl_trials
from factorcell import bootstrap
from factorcell.bootstrap import Interval
from factorcell.evaluation.statistics import correlation
from factorcell.evaluation.text_figures import TextSums
from pages import correlations, overview, trials, verdicts
from pages.results import Results


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


def test_what_a_rank_is_worth() -> None:
    """Without noise the law itself: exp(20 x rank) less perplexity, and as many weights as give the same."""
    found = trials.effects(rows(size=-0.1, rank=-0.003))
    saved = found[trials.RANKED].saved
    assert saved.point == pytest.approx(1 - np.exp(-0.06))
    assert saved.low == pytest.approx(saved.high)
    assert found[trials.LARGER].saved.point == pytest.approx(1 - 2**-0.1)
    assert found[trials.LONGER].saved.point == pytest.approx(0.0, abs=1e-9)
    assert trials.weights(found) == pytest.approx(trials.WEIGHTS * np.exp(0.6))
    assert trials.weights(trials.effects(rows(size=0.1, rank=-0.003))) is None
    assert trials.weights(trials.effects(rows(size=-0.1, rank=0.003))) is None
    assert trials.effects(rows(-0.1, -0.003)[:6]) == {}


def test_what_each_value_of_its_own_is_worth() -> None:
    """In accuracy and in perplexity, whatever ranks and contexts bring; nothing where no trial has such a bias."""
    made = rows(size=-0.1, rank=-0.003, slope=0.0)
    for row in made:
        longer = np.log2(row["config"]["model"]["context_size"])
        row["accuracy"] += 0.04 * trials.one_hot(row) + 0.001 * trials.model_rank(row) - 0.02 * longer
        row["perplexity_known"] *= float(np.exp(-0.01 * trials.one_hot(row)))
    found = trials.effects(made)
    assert found[trials.RANKED].told.point == pytest.approx(0.02)
    assert found[trials.EACH].told.point == pytest.approx(0.04)
    assert found[trials.LONGER].told.point == pytest.approx(-0.02)
    assert found[trials.LARGER].told.point == pytest.approx(0.0, abs=1e-9)
    assert found[trials.EACH].saved.point == pytest.approx(1 - np.exp(-0.01))
    plain = [row for row in made if not trials.one_hot(row)]
    assert trials.EACH not in trials.effects(plain)
    assert trials.RANKED in trials.effects(plain)


def test_lines_of_what_sizes_bring() -> None:
    """One set tells its point; of several all have to be told as printed, and more the other way disagree."""

    def said(sign: int, *ranks: float) -> list[str]:
        sets = {f"set {rank}": trials.effects(rows(size=-0.1, rank=rank, noise=0.01)) for rank in ranks}
        line = verdicts.Line("4.3.4", "x", printed="less")
        return list(verdicts.brought(line, sets, trials.RANKED, "saved", sign)[3:])

    assert said(1, -0.003)[0].startswith("+5.")
    assert said(1, -0.003)[2] == "agrees"
    assert re.fullmatch(r"\+\d\.\d to \+\d\.\d", said(1, -0.003)[3])
    assert said(-1, -0.003)[2] == "disagrees"
    assert said(1, -0.003, -0.006)[::2] == ["beyond chance on 2 of 2", "agrees"]
    assert said(1, -0.003, 0.0)[::2] == ["beyond chance on 1 of 2", "cannot be told"]
    assert said(1, -0.003, 0.003)[::2] == ["beyond chance on 2 of 2", "cannot be told"]
    assert said(-1, -0.003, 0.0)[2] == "disagrees"
    assert said(1, 0.0, 0.00001)[2:] == ["cannot be told", "none"]
    assert said(0, 0.0, 0.00001)[2] == "cannot be told"
    assert said(0, -0.003, 0.0)[2] == said(0, -0.003, 0.003)[2] == "disagrees"
    assert said(1, -0.003, 0.0)[3].startswith("set -0.003 +5.")
    missing = {name: trials.effects(made) for name, made in (("one", rows(-0.1, -0.003)), ("other", []))}
    line = verdicts.brought(verdicts.Line("4.3.4", "x"), missing, trials.RANKED, "saved")
    assert line[3:] == ("no row", "", "cannot be told", "not trained")


def test_trials_of_one_draw_are_drawn_together() -> None:
    """As many of each number as of every other class; so twins make nothing surer."""
    made = rows(size=-0.1, rank=-0.003, noise=0.02)
    counts = trials.drawn_again(made, 50)
    assert counts.shape == (51, len(made))
    numbers = [trials.number_of(row) for row in made]
    for number in set(numbers):
        own = counts[:, [place for place, one in enumerate(numbers) if one == number]]
        assert (own == own[:, :1]).all()
    assert (counts.sum(axis=1) == len(made)).all()
    assert (counts[0] == 1).all()


def test_correlations_of_trials_that_share_draws() -> None:
    """The r of all; its interval is that of one class where the others are its twins, and Fisher's of one class."""
    own = trials.of_class(rows(-0.1, 0.0, noise=0.02), "softmaxbias")
    random = np.random.default_rng(2)
    first, second = random.normal(size=(2, len(own)))
    second += first
    plain = trials.correlated(first.tolist(), second.tolist(), own)
    assert plain == correlation(first.tolist(), second.tolist())
    twins = [{**row, "row": row["row"].replace("softmaxbias", model)} for model in ("a", "b", "c") for row in own]
    found = trials.correlated(np.tile(first, 3).tolist(), np.tile(second, 3).tolist(), twins)
    assert found["n"] == 3 * len(own)
    assert found["r"] == pytest.approx(plain["r"])
    counts = bootstrap.counts(len(own), trials.DRAWS)
    alone = correlations.resampled(first.tolist(), second.tolist(), counts)
    assert (found["low"], found["high"]) == pytest.approx((alone["low"], alone["high"]))
    drawn = [np.cov(first, second, fweights=counted.astype(int)) for counted in counts[1:]]
    ends = np.quantile([one[0, 1] / np.sqrt(one[0, 0] * one[1, 1]) for one in drawn], (0.025, 0.975))
    assert (alone["low"], alone["high"]) == pytest.approx(tuple(ends))
    assert correlations.resampled([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], np.ones((2, 3)))["r"] is None


def test_what_a_rank_is_worth_is_told_from_all_else_that_is_drawn() -> None:
    """Dropout, context size and the kind of bias may move perplexities as they like: the law of the rank is found."""
    made = rows(size=-0.1, rank=-0.003)
    for row in made:
        model = row["config"]["model"]
        moved = model["dropout_recurrent"] - 0.1 * np.log(model["context_size"])
        row["perplexity_known"] *= float(np.exp(moved + 0.2 * ("one_hot" in model["output_bias"])))
    found = trials.effects(made)
    assert found[trials.RANKED].saved.point == pytest.approx(1 - np.exp(-0.06))
    assert trials.weights(found) == pytest.approx(trials.WEIGHTS * np.exp(0.6))


def test_draws_are_even() -> None:
    """A number in each part of each range; columns hardly correlate; the same every time, and ranges in logarithms."""
    points = draws.evenly(14, "abcdef")
    columns = np.array([list(point.values()) for point in points])
    assert (np.sort((columns * 14).astype(int), axis=0) == np.arange(14)[:, None]).all()
    assert np.abs(np.corrcoef(columns, rowvar=False) - np.eye(6)).max() < 0.3
    assert draws.evenly(14, "abcdef") == points
    assert [draws.size((2, 32), point) for point in (0.0, 0.5, 1.0)] == pytest.approx([2, 8, 32])


def test_noise_widens_the_interval() -> None:
    """It holds the law, and nothing where the rank is worth nothing."""
    saved = trials.effects(rows(size=-0.1, rank=-0.003, noise=0.02))[trials.RANKED].saved
    assert saved.low is not None
    assert saved.high is not None
    assert saved.low < 1 - np.exp(-0.06) < saved.high
    assert saved.sign == 1
    assert trials.effects(rows(size=-0.1, rank=0.0, noise=0.02))[trials.RANKED].saved.sign == 0


def test_lines_of_figures() -> None:
    """What is said of figures 4.2 and 4.5 follows from correlations and slopes."""

    def said(**sets: list[dict[str, Any]]) -> dict[str, list[str]]:
        printed = tomllib.loads((study.HERE / "published.toml").read_text(encoding="utf-8"))
        found = overview.lines(lambda name, base="": Results.of(sets.get(name, []), base), printed)
        return {line.where.split(",")[0]: list(line[3:]) for line in found if line.where.startswith("F4")}

    better = rows(-0.1, -0.003, noise=0.02)
    names = [f"tacl_trials_{name}" for name in overview.OPPOSED]
    assert said()["F4.5"] == ["no row", "+5.0%", "cannot be told", "not trained"]
    assert said(tacl_trials_dbpedia=better)["F4.5"][2] == "agrees"
    assert said(tacl_trials_dbpedia=rows(-0.1, 0.003, noise=0.02))["F4.5"][2] == "disagrees"
    assert said(tacl_trials_dbpedia=better)["F4.2"][2] == "cannot be told"
    assert said(**dict.fromkeys(names, better))["F4.2"] == [
        "r -1.00",
        "above zero",
        "disagrees",
        "-1.00 to -1.00, 42 models",
    ]
    opposed = rows(-0.1, -0.003, noise=0.02, slope=0.5)
    assert said(**dict.fromkeys(names, opposed))["F4.2"][2] == "agrees"
    chance = [{**row, "accuracy": value} for row, value in zip(better, np.tile([0.1, 0.2, 0.2], 14), strict=True)]
    assert said(**dict.fromkeys(names, chance))["F4.2"][2:] == ["cannot be told", "all alike"]
    random = np.random.default_rng(0)
    mixed = [{**row, "accuracy": value} for row, value in zip(better, random.random(42), strict=True)]
    assert said(**dict.fromkeys(names, mixed))["F4.2"][2] == "cannot be told"


def told_apart(accuracies: dict[str, float], perplexities: dict[str, float]) -> list[dict[str, Any]]:
    """Trials with figures of texts."""
    made = []
    for name in accuracies:
        right = np.random.default_rng(0).random(2000) < accuracies[name]
        nats = np.full(2000, 10 * np.log(perplexities[name]))
        sums = {"accuracy": TextSums("a", right.astype(float), np.ones(2000))}
        sums["perplexity_known"] = TextSums("k", nats, np.full(2000, 10.0))
        made.append({"row": name, "seed": 0, "sums": {key: study.grouped(one) for key, one in sums.items()}})
    return made


def test_what_is_traded_for_accuracy() -> None:
    """The one chosen by accuracy is held against the one chosen by perplexity, by texts that chose neither."""
    names = [f"softmaxbias {n:02}" for n in range(12)]
    accuracies = {name: 0.5 + 0.03 * n for n, name in enumerate(names)}
    hard = {name: 10.0 + n for n, name in enumerate(names)}
    found = trials.traded(told_apart(accuracies, hard))
    assert found is not None
    assert found.sign == 1
    assert found.point == pytest.approx(0.33, abs=0.05)
    line = verdicts.Line("F4.4", "x")
    told = verdicts.traded(line, told_apart(accuracies, hard), 0.017)
    assert told.verdict == "agrees"
    assert told.ours == f"{100 * found.point:+.1f} points"
    easy = {name: 30.0 - n for n, name in enumerate(names)}
    assert trials.traded(told_apart(accuracies, easy)) == (0.0, 0.0, 0.0)  # it is the same model
    assert verdicts.traded(line, told_apart(accuracies, easy), 0.017).verdict == "disagrees"
    assert verdicts.traded(line, told_apart(accuracies, easy), 0.009).verdict == "cannot be told"
    few = told_apart(dict.fromkeys(names[:9], 0.5), hard)
    assert verdicts.traded(line, few, 0.017)[3:] == ("no row", "", "cannot be told", "not trained")


def test_halves_of_texts_share_none() -> None:
    """Every group is in one of them."""
    sums = TextSums("k", np.arange(7.0), np.arange(7.0) + 1)
    even, odd = trials.halved(sums)
    assert (even.above.tolist(), odd.above.tolist()) == ([0, 2, 4, 6], [1, 3, 5])
    assert even.below.sum() + odd.below.sum() == sums.below.sum()


def test_correlations_within_groups() -> None:
    """That of what is left when an indicator of every group is fitted; groups of other means alone say nothing."""
    random = np.random.default_rng(1)
    groups = np.repeat([0, 1, 2], 10)
    first, second = random.normal(size=(2, 30)) + 5 * groups
    indicators = np.eye(3)[groups]
    left = [one - indicators @ np.linalg.lstsq(indicators, one, rcond=None)[0] for one in (first, second)]
    found = correlations.within(first.tolist(), second.tolist(), groups.tolist())
    assert found["r"] == pytest.approx(np.corrcoef(*left)[0, 1])
    assert found["n"] == 30
    assert np.arctanh(found["high"]) - np.arctanh(found["low"]) == pytest.approx(2 * 1.959964 / np.sqrt(25))
    assert found["low"] < 0 < found["high"]
    assert np.corrcoef(first, second)[0, 1] > 0.9
    assert correlations.within([1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0], "aabb")["r"] is None
    one = correlations.within(first.tolist(), second.tolist(), "a" * 30)
    plain = correlation(first.tolist(), second.tolist())
    assert [one[key] for key in plain] == pytest.approx([plain[key] for key in plain])


def test_correlations_of_sets_together() -> None:
    """The mean of Fisher's z within kinds of biases; sets that are alike make nothing surer, since they share draws."""
    random = np.random.default_rng(3)
    sets = []
    for _ in range(2):
        own = trials.of_class(rows(-0.1, 0.0, noise=0.02), "softmaxbias")
        sets.append(
            [{**row, "accuracy": float(value)} for row, value in zip(own, random.random(len(own)), strict=True)]
        )
    each = [trials.together(one, "softmaxbias")["r"] for one in sets]
    found = trials.across_sets(sets, "softmaxbias")
    assert found["r"] == pytest.approx(np.tanh(np.mean(np.arctanh(each))))
    assert found["n"] == 28
    one, twice = (trials.across_sets([sets[0]] * times, "softmaxbias") for times in (1, 2))
    assert {key: value for key, value in twice.items() if key != "n"} == pytest.approx(
        {key: value for key, value in one.items() if key != "n"}
    )
    assert one["low"] < each[0] < one["high"]
    alike = [{**row, "accuracy": 0.5} for row in sets[0]]
    assert trials.across_sets([sets[1], alike], "softmaxbias")["r"] is None


def test_the_table_of_trials() -> None:
    """The best of each class by perplexity and by accuracy; what ranks bring."""
    found = trials.table({"dbpedia": rows(-0.1, -0.003), "imdb": []})
    lines = [line for line in found.splitlines() if line.startswith("| dbpedia")]
    assert len(lines) == 7
    own = trials.of_class(rows(-0.1, -0.003), "softmaxbias")
    best = min(own, key=lambda row: row["perplexity_known"])
    cells = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert cells[:5] == ["dbpedia", "word", "softmaxbias", "14", "-1.00 [-1.00, -1.00]"]
    assert cells[5:] == [f"{best['perplexity_known']:.2f}", *[f"{100 * best['accuracy']:.1f}"] * 2, cells[5]]
    assert re.search(r"\| dbpedia \| a rank of 20 for 0 \| \+5\.8 \[.*\] \| \+0\.3 \[.*\] \| 218,\d+ \|", found)
    assert "| dbpedia | a bias of each value for one of low rank |" in found
    assert "No row yet" in trials.table({"imdb": []})


def test_what_saves_nothing_is_not_weighed() -> None:
    """Of a rank that may be worth nothing no size says as much, and of one that is no size may."""
    some, nothing = Interval(0.04, 0.01, 0.07), Interval(0.001, -0.016, 0.018)

    def brings(saved: Interval, larger: float) -> list[str]:
        effects = {
            trials.RANKED: trials.Effect(saved, Interval(0.0)),
            trials.LARGER: trials.Effect(Interval(larger), Interval(0.0)),
        }
        return trials.brings("imdb", effects)[0]

    assert brings(some, 0.04)[-1] == "240,000"
    assert brings(some, -0.04)[-1] == "none"
    *_, saved, told, weights = brings(nothing, 0.04)
    assert saved.endswith("no difference")
    assert (told, weights) == ("+0.0", "")
