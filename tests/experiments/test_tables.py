"""Tables and figures: figures of canned rows, and the committed pages, which are those of the committed rows."""

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
from aggregate import Rows, interval, number, spread
from factorcell import files
from factorcell.bootstrap import Interval
from factorcell.config import UserError
from factorcell.evaluation.text_figures import TextSums
from tests import ROOT

TEXTS = 400


def row(name: str, known: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Make a finished row: texts are as hard in every row, the perplexities close to `known` and `known` + 1."""
    random = np.random.default_rng(seed)
    below = np.random.default_rng(99).integers(10, 30, size=TEXTS).astype(float)
    hard = np.random.default_rng(98).normal(0, 0.2, size=TEXTS)
    hard -= (hard * below).sum() / below.sum()
    sums = {}
    for key, value in (("perplexity", known + 1), ("perplexity_known", known)):
        sums[key] = TextSums("k", below * (np.log(value) + hard + random.normal(0, 0.01, TEXTS)), below)
    for key in {"accuracy", "specificity", "mrr"} & more.keys():
        sums[key] = TextSums("a", (np.arange(TEXTS) < TEXTS * more[key]).astype(float), np.ones(TEXTS))
    grouped = {key: study.group_sums(value) for key, value in sums.items()}
    return {"row": name, "seed": seed, "perplexity": known + 1, "perplexity_known": known, "sums": grouped, **more}


def seeds(name: str, *known: float, **more: Any) -> list[dict[str, Any]]:
    """Make a row for each seed."""
    return [row(name, value, seed, **more) for seed, value in enumerate(known)]


def cells(table: str) -> dict[str, list[str]]:
    """Split the lines of a table: first cell -> other cells."""
    lines = [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in lines[2:]}


def reading(**experiments: Sequence[dict[str, Any]]) -> figures.Read:
    """Return a reader of canned rows."""
    return lambda *names: Rows(row for name in names for row in experiments.get(name, ()))


def made(name: str) -> tables.Maker:
    """Return what makes a table of docs/tables.md."""
    return tables.pages()["tables.md"][name]


# ---- aggregation ----


def test_perplexities_have_geometric_means_and_other_figures_plain_ones() -> None:
    rows = Rows([*seeds("a", 40.0, 90.0), row("b", 30.0, top_3=0.25, said_new=40.0), row("b", 30.0, 1, top_3=0.5)])
    assert rows.mean("a", "perplexity_known") == pytest.approx((60.0, np.std([40, 90], ddof=1)))
    assert rows.mean("b", "top_3") == pytest.approx((0.375, np.std([0.25, 0.5], ddof=1)))
    said, deviation = rows.mean("b", "said_new") or (0.0, 0.0)
    assert said == pytest.approx(40.0)
    assert deviation is None
    assert rows.mean("c", "perplexity") is None
    assert "b" in rows
    assert "c" not in rows
    assert Rows(seeds("x", 1.0, 1.0, dev={"perplexity_known": 4.0})).dev("x") == pytest.approx(4.0)


def test_differences_have_intervals_that_grow_with_the_spread_of_trainings() -> None:
    narrow = Rows([row("base", 40.0), row("hash", 30.0)]).lower("hash", "perplexity_known", "base")
    wide = Rows([*seeds("base", 40.0, 38.0, 42.0), *seeds("hash", 28.0, 30.0, 32.0)]).lower(
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
    assert Rows([row("base", 40.0)]).lower("hash", "perplexity_known", "base") is None


def test_figures_of_one_row_are_compared_by_texts() -> None:
    rows = Rows([row("a", 9.0, accuracy=0.5, mrr=0.75), row("b", 9.0, accuracy=0.25)])
    more = rows.within("a", "mrr", "accuracy")
    assert more is not None
    assert more.point == pytest.approx(0.25)
    less, above = rows.difference("b", "accuracy", "a"), rows.above("a", "accuracy", "b")
    assert less is not None
    assert above is not None
    assert less.point == pytest.approx(-0.25)
    assert above.point == pytest.approx(1.0)
    assert rows.within("b", "mrr", "accuracy") is None


def test_only_a_significantly_better_row_is_best() -> None:
    rows = Rows([*seeds("a", 30.0, 30.1), *seeds("base", 40.0, 40.1)])
    assert rows.best("perplexity_known", ["a", "base"], highest=False) == "a"
    near = Rows([*seeds("a", 30.0, 31.1), *seeds("base", 30.5, 30.6)])
    assert near.best("perplexity_known", ["a", "base"], highest=False) is None
    assert rows.best("perplexity_known", ["a"], highest=False) is None


def test_numbers_as_text() -> None:
    assert number(None) == number(float("nan")) == spread([]) == interval(None) == ""
    assert number(0.256, ".1f", 100.0) == "25.6"
    assert (spread([1.0]), spread([1.0, 2.0])) == ("1.00", "1.50 ± 0.71")
    assert interval(Interval(0.1, 0.05, 0.2)) == "+10.0 [+5.0, +20.0]"
    assert interval(Interval(-0.1)) == "-10.0"
    assert interval({"r": 0.5, "low": 0.25, "high": None}, ".2f", 1.0) == "+0.50"
    assert interval({"r": None, "low": None, "high": None}) == ""


# ---- tables ----


def test_a_table_goes_between_its_marks() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    assert columns.fill_page(page, {"a": "new"}) == "before\n<!-- a -->\n\nnew\n<!-- end of a -->\nafter\n"
    for lacking in ("", "<!-- a -->\n", "<!-- end of a -->"):
        with pytest.raises(UserError, match="expected the marks <!-- a -->"):
            columns.fill_page(lacking, {"a": "new"})


def test_numbers_stand_to_the_right() -> None:
    table = columns.markdown(["a", "b", "c"], [["1", "+2 [1, 3]", "x"], ["2", "", "y"]])
    assert table.splitlines()[1] == "| :-- | --: | :-- |"
    assert columns.markdown(["a"], []) == columns.NO_ROWS


def test_the_four_models_next_to_those_of_the_paper() -> None:
    rows = [row("unadapted", 100.0, parameters=1234), row("factorcell", 90.0, accuracy=0.905, parameters=5678)]
    lines = cells(made("TACL, AgNews (agnews)")(reading(tacl_agnews=rows, tacl_baselines_agnews=[row("ngram", 150.0)])))
    assert list(lines) == ["unadapted", "factorcell", "ngram"]
    assert lines["unadapted"] == ["1,234", "101.00", "100.00", "", "", "", "96.20", "", ""]
    assert lines["factorcell"][:3] == ["5,678", "**91.00**", "**90.00**"]
    assert lines["factorcell"][3].startswith("+10.0 [")
    assert lines["factorcell"][4:] == ["90.5", "", "92.30", "4.1", "90.6"]
    assert made("TACL, AgNews (agnews)")(reading()) == columns.NO_ROWS


def test_a_mechanism_is_compared_with_what_it_varies() -> None:
    own = {"prefix": 150.0, "unadapted": 200.0, "cell gru": 90.0, "concat+low_rank": 100.0}
    counts = [{"coefficients": 30, "nonzero": 3}, {"coefficients": 10, "nonzero": 7}]
    rows = [row(name, known, accuracy=0.5, sparse_bias=counts) for name, known in own.items()]
    lines = cells(made("Every mechanism")(reading(family=rows)))
    assert lines["prefix"][2].startswith("+25.")
    assert lines["cell gru"][2].startswith("+10.")
    assert lines["unadapted"][2:] == ["", "50.0", "", "25.00"]


def test_communities_in_the_order_of_their_gains() -> None:
    """The ends and those of the paper; none with few titles."""

    def entries(factor: float) -> list[dict[str, Any]]:
        own = [{"value": f"s{n}", "count": 50, "perplexity": 100.0 * (1 - factor * n / 100)} for n in range(30)]
        own.append({"value": "few", "count": 49, "perplexity": 100 * (1 - factor * 0.9)})
        return [*own, *({"value": name, "count": 60, "perplexity": 85.5} for name in ("nba", "nfl", "pics"))]

    factors = {"unadapted": 0.0, "concat+low_rank+hash": 1.0, "prefix": 0.5, "ngram": -1.0}
    rows = [row(name, 9.0, by=entries(factor), nearest={}) for name, factor in factors.items()]
    text = paper_tables.communities(reading(subreddits=rows))
    lines = cells(text)
    assert list(lines)[:5] == [f"s{n}" for n in range(29, 24, -1)]
    assert {*lines} - {f"s{n}" for n in range(25, 30)} == {"s1", "s0", "nba", "nfl", "pics"}
    assert lines["s29"] == ["100.0", "71.0", "85.5", "129.0", "29.0", ""]
    assert lines["nba"] == ["85.5", "85.5", "85.5", "85.5", "0.0", "16.4"]
    assert "few" not in text
    assert "Mean gain of 33 communities, %:\nconcat+low_rank+hash +13.2 [" in text


def test_a_completing_system_is_a_row_of_its_own() -> None:
    rows = [row("unadapted", 9.0, mrr=0.5), row("factor", 9.0, mrr=0.6)]
    for one, other in zip(rows, ("mpc", "blend"), strict=True):
        one |= {other: 0.25, f"{other}_seen": 0.5}
        one["sums"][other] = study.group_sums(TextSums("a", (np.arange(TEXTS) < 100).astype(float), np.ones(TEXTS)))
    lines = cells(paper_tables.table_5_2(reading(queries=rows)))
    assert lines["mpc"][:4] == ["0.500", "", "0.250", ""]
    assert lines["mpc"][4].startswith("-0.250 [")
    assert lines["factor"][4].startswith("+0.100 [")
    assert lines["unadapted"][-2:] == ["0.267", "0.297"]


def test_real_texts_come_last_with_what_is_known_of_them() -> None:
    real = {"accuracy": 0.5, "deviation": 0.4, "copied_5": 0.1}
    rows = [
        row("unadapted", 9.0, specificity=0.25, real={"accuracy": 0.5}),
        row("factorcell", 9.0, specificity=0.5, real=real),
    ]
    lines = cells(paper_tables.specificity(reading(specificity_imdb=rows), "imdb", "Yelp"))
    assert lines["real texts"] == ["50.0", "", "0.40", "10.0", "", "63.0", "0.44", ""]
    assert lines["factorcell"][1].startswith("+25.0 [")


# ---- pages ----


def test_the_pages_are_those_of_the_rows() -> None:
    """`make tables` would change neither a table nor a figure."""
    read = tables.reader(study.HERE / "results")
    pictures = figures.pictures(read)
    for page, made in tables.make_tables(read, pictures).items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert columns.fill_page(text, made) == text, f"{page}: run `make tables`"
        assert columns.NO_ROWS not in text
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / figures.FOLDER).glob("*")}
    keys = {picture.file: picture.key() for picture in pictures.values()}
    assert kept.keys() == keys.keys(), "run `make tables`"
    assert all(kept[name].endswith(key) for name, key in keys.items()), "run `make tables`"


def test_every_table_names_rows_that_are_kept() -> None:
    """Rows, bases and figures of the papers in tables.toml are those of the experiments."""
    read = tables.reader(study.HERE / "results")
    for spec in columns.SPECS["table"]:
        kept = columns.gather_rows(read, spec.get("from", ()))
        for name in spec.get("rows", ()):
            assert name in kept or spec["name"].startswith(("Parts", "TACL", "Table 3")), (spec["name"], name)
        for kind, path, *_ in (one for one in spec["columns"] if one[0] in ("paper", "paper_gain")):
            assert columns.figures_of(path).keys() <= kept.trainings.keys(), kind


def test_pages_without_marks_or_files_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "pages", lambda: {"tables.md": {"Table 3.4": paper_tables.neighbours}})
    monkeypatch.setattr(tables, "WITH_PICTURES", {})
    monkeypatch.setattr(figures, "pictures", lambda read: {})
    assert tables.main(["--docs", str(tmp_path)]) == 2
    assert "tables.md: expected a page" in capsys.readouterr().err
    (tmp_path / "tables.md").write_text("no marks")
    assert tables.main(["--docs", str(tmp_path)]) == 2
    assert "expected the marks" in capsys.readouterr().err


# ---- figures ----


def ellipse(group: str) -> dict[str, Any]:
    """A group of hotels among the embeddings."""
    return {"group": group, "x": 1.0, "y": 2.0, "wide": 3.0, "high": 0.5, "angle": 30.0}


def test_an_outline_is_that_of_the_ellipse() -> None:
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
