"""The tables of the papers from canned rows: what is known of a row stands in its line, no order is of chance."""

import itertools
import re
import tomllib
from typing import Any

import numpy as np
import pytest

import study
import tables
import tacl
import tacl_baselines
import thesis_sparse
from factorcell.evaluation.text_figures import TextSums
from pages import beside, overview, results
from pages.results import Orders, Results
from thesis_sixteen import WHOLE

PUBLISHED: dict[str, Any] = tomllib.loads((study.HERE / "published.toml").read_text(encoding="utf-8"))
TEXTS = 400


def row(name: str, known: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    """A finished row; its texts are as hard in every row, its perplexities a little off `known` and `known` + 1."""
    random = np.random.default_rng(seed)
    below = np.random.default_rng(99).integers(10, 30, size=TEXTS).astype(float)
    hard = np.random.default_rng(98).normal(0, 0.2, size=TEXTS)
    hard -= (hard * below).sum() / below.sum()
    figures = {}
    for key, value in (("perplexity", known + 1), ("perplexity_known", known)):
        figures[key] = TextSums("k", below * (np.log(value) + hard + random.normal(0, 0.01, TEXTS)), below)
    for key in {"accuracy", "classifier_accuracy"} & more.keys():
        right = np.arange(TEXTS) < TEXTS * more[key]
        figures[key] = TextSums("a", right.astype(float), np.ones(TEXTS))
    sums = {key: study.grouped(value) for key, value in figures.items()}
    return {"row": name, "seed": seed, "perplexity": known + 1, "perplexity_known": known, "sums": sums, **more}


def seeds(name: str, *known: float, **more: Any) -> list[dict[str, Any]]:
    """A row for each seed."""
    return [row(name, value, seed, **more) for seed, value in enumerate(known)]


def cells(table: str) -> list[list[str]]:
    """The cells of the lines of the first table of a page, without its heading."""
    lines = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]


def by_name(table: str, columns: int = 1) -> dict[str, list[str]]:
    """Line -> its further cells, after `columns` that name it."""
    return {"".join(line[:columns]): line[columns:] for line in cells(table)}


# ---- what rows say together ----


def test_means_over_seeds() -> None:
    """Geometric ones of perplexities, plain ones of what no texts are kept of; deviations of several seeds alone."""
    rows = [
        *seeds("unadapted", 40.0, 90.0),
        *seeds("hash", 30.0),
        row("x", 20.0, top_3=0.25, said_new=40.0),
        row("x", 20.0, 1, top_3=0.5, said_new=90.0),
    ]
    found = Results.of(rows)
    assert found.row("unadapted")["perplexity_known"] == pytest.approx(60.0)
    assert found.shown("unadapted", "perplexity_known") == "60.00 ± 35.36"
    assert found.shown("hash", "perplexity_known") == "30.00"
    assert found.shown("x", "top_3", ".1f", 100.0) == "37.5 ± 17.7"
    assert found.shown("x", "said_new") == "60.00 ± 35.36"
    assert (found.shown("hash", "top_3"), found.shown("none", "perplexity"), found.gain("none")) == ("", "", "")
    assert "x" in found
    assert "none" not in found


def test_a_gain_is_over_the_first_row_and_has_an_interval() -> None:
    """Whatever the order in the file; of several seeds it is wider, as they spread."""
    one = Results.of([row("hash", 30.0), row("unadapted", 40.0)])
    three = Results.of([*seeds("hash", 28.0, 30.0, 32.0), *seeds("unadapted", 40.0, 38.0, 42.0)])
    assert one.gain("unadapted") == ""
    assert one.gain("hash").startswith("+25.0% [+2")
    ends = [found.row("hash") for found in (one, three)]
    widths = [end["gain_known_high"] - end["gain_known_low"] for end in ends]
    assert 0 < widths[0] < 0.01
    assert widths[1] > 0.05
    assert Results.of([row("unadapted", 40.0), row("hash", 40.0, 1)]).gain("hash").endswith("no difference")


