"""Differences of finished rows, and what they say of print: of trainings alone, paired, and of a missing first row."""

import numpy as np
import pytest

import study
from factorcell.bootstrap import Interval
from factorcell.evaluation.statistics import student
from factorcell.evaluation.text_figures import TextSums
from pages import verdicts
from pages.results import Orders, Results
from tests.experiments.test_tables import row, seeds


def test_figures_without_texts_have_orders_by_their_trainings() -> None:
    """Two rows differ where their trainings spread less than they lie apart; fewer than three seeds are lacking."""
    shares = {"hash": (0.60, 0.61, 0.62), "concat": (0.70, 0.71, 0.72), "all": (0.70, 0.715, 0.72)}
    rows = [row(name, 9.0, seed, auc=auc) for name, own in shares.items() for seed, auc in enumerate(own)]
    found, printed = Results.of(rows), {"hash": 70.0, "concat": 76.0, "all": 79.0}
    orders = found.orders_of_trainings("auc", printed)
    assert (orders.printed, orders.sure, orders.differ, orders.same, orders.lacking) == (3, 2, 2, 2, 0)
    turned = found.orders_of_trainings("auc", {"hash": 80.0, "concat": 76.0, "all": 76.5})
    assert (turned.printed, turned.sure, turned.same) == (2, 2, 0)
    assert Results.of(rows[:-1]).orders_of_trainings("auc", printed).lacking == 1
    line = verdicts.by_trainings(verdicts.Line("T3.3", "x"), found, "auc", printed, "concat")
    assert line[3:] == ("71.0%", "76.0%", "agrees", "2 of 2 as printed, all against hash")
    nothing = verdicts.by_trainings(verdicts.Line("T3.3", "x"), Results.of([]), "auc", printed, "concat")
    assert nothing[3:] == ("no row", "76.0%", "cannot be told", "not trained")


def test_without_its_first_row_nothing_is_gained() -> None:
    """What stands first in its place is no yardstick."""
    rows = [*seeds("role", 40.0, 41.0), *seeds("case", 30.0, 31.0)]
    assert Results.of(rows, "role").gain("case").startswith("+2")
    found = Results.of(rows, "none")
    assert found.gain("case") == ""
    assert not [key for key in found.row("case") if key.startswith("gain")]
    assert found.row("case")["perplexity"] == pytest.approx(31.5, abs=0.1)
    assert found.difference("case", "perplexity_known", "role") is not None


def test_trainings_that_went_on_are_paired() -> None:
    """What all trainings gain alike has no spread, however far they lie apart; of other seeds nothing is told."""
    rows = [*seeds("factorcell", 40.0, 50.0, 60.0), *seeds("told", 39.6, 49.5, 59.4)]
    found = Results.of(rows, "factorcell")
    plain, paired = (found.lower("told", "perplexity_known", "factorcell", paired=paired) for paired in (False, True))
    assert plain is not None
    assert paired is not None
    assert plain.point == paired.point == pytest.approx(0.01, abs=1e-3)
    assert (plain.sign, paired.sign) == (0, 1)
    other = Results.of(rows[:-1], "factorcell")
    assert other.lower("told", "perplexity_known", "factorcell", paired=True) is None


def test_the_pair_is_named_that_print_tells_furthest_apart() -> None:
    """Of those the other way round here, where a table disagrees."""
    printed = {"a": 10.0, "b": 11.0, "c": 14.0}
    found = {
        ("a", "b"): Interval(1.0, 0.5, 1.5),
        ("a", "c"): Interval(1.0, 0.5, 1.5),
        ("b", "c"): Interval(-1, -2, -0.5),
    }
    orders = Orders.of("perplexity", printed, found, dict.fromkeys(printed, 3))
    assert (orders.verdict, orders.why) == ("disagrees", "1 of 3 as printed, not a and c")


def test_a_row_that_all_pairs_have_is_named() -> None:
    """Where nothing but it is told apart; of one pair there is none."""
    printed = {"unadapted": 14.0, "a": 11.0, "b": 10.0}
    sure, unsure = Interval(1.0, 0.5, 1.5), Interval(0.1, -0.5, 0.5)

    def why(*known: tuple[str, str]) -> str:
        pairs = [("unadapted", "a"), ("unadapted", "b"), ("a", "b")]
        found = {pair: sure if pair in known else unsure for pair in pairs}
        return Orders.of("perplexity", printed, found, dict.fromkeys(printed, 3)).why

    assert why(("unadapted", "a"), ("unadapted", "b")) == "2 of 2 as printed, all against unadapted"
    assert why(("unadapted", "a"), ("unadapted", "b"), ("a", "b")) == "3 of 3 as printed"
    assert why(("unadapted", "a")) == "1 of 3 differ"


