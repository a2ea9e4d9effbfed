"""Tables and figures from invented rows, and the committed pages, which must match the committed rows."""

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import columns
import figures
import paper_tables
import study
import tables
from aggregate import Rows, interval, number, paired_difference, spread
from factorcell.bootstrap import Interval
from factorcell.errors import UserError
from factorcell.evaluation.text_figures import Ratios, TextSums
from factorcell.io import files
from tests import ROOT

TEXTS = 400


def row(name: str, in_vocabulary: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Return a finished row: texts are equally difficult in every row, perplexities near `in_vocabulary` and + 1."""
    random = np.random.default_rng(seed)
    targets = np.random.default_rng(99).integers(10, 30, size=TEXTS).astype(float)
    difficulty = np.random.default_rng(98).normal(0, 0.2, size=TEXTS)
    difficulty -= (difficulty * targets).sum() / targets.sum()
    sums = {}
    for key, value in (("perplexity", in_vocabulary + 1), ("perplexity_known", in_vocabulary)):
        sums[key] = TextSums("k", targets * (np.log(value) + difficulty + random.normal(0, 0.01, TEXTS)), targets)
    for key in {"accuracy", "specificity", "mrr"} & more.keys():
        sums[key] = TextSums("a", (np.arange(TEXTS) < TEXTS * more[key]).astype(float), np.ones(TEXTS))
    grouped = {key: study.group_sums(value) for key, value in sums.items()}
    return {
        "row": name,
        "seed": seed,
        "perplexity": in_vocabulary + 1,
        "perplexity_known": in_vocabulary,
        "sums": grouped,
        **more,
    }


def rows_of_seeds(name: str, *known: float, **more: Any) -> list[dict[str, Any]]:
    """Return a row for each seed."""
    return [row(name, value, seed, **more) for seed, value in enumerate(known)]


def cells(table: str) -> dict[str, list[str]]:
    """Return the cells of a table: first cell -> other cells."""
    lines = [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in lines[2:]}


def canned_reader(**experiments: Sequence[dict[str, Any]]) -> figures.Read:
    """Return a reader of the given rows."""
    return lambda *names: Rows(row for name in names for row in experiments.get(name, ()))


def table_maker(name: str) -> tables.Maker:
    """Return the function that makes a table of docs/results/tables.md."""
    return tables.pages()[tables.PAPERS_PAGE][name]


# ---- aggregation ----


def test_perplexities_have_geometric_means_and_other_figures_plain_ones() -> None:
    rows = Rows(
        [*rows_of_seeds("a", 40.0, 90.0), row("b", 30.0, top_3=0.25, dev_new=40.0), row("b", 30.0, 1, top_3=0.5)]
    )
    assert rows.mean("a", "perplexity_known") == pytest.approx((60.0, np.std([40, 90], ddof=1)))
    assert rows.mean("b", "top_3") == pytest.approx((0.375, np.std([0.25, 0.5], ddof=1)))
    mean, deviation = rows.mean("b", "dev_new") or (0.0, 0.0)
    assert mean == pytest.approx(40.0)
    assert deviation is None
    assert rows.mean("c", "perplexity") is None
    assert "b" in rows
    assert "c" not in rows
    assert Rows(rows_of_seeds("x", 1.0, 1.0, dev={"perplexity_known": 4.0})).dev_perplexity("x") == pytest.approx(4.0)


def test_differences_have_intervals_that_grow_with_the_spread_of_trainings() -> None:
    narrow = Rows([row("base", 40.0), row("hash", 30.0)]).gain("hash", "perplexity_known", "base")
    wide = Rows([*rows_of_seeds("base", 40.0, 38.0, 42.0), *rows_of_seeds("hash", 28.0, 30.0, 32.0)]).gain(
        "hash", "perplexity_known", "base"
    )
    assert narrow is not None
    assert wide is not None
    assert narrow.point == pytest.approx(0.25, abs=0.01)
    assert narrow.low is not None
    assert narrow.high is not None
    assert wide.low is not None
    assert wide.high is not None
    assert narrow.high - narrow.low < 0.01 < 0.05 < wide.high - wide.low
    assert Rows([row("base", 40.0)]).gain("hash", "perplexity_known", "base") is None


def test_figures_of_the_same_texts_are_compared() -> None:
    rows = Rows([row("a", 9.0, accuracy=0.5, mrr=0.75), row("b", 9.0, accuracy=0.25)])
    more = rows.difference_within("a", "mrr", "accuracy")
    assert more is not None
    assert more.point == pytest.approx(0.25)
    less, above = rows.difference("b", "accuracy", "a"), rows.relative_increase("a", "accuracy", "b")
    assert less is not None
    assert above is not None
    assert less.point == pytest.approx(-0.25)
    assert above.point == pytest.approx(1.0)
    assert rows.difference_within("b", "mrr", "accuracy") is None


def test_only_a_significantly_better_row_is_best() -> None:
    rows = Rows([*rows_of_seeds("a", 30.0, 30.1), *rows_of_seeds("base", 40.0, 40.1)])
    assert rows.best_row("perplexity_known", ["a", "base"], highest=False) == "a"
    near = Rows([*rows_of_seeds("a", 30.0, 31.1), *rows_of_seeds("base", 30.5, 30.6)])
    assert near.best_row("perplexity_known", ["a", "base"], highest=False) is None
    assert rows.best_row("perplexity_known", ["a"], highest=False) is None


def test_numbers_are_formatted() -> None:
    assert number(None) == number(float("nan")) == spread([]) == interval(None) == ""
    assert number(0.256, ".1f", 100.0) == "25.6"
    assert (spread([1.0]), spread([1.0, 2.0])) == ("1.00", "1.50 ± 0.71")
    assert interval(Interval(0.1, 0.05, 0.2)) == "+10.0 [+5.0, +20.0]"
    assert interval(Interval(-0.1)) == "-10.0"
    assert interval({"r": 0.5, "low": 0.25, "high": None}, ".2f", 1.0) == "+0.50"
    assert interval({"r": None, "low": None, "high": None}) == ""


# ---- tables ----


def test_tables_are_put_between_their_marks() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    assert columns.fill_page(page, {"a": "new"}) == "before\n<!-- a -->\n\nnew\n<!-- end of a -->\nafter\n"
    for incomplete_page in ("", "<!-- a -->\n", "<!-- end of a -->"):
        with pytest.raises(UserError, match="expected the marks <!-- a -->"):
            columns.fill_page(incomplete_page, {"a": "new"})


def test_numeric_columns_are_aligned_right() -> None:
    table = columns.markdown(["a", "b", "c"], [["1", "+2 [1, 3]", "x"], ["2", "", "y"]])
    assert table.splitlines()[1] == "| :-- | --: | :-- |"
    assert columns.markdown(["a"], []) == columns.NO_ROWS


def test_models_have_the_figures_of_the_paper() -> None:
    rows = [row("unadapted", 100.0, parameters=1234), row("factorcell", 90.0, accuracy=0.905, parameters=5678)]
    text = table_maker("TACL")(canned_reader(tacl_agnews=rows, tacl_baselines_agnews=[row("ngram", 150.0)]))
    lines = cells(text.replace("| AgNews (agnews) ", ""))
    assert list(lines) == ["unadapted", "factorcell", "ngram"]
    assert lines["unadapted"] == ["1,234", "101.00", "100.00", "", "", "", "", "96.20", "", ""]
    assert lines["factorcell"][:3] == ["5,678", "**91.00**", "**90.00**"]
    assert lines["factorcell"][3].startswith("+10.0 [")
    assert lines["factorcell"][4:] == ["90.5", "", "", "92.30", "4.1", "90.6"]
    assert table_maker("TACL")(canned_reader()) == columns.NO_ROWS


def test_mechanisms_are_compared_with_their_bases() -> None:
    perplexities = {"prefix": 150.0, "unadapted": 200.0, "cell gru": 90.0, "concat+low_rank": 100.0}
    counts = [{"coefficients": 30, "nonzero": 3}, {"coefficients": 10, "nonzero": 7}]
    rows = [row(name, known, accuracy=0.5, sparse_bias=counts) for name, known in perplexities.items()]
    lines = cells(table_maker("Every mechanism")(canned_reader(family=rows)))
    assert lines["prefix"][2].startswith("+25.")
    assert lines["cell gru"][2].startswith("+10.")
    assert lines["unadapted"][2:] == ["", "50.0", "", "25.00"]


def test_communities_are_sorted_by_gain() -> None:
    """Only the largest and smallest gains and communities of the paper are listed."""

    def entries(factor: float) -> list[dict[str, Any]]:
        communities = [{"value": f"s{n}", "count": 50, "perplexity": 100.0 * (1 - factor * n / 100)} for n in range(30)]
        communities.append({"value": "few", "count": 49, "perplexity": 100 * (1 - factor * 0.9)})
        return [*communities, *({"value": name, "count": 60, "perplexity": 85.5} for name in ("nba", "nfl", "pics"))]

    factors = {"unadapted": 0.0, "concat+low_rank+hash": 1.0, "prefix": 0.5, "ngram": -1.0}
    rows = [row(name, 9.0, by=entries(factor), nearest={}) for name, factor in factors.items()]
    text = paper_tables.communities(canned_reader(subreddits=rows))
    lines = cells(text)
    assert list(lines)[:5] == [f"s{n}" for n in range(29, 24, -1)]
    assert {*lines} - {f"s{n}" for n in range(25, 30)} == {"s1", "s0", "nba", "nfl", "pics"}
    assert lines["s29"] == ["100.0", "71.0", "85.5", "129.0", "29.0", ""]
    assert lines["nba"] == ["85.5", "85.5", "85.5", "85.5", "0.0", "16.4"]
    assert "few" not in text
    assert "Mean gain of 33 communities, %:\nconcat+low_rank+hash +13.2 [" in text


def test_completion_systems_have_their_own_rows() -> None:
    rows = [row("unadapted", 9.0, mrr=0.5), row("factor", 9.0, mrr=0.6)]
    for row_of_model, system in zip(rows, ("mpc", "blend"), strict=True):
        row_of_model |= {system: 0.25, f"{system}_seen": 0.5}
        row_of_model["sums"][system] = study.group_sums(
            TextSums("a", (np.arange(TEXTS) < 100).astype(float), np.ones(TEXTS))
        )
    lines = cells(paper_tables.table_5_2(canned_reader(queries=rows)))
    assert lines["mpc"][:4] == ["0.500", "", "0.250", ""]
    assert lines["mpc"][4].startswith("-0.250 [")
    assert lines["factor"][4].startswith("+0.100 [")
    assert lines["unadapted"][-2:] == ["0.267", "0.297"]


def test_real_texts_are_in_the_last_line() -> None:
    real = {"accuracy": 0.5, "deviation": 0.4, "copied_5": 0.1}
    rows = [
        row("unadapted", 9.0, specificity=0.25, real={"accuracy": 0.5}),
        row("factorcell", 9.0, specificity=0.5, real=real),
    ]
    lines = cells(paper_tables.specificity(canned_reader(specificity_imdb=rows), "imdb", "Yelp"))
    assert lines["real texts"] == ["50.0", "", "0.40", "10.0", "", "63.0", "0.44", ""]
    assert lines["factorcell"][1].startswith("+25.0 [")


# ---- pages ----


def test_the_pages_contain_the_tables_of_the_rows() -> None:
    """`make tables` would change neither a table nor a figure."""
    read = tables.reader(study.EXPERIMENTS_FOLDER / "results")
    pictures = figures.pictures(read)
    for page, page_tables in tables.make_tables(read, pictures).items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert columns.fill_page(text, page_tables) == text, f"{page}: run `make tables`"
        assert columns.NO_ROWS not in text
    folder = ROOT / "docs" / "results" / figures.FOLDER
    saved = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*")}
    keys = {picture.file: picture.key() for picture in pictures.values()}
    assert saved.keys() == keys.keys(), "run `make tables`"
    assert all(saved[name].endswith(key) for name, key in keys.items()), "run `make tables`"


def test_every_row_in_tables_toml_exists() -> None:
    read = tables.reader(study.EXPERIMENTS_FOLDER / "results")
    for spec in columns.SPECS["table"]:
        for label, sources in spec.get("sets", {"": spec.get("from", ())}).items():
            rows = columns.gather_rows(read, sources)
            for name in spec.get("rows", ()) if "sets" not in spec else ():
                assert name in rows or spec["name"].startswith("Table 3"), (spec["name"], name)
            for kind, path, *_ in (column for column in spec["columns"] if column[0] in ("paper", "paper_gain")):
                assert columns.figures_of(path.format(*label.split())).keys() <= rows.trainings.keys(), kind


def test_pages_without_marks_or_files_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "pages", lambda: {"tables.md": {"Table 3.4": paper_tables.neighbours}})
    monkeypatch.setattr(tables, "WITH_PICTURES", {})
    monkeypatch.setattr(figures, "pictures", lambda read: {})
    assert tables.main(["--docs", str(tmp_path)]) == 2
    assert "tables.md" in capsys.readouterr().err
    (tmp_path / "tables.md").write_text("no marks")
    assert tables.main(["--docs", str(tmp_path)]) == 2
    assert "<!-- Table 3.4 -->" in capsys.readouterr().err


# ---- figures ----


def ellipse(group: str) -> dict[str, Any]:
    """Return a group of hotels among the embeddings."""
    return {"group": group, "x": 1.0, "y": 2.0, "wide": 3.0, "high": 0.5, "angle": 30.0}


def test_outlines_are_points_of_the_ellipse() -> None:
    points = np.array(figures.outline(ellipse("CA"))) - (1.0, 2.0)
    turn = np.radians(30.0)
    along, across = points @ (np.cos(turn), np.sin(turn)), points @ (-np.sin(turn), np.cos(turn))
    assert (along / 3) ** 2 + (across / 0.5) ** 2 == pytest.approx(1)
    assert points[0].tolist() == pytest.approx(points[-1].tolist())


def test_pictures_are_written_and_old_ones_removed(tmp_path: Path) -> None:
    """A picture is an SVG file that ends with the key of its points."""
    files.write_rows(tmp_path / "tacl_hotels.jsonl", [row("factorcell", 9.0, region={"ellipses": [ellipse("CA")]})])
    pictures = figures.pictures(tables.reader(tmp_path))
    assert list(pictures) == ["4.6"]
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "figure-9.9.svg").write_text("old")
    tables.write_pictures(folder, list(pictures.values()))
    assert [path.name for path in folder.iterdir()] == ["figure-4.6.svg"]
    text = (folder / "figure-4.6.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text.endswith(pictures["4.6"].key())
    other = figures.Panel("", "x", "y", {"CA": [(0.0, 1.0)]})
    assert pictures["4.6"]._replace(panels=[other]).key() != pictures["4.6"].key()


def test_paired_trainings_use_the_variance_of_their_differences() -> None:
    targets, trained, gains = np.full(50, 4.0), (1.0, 2.0, 3.0), (0.1, 0.2, 0.3)
    first = [TextSums("a", targets * (level + gain), targets) for level, gain in zip(trained, gains, strict=True)]
    ratios = Ratios.from_sums([first, [TextSums("a", targets * level, targets) for level in trained]])
    assert ratios is not None
    half_width = 4.3027 * 0.1 / math.sqrt(3)
    assert paired_difference(ratios, 0, 1) == pytest.approx((0.2, 0.2 - half_width, 0.2 + half_width), rel=1e-4)
    assert ratios.difference(0, 1).sign == 0