def test_only_what_is_better_beyond_chance_is_bold() -> None:
    found = Results.of([*seeds("a", 30.0, 30.1), *seeds("unadapted", 40.0, 40.1)])
    assert found.shown("a", "perplexity_known").startswith("**30.05")
    near = Results.of([*seeds("a", 30.0, 31.1), *seeds("unadapted", 30.5, 30.6)])
    assert "**" not in near.shown("a", "perplexity_known") + near.shown("unadapted", "perplexity_known")


def test_orders_are_those_of_pairs_that_differ() -> None:
    """Of a, b, c, where b and c are alike: two pairs, of which the printed order has one; of equal ones none."""
    rows = [*seeds("a", 30.0, 30.1), *seeds("b", 40.0, 41.0), *seeds("c", 40.2, 40.9)]
    found = Results.of(rows, "a")
    told = found.orders("perplexity_known", {"a": 2.0, "b": 3.0, "c": 1.0})
    assert (told.printed, told.sure, told.differ, told.same, told.lacking) == (3, 2, 2, 1, 3)
    sure = "of 3 pairs told apart in print 2 differ here beyond chance"
    assert str(told) == f"{sure}; of all 2 that do 1 stand as printed.\n"
    assert found.orders("perplexity_known", {"a": 2.0}).printed == 0
    assert found.orders("accuracy", {"a": 20.0, "b": 10.0}).sure == 0
    assert found.orders("perplexity_known", {"x": 2.0, "y": 3.0}, {"x": "a", "y": "b"}).same == 1
    assert found.orders("perplexity_known", {"x": 2.0, "y": 3.0}, {"x": "a"}).sure == 0


def test_what_is_close_in_print_counts_where_it_differs_here() -> None:
    """It is not asked for, but for or against the printed order; equal figures have none."""
    found = Results.of([*seeds("a", 30.0, 30.1), *seeds("b", 40.0, 41.0), *seeds("c", 40.2, 40.9)], "a")
    near = found.orders("perplexity_known", {"a": 2.0, "b": 3.0, "c": 2.019})
    assert (near.printed, near.sure, near.differ, near.same) == (2, 1, 2, 2)
    turned = found.orders("perplexity_known", {"a": 2.0, "b": 3.0, "c": 1.981})
    assert (turned.printed, turned.sure, turned.differ, turned.same) == (2, 1, 2, 1)
    equal = found.orders("perplexity_known", {"a": 2.0, "b": 3.0, "c": 2.0})
    assert (equal.sure, equal.differ, equal.same) == (1, 1, 1)


def test_more_is_better_of_accuracies() -> None:
    """The printed order of accuracies is that of the larger one; a point is too little to be one."""
    found = Results.of([row("a", 9.0, accuracy=0.9), row("b", 9.0, accuracy=0.4)], "a")
    assert found.orders("accuracy", {"a": 80.0, "b": 50.0}).same == 1
    assert found.orders("accuracy", {"a": 50.0, "b": 80.0}).same == 0
    close = found.orders("accuracy", {"a": 50.0, "b": 50.9})
    assert (close.printed, close.differ, close.same) == (0, 1, 0)


@pytest.mark.parametrize(
    ("counts", "verdict", "why"),
    [
        ((6, 4, 4, 4, 0), "agrees", "4 of 4 as printed"),
        ((6, 4, 4, 2, 0), "disagrees", "2 of 4 as printed"),
        ((6, 4, 5, 4, 0), "disagrees", "4 of 5 as printed"),
        ((6, 3, 3, 3, 0), "cannot be told", "3 of 6 differ"),
        ((100, 60, 60, 57, 0), "agrees", "57 of 60 as printed"),
        ((100, 60, 60, 56, 0), "disagrees", "56 of 60 as printed"),
        ((7, 3, 9, 9, 0), "cannot be told", "3 of 7 differ"),
        ((0, 0, 0, 0, 0), "cannot be told", "0 of 0 differ"),
        ((6, 6, 6, 6, 1), "cannot be told", "1 row lacking"),
    ],
)
def test_verdicts_follow_from_pairs(counts: tuple[int, int, int, int, int], verdict: str, why: str) -> None:
    orders = Orders(*counts)
    assert (orders.verdict, orders.why) == (verdict, why)


def test_dev_is_what_rows_are_chosen_by() -> None:
    rows = [row("x", 1.0, seed, dev={"perplexity_known": value}) for seed, value in enumerate((4.0, 9.0))]
    assert Results.of(rows).dev("x") == pytest.approx(6.0)