def test_what_is_not_by_chance_has_no_trainings() -> None:
    """In differences and in orders: rows without chance beside others are told apart by the spread of these alone."""
    trained, counted = seeds("a", 30.0, 31.0, 32.0), seeds("n", 33.0, 33.0, 33.0)
    exact = [{**row, "exact": True} for row in counted]
    plain, other = (Results.of([*trained, *rows], "a") for rows in (counted, exact))
    found = [one.lower("a", "perplexity_known", "n") for one in (plain, other)]
    widths = [one.high - one.low for one in found if one is not None and one.low is not None and one.high is not None]
    assert widths[1] > 1.1 * widths[0]  # t of two degrees of freedom for four, times the root of twice the variance
    printed = {"a": 30.0, "n": 33.0}
    assert [one.orders("perplexity_known", printed).sure for one in (plain, other)] == [1, 0]
    alone = Results.of([*trained, exact[0]], "a")
    assert alone.orders("perplexity_known", printed).lacking == 0
    assert Results.of([*trained, counted[0]], "a").orders("perplexity_known", printed).lacking == 1


def test_a_share_has_the_spread_of_both_rows() -> None:
    """That of a ratio by how far its parts spread: the base moves it by the ratio, the row itself by one."""
    base, own = (4.0, 5.0, 6.0), (11.0, 10.0, 9.0)
    targets = np.ones(400)
    rows = [
        {"row": name, "seed": seed, "sums": {"mrr": study.grouped(TextSums("k", value * targets, targets))}}
        for name, values in (("base", base), ("own", own))
        for seed, value in enumerate(values)
    ]
    found = Results.of(rows, "base").above("own", "mrr", "base")
    assert found is not None
    assert found.high is not None
    assert found.point == pytest.approx(1.0)
    spread = student(4) * np.sqrt((np.var(own, ddof=1) / 25 + np.var(base, ddof=1) * (10 / 25) ** 2) / 2 * 2 / 3)
    assert found.high - found.point == pytest.approx(spread)


def test_a_sparse_bias_is_held_against_the_one_beside_it() -> None:
    """No better within one per cent, better beyond it, or neither."""

    def said(better: float, seeds_of: int = 3) -> list[str]:
        known = [40.0, 40.2, 39.9][:seeds_of]
        rows = [*seeds("low_rank_each", *known), *seeds("low_rank_each+sparse", *(one / better for one in known))]
        found = Results.of(rows, "none")
        line = verdicts.no_better(verdicts.Line("TA.1", "x"), found, "low_rank_each", "low_rank_each+sparse")
        return list(line[3:])

    assert said(0.98)[2] == "agrees"
    assert said(1.05)[2] == "disagrees"
    assert said(1.01)[2] == "cannot be told"
    assert said(0.98, 2)[3] == "fewer than 3 seeds"
    for plain, more in (("", ""), ("none", "sparse-2")):
        nothing = verdicts.no_better(verdicts.Line("TA.1", "x"), Results.of([]), plain, more)
        assert nothing[3:] == ("no row", "", "cannot be told", "not trained")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.03, "agrees"),
        (-0.01, 0.009, "disagrees"),
        (-0.01, 0.011, "cannot be told"),
        (-0.02, -0.01, "disagrees"),
        (-0.009, -0.001, "disagrees"),
    ],
)
def test_an_effect_agrees_above_zero_and_disagrees_far_below_print(low: float, high: float, verdict: str) -> None:
    """Print has two per cent, give or take one: an interval that ends below one per cent is no such effect."""
    found = Interval((low + high) / 2, low, high)
    line = verdicts.effect(verdicts.Line("4.3.4", "x"), found, 0.02, 0.01)
    assert (line.verdict, line.why) == (verdict, f"{100 * low:+.1f} to {100 * high:+.1f}")
    less = verdicts.effect(verdicts.Line("F4.4", "x"), Interval(-0.005, -0.009, -0.001), 0.0, 0.01)
    assert less.verdict == "disagrees"  # print says more, without a number
    assert verdicts.effect(verdicts.Line("4.3.4", "x"), Interval(0.5), 0.02, 0.01).verdict == "cannot be told"


def test_what_a_part_gains_is_held_against_print() -> None:
    """Layer normalisation that changes nothing is not what print has; two seeds tell nothing."""
    printed = {"ours": [100.0], "norm": [98.0]}
    same = [*seeds("ours", 40.0, 40.01, 39.99), *seeds("norm", 40.0, 40.01, 39.99)]
    line = verdicts.Line("4.3.4", "x")
    told = verdicts.normalised(line, Results.of(same, "ours"), "norm", "ours", printed)
    assert (told.printed, told.verdict) == ("+2.0%", "disagrees")
    better = [*seeds("ours", 40.0, 40.01, 39.99), *seeds("norm", 39.0, 39.01, 38.99)]
    assert verdicts.normalised(line, Results.of(better, "ours"), "norm", "ours", printed).verdict == "agrees"
    few = Results.of([*seeds("ours", 40.0, 40.1), *seeds("norm", 39.0, 39.1)], "ours")
    assert verdicts.normalised(line, few, "norm", "ours", printed).why == "fewer than 3 seeds"
    assert verdicts.normalised(line, Results.of([], "ours"), "norm", "ours", printed).why == "not trained"
