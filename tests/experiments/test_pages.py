"""Pages of the documentation, whose tables are made of rows."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
import study
import tables
import thesis_speakers
from factorcell import files
from factorcell.config import PAPER_MODELS, UserError
from pages import beside, beyond, front
from pages.markdown import empty, filled, markdown, shown
from pages.results import Results
from tests import ROOT
from tests.experiments.test_tables import by_name, cells, row, seeds


def test_a_table_in_markdown() -> None:
    assert markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| :-- | --: |\n| x | 1 |\n"
    mixed = [["x", "1", "", "two", "N"], ["y", "**-1.5** ± 2", "+3% [1%, 2%]", "3", "Y"]]
    marks = markdown(["a", "b", "c", "d", "e"], mixed).splitlines()[1]
    assert marks == "| :-- | --: | --: | :-- | :-- |"
    assert markdown(["a", "b"], []) == "| a | b |\n| :-- | --: |\n"
    assert (shown(None), shown(float("nan")), shown(1.234)) == ("", "", "1.23")


def test_the_pages_are_those_of_the_rows() -> None:
    """What `make tables` would write stands in the documentation already."""
    for name, make in tables.PAGES.items():
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert filled(page, make(study.HERE / "results")) == page, f"docs/{name}: run `make tables`"


def test_the_front_page_has_the_sets_that_are_whole(tmp_path: Path) -> None:
    """A line each, in which the last model's gain is that over the first; a set with a row too few is left out."""
    for name, models in (("agnews", PAPER_MODELS), ("hotels", PAPER_MODELS[:-1])):
        rows = [
            one
            for place, model in enumerate(models)
            for one in seeds(model, *(40.0 - 4 * place + seed / 10 for seed in range(3)), accuracy=0.5, candidates=4)
        ]
        files.write_rows(tmp_path / f"tacl_{name}.jsonl", rows)
    ((what, *figures, gained, told),) = cells(front.front(tmp_path)["Results"])
    assert what == "AG News, words; topic"
    assert figures[0] == "40.10 ± 0.10"
    assert figures[-1].startswith("**28.10")
    assert gained.startswith("+29.9% [")
    assert told == "50.0 ± 0.0 (4 values)"


def test_the_results_of_all_sets_stand_beside_each_other(tmp_path: Path) -> None:
    """Words and characters apart; a line of what any set has, empty where one lacks it; the best in bold."""
    for name in ("agnews", "hotels", "languages"):
        rows = [one for place, model in enumerate(PAPER_MODELS) for one in seeds(model, *[40.0 - 4 * place] * 3)]
        files.write_rows(tmp_path / f"tacl_{name}.jsonl", rows)
    files.write_rows(tmp_path / "tacl_baselines_hotels.jsonl", [row("linear", 9.0, classifier_accuracy=0.5)])
    files.write_rows(tmp_path / "tacl_beyond_agnews.jsonl", [row("with ngram", 20.0), row("told", 31.0)])
    made = front.results(tmp_path)
    words = by_name(made["Perplexity per word"])
    assert made["Perplexity per word"].startswith("| perplexity per word, known targets | agnews |")
    assert list(words) == [*PAPER_MODELS, "factorcell and n-grams"]
    assert words["factorcell and n-grams"] == ["**20.00**", ""]
    assert words["factorcell"] == ["28.00 ± 0.00"] * 2
    assert list(by_name(made["Perplexity per character"])) == list(PAPER_MODELS)
    assert by_name(made["Accuracy"]) == {"linear": ["", "50.0", ""]}