# ---- the tables ----


def test_four_models_beside_those_of_the_paper() -> None:
    rows = [row("unadapted", 100.0, parameters=1234), row("factorcell", 90.0, accuracy=0.905, parameters=5678)]
    lines = by_name(beside.four(Results.of(rows), PUBLISHED["tacl"]["AgNews"]))
    assert list(lines) == ["unadapted", "softmaxbias", "concatcell", "factorcell", *tacl_baselines.ROWS]
    assert lines["unadapted"] == ["1,234", "101.00", "100.00", "", "", "", "96.20", "", ""]
    assert lines["softmaxbias"] == ["", "", "", "", "", "", "95.10", "1.1%", "90.6"]
    assert lines["factorcell"][:3] == ["5,678", "**91.00**", "**90.00**"]
    assert lines["factorcell"][3].startswith("+10.0% [")
    assert lines["factorcell"][4:] == ["90.5", "", "92.30", "4.1%", "90.6"]
    assert "six cities" not in beside.four(Results.of(rows), PUBLISHED["tacl"]["AgNews"])
    for one in rows:
        one["sums"]["accuracy_printed_cities"] = {"key": "c", "above": [1.0, 2.0], "below": [3.0, 2.0]}
        one["accuracy_printed_cities"] = 0.6
    text = beside.four(Results.of(rows), PUBLISHED["tacl"]["AgNews"])
    assert text.endswith(
        "Of 5 texts near one of the paper's six cities these are told:\nunadapted 60.0 %, factorcell 60.0 %.\n"
    )


def test_every_perplexity_has_its_unit_and_its_targets_in_its_head() -> None:
    """In all tables, of what is trained and of what is not; characters where the models read characters."""
    made = tables.of_papers(study.HERE / "results")
    heads = {name: [line for line in text.splitlines() if line.startswith("|")][:1] for name, text in made.items()}
    cells_of = {name: head[0].strip("| ").split(" | ") for name, head in heads.items() if head}
    of_characters = {
        "Table 3.6",
        "Table 5.2",
        "Figure 5.1",
        "TACL, EuroTwitter (languages)",
        "TACL, GeoTwitter (tweets)",
    }
    of_characters |= {"TACL, GeoTwitter (places)", "Beyond, places"}
    of_characters |= {"Beyond, languages", "Beyond, tweets", "Parts as printed, places", "Parts as printed, tweets"}
    for name, head in cells_of.items():
        unit = "character" if name in of_characters else "unit" if name.startswith(("Figures", "Ranks")) else "word"
        counted = (
            "all targets"
            if name.startswith(("Table 3.", "Section A.2", "Parts as printed, speakers"))
            else "known targets"
        )
        assert all(cell.endswith(counted) for cell in head if ": perplexity" in cell or "gain" in cell), name
        for cell in head:
            if "perplexity" in cell or "gain" in cell:
                assert cell.endswith(("all targets", "known targets")), name
            if "perplexity" in cell:
                assert f"perplexity per {unit}, " in cell, name
    assert of_characters <= set(cells_of)
    assert sum("perplexity" in " ".join(head) for head in cells_of.values()) >= 11
    assert set(tacl.SETS) == {name.rpartition("(")[2].rstrip(")") for name in made if name.startswith("TACL")}
    for name, one in tacl.SETS.items():
        assert (one.unit == "character") == (name in ("languages", "tweets", "places"))


def test_sixteen_rows_beside_those_of_the_thesis() -> None:
    """Its own figures in the last columns, ours in the first; what is missing: empty."""
    rows = [row("unadapted", 40.0), row("hash", 30.0, accuracy=0.25), row(WHOLE, 20.0, accuracy=0.5)]
    text = beside.sixteen(Results.of(rows), PUBLISHED["scotus"], {"accuracy": "accuracy"})
    lines = by_name(text, 4)
    assert len(lines) == 16
    assert lines["NNNN"] == ["41.00", "40.00", "", "", "", "37.30", "", ""]
    assert lines["NNNY"][:2] == ["31.00", "30.00"]
    assert lines["NNNY"][3].startswith("25.0")
    assert lines["NNNY"][4].startswith("-25.0 [")
    assert lines["NNNY"][5:] == ["31.20", "16.4%", "29.6"]
    assert lines["YYYY"][3:] == ["**50.0**", "", "29.40", "21.2%", "31.9"]
    assert lines["YNYN"] == ["", "", "", "", "", "32.30", "13.4%", "24.5"]
    printed = [row[0] for row in PUBLISHED["scotus"].values()]
    apart = sum(abs(a - b) > 0.01 * min(a, b) for a, b in itertools.combinations(printed, 2))
    assert f"Perplexity: of {apart} pairs told apart in print 3 differ here beyond chance; of all 3 " in text
    assert (
        "in print 1 differ here beyond chance; of all 1 that do 1 stand as printed." in text.partition("Accuracy: ")[2]
    )
    both = {"accuracy": "accuracy", "macro_f1": "F1"}
    languages = beside.sixteen(Results.of(rows), PUBLISHED["commonvoice9"], both)
    assert by_name(languages, 4)["NNNY"][6:] == ["6.43", "0.2%", "56.1", "44.0"]
    unprinted = [row("unadapted", 40.0), row("scale+hash", 30.0, auc=0.75)]
    communities = beside.sixteen(Results.of(unprinted), PUBLISHED["reddit_titles"], {"auc": "AUC"})
    assert by_name(communities, 4)["YNNY"][3:] == ["75.0", "", "", ""], "ours alone"


def test_variables_take_rows_of_the_other_table() -> None:
    """The unadapted model knows no variable, the one with all adaptations all three."""
    scotus = [row("unadapted", 40.0), row("hash", 33.0), row(WHOLE, 30.0), row("prefix", 37.0), row("linear", 1.0)]
    rows = results.of_variables([row("case+role", 35.0)], scotus)
    lines = by_name(beside.variables(Results.of(rows, "none"), PUBLISHED["variables"]), 3)
    assert len(lines) == 8 + 1
    assert lines["prefix"][1] == "37.00"
    assert lines["NNN"] == ["41.00", "40.00", "", "37.30", ""]
    assert lines["YNY"][1:2] + lines["YNY"][3:] == ["35.00", "30.30", "18.8%"]
    assert lines["YNY"][2].startswith("+12.2% ["), "of all targets, as in chapter 3"
    assert lines["YYY"][1] == "**30.00**"
    assert lines["NYN"] == ["", "", "", "33.60", "9.9%"]


def test_communities_that_gain_most_and_least() -> None:
    """Nine at each end in order of their gains, none twice, none with few titles; those of the thesis once more."""

    def entries(factor: float) -> list[dict[str, Any]]:
        own = [{"value": f"s{n}", "count": 50, "perplexity": 100.0 * (1 - factor * n / 100)} for n in range(30)]
        own.append({"value": "few", "count": 49, "perplexity": 100 * (1 - factor * 0.9)})
        return [*own, {"value": "nba", "count": 60, "perplexity": 100 * (1 - factor * 0.145)}]

    pairs = (("unadapted", 0.0), ("concat+low_rank+hash", 1.0))
    rows = [row(name, 9.0, seed, by=entries(factor), nearest={}) for name, factor in pairs for seed in (0, 1)]
    text = beside.subreddits(Results.of(rows), PUBLISHED["subreddits"])
    assert [line[0] for line in cells(text)] == [f"s{n}" for n in (*range(29, 20, -1), *range(8, -1, -1))]
    assert cells(text)[0] == ["s29", "50", "100.0", "71.0", "29.0%", ""]
    assert "| nba | 60 | 100.0 | 85.5 | 14.5% | 16.4% |" in text
    assert "few" not in text
    assert "Of 31 communities the mean gain is\n+14.5% [" in text
    assert "Not trained yet" in beside.subreddits(Results.of(rows[2:]), PUBLISHED["subreddits"])
    beside_it = [row("prefix", 9.0, by=entries(0.5), nearest={}), row("ngram", 9.0, by=entries(-1.0), nearest={})]
    text = beside.subreddits(Results.of([*rows, *beside_it]), PUBLISHED["subreddits"])
    assert cells(text)[0] == ["s29", "50", "100.0", "71.0", "85.5", "129.0", "29.0%", ""]
    assert re.search(r"\+14.5% .* by concat\+low_rank\+hash,\n\+7.3% .* by prefix,\n-14.5% .* by ngram;\n", text)