def test_what_is_wanted_stands_beside_what_is_reached(tmp_path: Path) -> None:
    """The classifier that suits dev best, though another is better on the test; a set without one is left out."""
    accuracies = {"linear": (0.9, 0.5), "fasttext": (0.8, 0.6), "told": (0.84, 0.7)}
    rows = {
        name: row(name, 30.0, classifier_accuracy=test, classifier_dev_accuracy=dev)
        for name, (test, dev) in accuracies.items()
    }
    files.write_rows(tmp_path / "tacl_agnews.jsonl", [row("factorcell", 30.0)])
    files.write_rows(tmp_path / "tacl_baselines_agnews.jsonl", [rows["linear"], rows["fasttext"]])
    files.write_rows(tmp_path / "tacl_beyond_agnews.jsonl", [rows["told"]])
    files.write_rows(tmp_path / "tacl_beyond_hotels.jsonl", [rows["told"]])
    text = beyond.reached(tables.reader(tmp_path), 80.0)
    assert [line[:4] for line in cells(text)] == [["agnews", "fasttext", "80.0", "84.0"]]
    (reach,) = re.findall(r"\n`told` makes 20% \[(-?\d+)%, (\d+)%\] fewer on the test; 20% fewer were wanted.\n", text)
    spread = 1.96 * np.sqrt(0.84 / (0.16 * 400) + 0.8 / (0.2 * 3000))
    assert [int(end) for end in reach] == [round(100 - 80 * np.exp(sign * spread)) for sign in (1, -1)]
    assert "errs on 20.0 % of 3,000 texts of dev;\n" in text
    files.write_rows(tmp_path / "tacl_hotels.jsonl", [row("factorcell", 30.0)])
    files.write_rows(tmp_path / "tacl_baselines_hotels.jsonl", [rows["linear"]])
    (tmp_path / "tacl_beyond_agnews.jsonl").unlink()
    assert "On news" not in beyond.reached(tables.reader(tmp_path), 80.0)


def test_what_has_no_row_says_so(tmp_path: Path) -> None:
    """Every table, and every line of the first that stands for one."""
    made = tables.of_papers(tmp_path)
    first, whole = made.pop("Every table and figure"), made.pop("The whole in numbers")
    assert {line[2] for line in cells(whole)} == {"0"}
    assert all("No row yet." in text or "Not trained yet." in text for text in made.values())
    assert all(line[4] == "cannot be told" for line in cells(first))
    assert not any(line[3].startswith(("+", "r ")) for line in cells(first))