def test_the_penalty_that_is_best_on_dev_stands_for_its_kind() -> None:
    """Whatever it has on the test; in the order of the thesis; all trained rows follow."""
    figures = (
        ("none", 50.0, 50.0),
        ("sparse-1", 42.0, 44.0),
        ("sparse-4", 43.0, 43.0),
        ("low_rank_each+sparse-2", 42.0, 42.0),
        ("threshold-0.01", 44.0, 44.0),
    )
    counts = [{"nonzero": 3, "coefficients": 100}, {"nonzero": 3, "coefficients": 400}]
    rows = [
        row(name, test, top_3=0.4, sparse_bias=counts, dev={"perplexity_known": dev}) for name, test, dev in figures
    ]
    text = beside.sparse(Results.of(rows, "none"), PUBLISHED["sparse"])
    lines = by_name(text)
    assert list(lines) == list(PUBLISHED["sparse"])
    assert lines["sparse"][:4] == [", ".join(thesis_sparse.penalties()[3].values()), "", "44.00", "43.00"]
    assert lines["sparse"][5:] == ["40.0", "1.20", "41.40", "5.9%", ""]
    assert lines["low_rank_each+sparse"][:2] == ["1e-6, 1e-6, 1e-6", "24"]
    assert lines["low_rank_each+sparse"][5:] == ["40.0", "1.20", "41.20", "6.4%", "46.35"]
    assert lines["none"] == ["", "", "51.00", "50.00", "", "40.0", "1.20", "44.00", "", ""]
    assert lines["low_rank"] == ["", "", "", "", "", "", "", "41.30", "6.1%", ""]
    assert "| threshold-0.01 |  |  | 45.00 | 44.00 |" in text
    assert "Perplexity: of 4 pairs told apart in print" in text
    assert all(f"| {one['row']} |" in text for one in rows)


def test_every_mechanism_beside_the_others() -> None:
    """A line for each finished row of the experiment in its order; variants stand beside what they vary."""
    own = {"prefix": 150.0, "gru": 1.0, "unadapted": 200.0, "cell gru": 90.0, "concat+low_rank": 100.0}
    rows = [row(name, known, accuracy=0.5, minutes=1.25) for name, known in own.items()]
    found = by_name(beside.mechanisms(Results.of(rows)))
    assert list(found) == ["unadapted", "prefix", "concat+low_rank", "cell gru"]
    assert found["prefix"][:3] == ["unadapted", "151.00", "150.00"]
    assert found["prefix"][3].startswith("+25.")
    assert found["prefix"][4:] == ["50.0", "", "", "1.2"]
    assert found["unadapted"] == ["", "201.00", "200.00", "", "50.0", "", "", "1.2"]
    assert found["cell gru"][0] == "concat+low_rank"
    assert found["cell gru"][3].startswith("+10.")
    alone = by_name(beside.mechanisms(Results.of([row("cell gru", 90.0, minutes=1.25)])))
    assert alone["cell gru"] == ["concat+low_rank", "91.00", "90.00", "", "", "", "", "1.2"]
    counts = [{"variable": "a", "coefficients": 30, "nonzero": 3}, {"variable": "b", "coefficients": 10, "nonzero": 7}]
    sparse = by_name(beside.mechanisms(Results.of([row("sparse", 90.0, minutes=1.25, sparse_bias=counts)])))
    assert sparse["sparse"][-2:] == ["25.0", "1.2"]


# ---- what is said of every table and figure ----


def canned(rows: dict[str, list[dict[str, Any]]]) -> overview.Read:
    """Rows of experiments by their names."""
    return lambda name, base="unadapted": Results.of(rows.get(name, []), base)


def said(rows: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], list[str]]:
    """By where a line is printed and what it is: the rest of it."""
    lines = cells(overview.table(canned(rows), PUBLISHED))
    found = {(line[0], line[1]): line[2:] for line in lines}
    assert len(found) == len(lines)
    return found


def four_models(*known: float, accuracies: tuple[float, ...] = (0.3, 0.6, 0.9)) -> list[dict[str, Any]]:
    """The paper's four models with three seeds each, perplexities a little apart between seeds."""
    names = ("unadapted", "softmaxbias", "concatcell", "factorcell")
    more: list[dict[str, float]] = [{}, *({"accuracy": accuracy} for accuracy in accuracies)]
    every = zip(names, known, more, strict=True)
    return [one for name, value, rest in every for one in seeds(name, value, value * 1.001, value, **rest)]


def test_without_rows_nothing_is_said() -> None:
    """Every table and figure of the thesis has a line, with what is printed, and no verdict but that there is none."""
    found = said({})
    assert {line[2] for line in found.values()} == {"cannot be told"}
    places = {place.split(",")[0] for place, _ in found}
    counts = {1: (1, 1), 2: (1, 1), 3: (1, 9), 4: (7, 5), 5: (3, 5), 6: (4, 5)}
    wanted = {f"F{chapter}.{n}" for chapter, (most, _) in counts.items() for n in range(1, most + 1)}
    wanted |= {f"T{chapter}.{n}" for chapter, (_, most) in counts.items() for n in range(1, most + 1)}
    assert places == wanted | {"3.4.2", "4.3.4", "6.3", "TA.1", "A.2"}
    assert found["T4.3, TACL T3", "agnews for AgNews"] == [
        *("`tacl agnews`", "no row (+4.1%)", "cannot be told", "not trained")
    ]
    assert found["T6.4", "texts that fit stars, films"][1] == "no row (69.5%)"


def test_what_is_said_follows_from_rows() -> None:
    """The printed order of all that differ, its reverse, no differences, too few seeds; accuracies by themselves."""
    key = ("T4.3, TACL T3", "dbpedia for DBPedia")
    told = (key[0], f"{key[1]}, accuracy")
    agreed = said({"tacl_dbpedia": four_models(100.0, 90.0, 80.0, 70.0)})
    assert agreed[key] == ["`tacl dbpedia`", "+30.0% (+14.5%)", "agrees", "6 of 6 as printed"]
    assert agreed[told] == ["`tacl dbpedia`", "90.0% (98.2%)", "agrees", "3 of 3 as printed"]
    turned = said({"tacl_dbpedia": four_models(70.0, 80.0, 90.0, 100.0, accuracies=(0.9, 0.6, 0.3))})
    assert turned[key][2:] == ["disagrees", "0 of 6 as printed, not unadapted and factorcell"]
    assert turned[told][2:] == ["disagrees", "0 of 3 as printed, not softmaxbias and factorcell"]
    alike = said({"tacl_dbpedia": four_models(70.0, 70.0, 70.0, 70.0, accuracies=(0.5, 0.5, 0.5))})
    assert alike[key][1:] == ["+0.0% (+14.5%)", "cannot be told", "0 of 6 differ"]
    assert alike[told][1:] == ["50.0% (98.2%)", "cannot be told", "0 of 2 differ"]
    few = said({"tacl_dbpedia": four_models(100.0, 90.0, 80.0, 70.0)[:-1]})
    assert few[key][2:] == few[told][2:] == ["cannot be told", "1 row lacking"]


def test_communities_agree_by_their_ranks() -> None:
    """Those that gain most in print gain most here, or least."""
    key = ("T3.5, 2017 T5", "gains of communities")
    names = list(PUBLISHED["subreddits"])

    def rows(sign: int) -> list[dict[str, Any]]:
        by = [{"value": name, "count": 60, "perplexity": 100.0 + sign * place} for place, name in enumerate(names)]
        plain = [{**one, "perplexity": 150.0} for one in by]
        pairs = (("unadapted", plain), ("concat+low_rank+hash", by))
        return [row(name, 9.0, seed, by=entries, nearest={}) for name, entries in pairs for seed in range(3)]

    assert said({"subreddits": rows(1)})[key][1:] == ["ranks +1.00", "agrees", "+1.00 to +1.00, 18 communities"]
    assert said({"subreddits": rows(-1)})[key][2] == "disagrees"
    assert said({"subreddits": rows(1)[:-1]})[key][2:] == ["cannot be told", "fewer than 3 seeds"]