def test_tables_go_into_pages_again_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written around them stays; a page without a place for one is an error; a second time changes nothing."""
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    docs.mkdir()
    files.write_rows(results / "scotus.jsonl", [row("unadapted", 40.0)])
    arguments = ["--results", str(results), "--docs", str(docs)]
    assert tables.main(arguments) == 2
    assert "tables.md: there is no such page" in capsys.readouterr().err
    for name, make in tables.PAGES.items():
        (docs / name).write_text("Before.\n\n" + empty(make(results)) + "And this.\n", encoding="utf-8")
    assert tables.main(arguments) == 0
    page = docs / "tables.md"
    first = page.read_text(encoding="utf-8")
    assert first.count("| 41.00 | 40.00 |") == 2  # tables 3.7 and 3.8
    files.append_row(results / "scotus.jsonl", row("hash", 31.5))
    assert tables.main(arguments) == 0
    second = page.read_text(encoding="utf-8")
    assert second.startswith("Before.\n\n## Every table and figure")
    assert second.endswith("And this.\n")
    assert "| **32.50** | **31.50** | +20.7% [" in second  # of all targets
    assert tables.main(arguments) == 0
    assert page.read_text(encoding="utf-8") == second
    printed: list[str] = []
    assert tables.main(["--results", str(results), "--trial"], printed.append) == 0
    assert "| 41.00 | 40.00 |" not in printed[0]
    page.write_text(second.replace("<!-- end of Table 3.7 -->", ""), encoding="utf-8")
    assert tables.main(arguments) == 2
    assert "no place for Table 3.7" in capsys.readouterr().err
    with pytest.raises(UserError, match="no place for x"):
        filled("", {"x": "y"})


def test_what_restrains_a_context_stands_beside_the_factorcell() -> None:
    """Perplexities of dev and of the test, what is gained, and accuracies; the FactorCell stands first."""
    dev = {"perplexity_known": 110.0}
    rows = [row("prior", 90.0, accuracy=0.5, dev=dev), row("factorcell", 100.0, accuracy=0.25, dev=dev)]
    found = by_name(beside.restrained(Results.of(rows, "factorcell")))
    assert list(found) == ["factorcell", "prior"]
    assert found["factorcell"] == ["110.00", "100.00", "", "25.0", ""]
    assert found["prior"][:2] == ["110.00", "**90.00**"]
    assert found["prior"][2].startswith("+10.0 [")
    assert found["prior"][3] == "**50.0**"


def test_ranks_of_a_set_stand_in_one_line() -> None:
    """The FactorCell of the TACL paper's tables by its rank, the other beside it; a set without rows has no line."""
    recipe: dict[str, Any] = {"config": {"model": {"rank": 4}}, "accuracy": 0.25}
    about: dict[str, Any] = {"trained_targets": 12345, "values": 9, "texts_per_value": 26.4, "accuracy": 0.5}
    rows = {"tacl_hotels": [row("factorcell", 100.0, **recipe), row("unadapted", 120.0)]}
    rows["ranks_hotels"] = [row("rank 12", 90.0, **about)]
    rows["ranks_scotus"] = [row("rank 4", 80.0, **about), row("rank 12", 80.0)]

    def read(name: str, base: str = "") -> Results:
        return Results.of(rows.get(name, []), base)

    found = by_name(beside.ranked({name: tables.ranked(read, name) for name in ranks.EXPERIMENTS}))
    assert list(found) == ["hotels", "scotus"]
    assert found["hotels"][:5] == ["12,345", "9", "26", "100.00", "**90.00**"]
    assert found["hotels"][5].startswith("+10.0 [")
    assert found["hotels"][6].startswith("+25.0 [")
    assert found["scotus"][3:5] == ["80.00", "80.00"]
    assert "no difference" in found["scotus"][5]


def test_rules_by_which_speakers_are_learned() -> None:
    """Of each model and rule a line: what learning gains in the same trainings, and what no layer does beside ours."""
    rows = []
    for name, worth in (("ours", 0.0), ("no joint layer", 0.1)):
        for seed in range(3):
            one = row(name, 50.0, seed)
            for place, how in enumerate(thesis_speakers.LEARNED):
                above = [10 * (4 + worth - 0.02 * place + 0.01 * (n % 3)) for n in range(60)]
                one["sums"][f"said_{how}"] = {"key": "u", "above": above, "below": [10.0] * 60}
                one[f"said_{how}"] = float(np.exp(sum(above) / 600))
            rows.append(one)
    lines = [line.strip("| ").split(" | ") for line in beside.speakers(Results.of(rows, "ours")).splitlines()[2:]]
    assert [(line[0], line[1]) for line in lines] == list(
        itertools.product(("ours", "no joint layer"), thesis_speakers.LEARNED)
    )
    by = {(line[0], line[1]): line for line in lines}
    assert by["ours", "adadelta"][3].startswith("+2.0% [")
    assert by["no joint layer", "adagrad"][3].startswith("+5.8% [")
    assert by["no joint layer", "adadelta"][4].startswith("-10.5% [")


def test_a_mixture_goes_on_from_the_run_of_its_row() -> None:
    """No name of a place has eight words, so what n-grams bring on unknown texts is what they bring on all."""
    every = {name: files.read_rows(study.HERE / "results" / f"{name}_places.jsonl") for name in ("tacl", "tacl_beyond")}
    begun = {row["seed"]: row["perplexity_known"] for row in every["tacl"] if row["row"] == "factorcell"}
    mixed = {one["seed"]: one for one in every["tacl_beyond"] if one["row"] == "with ngram"}
    assert sorted(begun) == sorted(mixed) == list(study.SEEDS)
    for seed, one in mixed.items():
        assert one["fresh_gain"] == pytest.approx(1 - one["perplexity_known"] / begun[seed], abs=1e-6)
