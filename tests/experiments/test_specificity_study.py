"""Chapter 6: what is written for which context, whose runs write it, and the tables and figures of how much fits."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import hotels
import study
import tacl
import tacl_baselines
import tacl_trials
import thesis_specificity
from corpora import read
from factorcell import files
from factorcell.config import PAPER_MODELS
from factorcell.data.schema import RARE, ContextSchema, Variable
from factorcell.evaluation.text_figures import TextSums
from pages import drawings, overview, specificity, verdicts
from pages.results import Results
from tests.experiments.test_tables import by_name
from tests.small import make_run

PRINTED: dict[str, Any] = tomllib.loads((study.HERE / "published.toml").read_text(encoding="utf-8"))["generation"]
REAL = (61.0, 0.4)
CHAINS = ("Super 8 Boise", "Rose Cottage", "Hyatt Reno", "Comfort Inn")


def test_texts_are_wanted_for_every_rating_alike(tmp_path: Path) -> None:
    """As many for each, of whatever hotel, the same at every call; without hotels of ratings alone."""
    run = make_run(tmp_path / "run", ("city", "stars"))
    ratings = Variable("rating", "category", (RARE, "1", "5"), (1, 1, 1))
    run.schema = ContextSchema((Variable("hotel", "category", (RARE, *CHAINS), (1,) * 5), ratings))
    found = thesis_specificity.wanted(run, "ratings", 40)
    assert found == thesis_specificity.of_ratings(run, 40)
    assert Counter(value for _, value in found) == {"1": 20, "5": 20}
    assert all(context["rating"] == value for context, value in found)
    assert {context["hotel"] for context, _ in found} == set(CHAINS)
    run.schema = ContextSchema((ratings,))
    assert thesis_specificity.wanted(run, "ratings", 3) == [({"rating": "1"}, "1"), ({"rating": "5"}, "5")]


def test_sampled_texts_stand_beside_real_ones() -> None:
    """What each model has beyond the unadapted one, with an interval over texts."""
    real = {"accuracy": 0.6, "deviation": 0.5, "copied_5": 0.2}
    shares = {"unadapted": 0.2, "factorcell": 0.5}
    rows = [
        {**row(name, seed, share), "copied_5": 0.1, "real": real} for name, share in shares.items() for seed in range(3)
    ]
    lines = by_name(specificity.sampled(Results.of(rows)))
    assert list(lines) == ["unadapted", "factorcell", "real texts"]
    assert lines["unadapted"] == ["20.0 ± 0.0", "", "0.80 ± 0.00", "10.0 ± 0.0"]
    assert lines["factorcell"][1].startswith("+30.0 [")
    assert lines["real texts"] == ["60.0", "", "0.50", "20.0"]
    assert specificity.sampled(Results.of([])).endswith("No row yet.\n")


@pytest.mark.parametrize("name", thesis_specificity.EXPERIMENTS)
def test_the_runs_are_those_of_other_tables(name: str) -> None:
    """The same rows with the same options; neither rows nor texts of two of them have one name."""
    made, (own, _, kind) = thesis_specificity.EXPERIMENTS[name], name.partition("_")
    of = {"": tacl, "trials": tacl_trials, "prefix": tacl_baselines}[kind].experiment(thesis_specificity.SETS[own].of)
    rows = {row: options for row, options in of.rows.items() if row not in of.baselines}
    assert (made.runs, made.rows, made.recipe) == (of.name, rows, of.recipe)
    assert made.baselines == {}
    assert [one.name for one in thesis_specificity.EXPERIMENTS.values()].count(made.name) == 1
    files = {thesis_specificity.file_of(Path("0"), one, how.texts) for one, how in thesis_specificity.SETS.items()}
    assert len(files) == len(thesis_specificity.SETS)


def test_films_are_written_for_every_rating(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"))
    names = (RARE, *"1", "10", "2")
    run.schema = ContextSchema((Variable("rating", "category", names, (1,) * 4),))
    found = thesis_specificity.wanted(run, "imdb", 9)
    assert found == [({"rating": value}, value) for value in ("1", "2", "10") for _ in range(3)]


def test_hotels_are_written_for_the_class_of_their_chain(tmp_path: Path) -> None:
    """Drawn alike for every model, hotels of no chain left out, five stars, and the class in no context."""
    run = make_run(tmp_path / "run", ("city", "stars"))
    run.schema = ContextSchema((Variable("hotel", "category", (RARE, *CHAINS), (1,) * 5),))
    found = thesis_specificity.wanted(run, "hotels", 300)
    assert found == thesis_specificity.wanted(run, "hotels", 300)
    assert all(set(context) == {"hotel", "rating"} and context["rating"] == "5" for context, _ in found)
    assert all(name == hotels.class_of(context["hotel"]) for context, name in found)
    counts = Counter(context["hotel"] for context, _ in found)
    assert set(counts) == set(CHAINS) - {"Rose Cottage"}
    assert min(counts.values()) > 70
    run.schema = ContextSchema((Variable("hotel", "category", (RARE, "Rose Cottage"), (1,) * 2),))
    assert thesis_specificity.wanted(run, "hotels", 300) == []


def test_texts_are_judged_by_what_they_were_written_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that writes of the sea for one rating and of the sun for the other: what fits, by whom it was wanted."""
    run = make_run(tmp_path / "run", ("stars",), adapt=("concat",), output_bias=("low_rank",))
    run.schema = ContextSchema((Variable("rating", "category", (RARE, "1", "5"), (1, 9, 9)),))
    words = {"1": "the sea is cold", "5": "sun and sand"}
    rows = [{"text": words[value], "rating": value} for value in "15" for _ in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    texts = iter(["the sea is cold", "sun and sand", "sun and sand", "sun and sand"])

    def write(run: Any, contexts: Any, options: Any, path: Path) -> list[dict[str, Any]]:
        assert (options.width, options.grow, options.length_penalty) == (120, 8, 0.0)
        return [{"text": next(texts), "context": context} for context in contexts]

    monkeypatch.setattr(thesis_specificity, "write", write)
    given = {"labelled_train": tmp_path / "t.parquet", "labelled_test": tmp_path / "t.parquet"}
    found = thesis_specificity.measure(run, given, "imdb", 4)
    assert found.row["specificity"] == 0.75
    assert found.row["deviation"] == pytest.approx(1.0)
    assert found.row["real"] == {"accuracy": 1.0, "deviation": 0.0}
    assert found.figures["specificity"].above.tolist() == [1, 0, 1, 1]
    assert "fillers" not in found.row


def test_the_judge_of_hotels_learns_from_those_of_chains(tmp_path: Path) -> None:
    (tmp_path / "hotels").mkdir()
    rows = [
        {"text": f"{hotel} {n}", "hotel": hotel, "city": "Reno, NV", "rating": "5"}
        for n in range(40)
        for hotel in CHAINS
    ]
    for part in ("train", "dev", "test"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "hotels" / f"{part}.parquet")
    made = thesis_specificity.EXPERIMENTS["hotels"].tables(tmp_path, tmp_path / "made", 1.0)
    assert Counter(read(made["labelled_train"])["class"].to_pylist()) == {"economy": 40, "upscale": 40, "midscale": 40}
    assert len(read(made["train"])) == 160


def test_towns_are_found_by_their_names() -> None:
    """Whole words, whatever stands between them; the commonest is one and the same town."""
    towns = {"Inn": "reno", "Lodge": "st paul", "Court": "bend"}
    texts = ["Near Reno, and St. Paul!", "reno again", "bending in St.Paul", "nothing"]
    found = hotels.mentioned(texts, ["Lodge", "Court", "Lodge", "Inn"], towns)
    assert found == {"town_any": 0.75, "town_own": 0.5, "town_commonest": 0.5}
    assert hotels.mentioned([], [], towns) == dict.fromkeys(found, 0.0)


def test_towns_of_texts_stand_beside_those_of_real_ones(tmp_path: Path) -> None:
    """By the towns of the training table; the table has a line for each model and one of real texts."""
    rows = [
        {"text": f"in {town} for a night", "hotel": hotel, "city": f"{town}, NV"}
        for hotel, town in zip("ab", ("Reno", "St. Paul"), strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    given = {"train": tmp_path / "t.parquet", "labelled_test": tmp_path / "t.parquet"}
    told = thesis_specificity.of_towns(["reno", "reno", "reno", ""], ["a", "b", "b", "b"], given)
    assert told == {
        **{"town_any": 0.75, "town_own": 0.25, "town_commonest": 0.75},
        **{"real_town_any": 1.0, "real_town_own": 1.0, "real_town_commonest": 0.5},
    }
    found = Results.of([{**row("factorcell", seed, 0.5), **told} for seed in range(3)])
    text = specificity.specificity(found, PRINTED["TripAdvisor"], REAL)
    assert "| factorcell | 75.0 ± 0.0 | 25.0 ± 0.0 | 75.0 ± 0.0 |\n| prefix |  |  |  |\n| real texts | 100.0 |" in text


def row(name: str, seed: int, share: float) -> dict[str, Any]:
    """A row of which a share of the texts fit."""
    fits = np.arange(200) < 200 * share
    sums = {"specificity": study.grouped(TextSums("k", fits.astype(float), np.ones(200)))}
    fillers = [{"5": f"great {place}", "1": "bad"} for place in range(3)] if name == "factorcell" else {"none": "x"}
    real = {"accuracy": 0.63, "deviation": 0.44, **({"copied_5": 0.053} if seed else {})}  # older rows lack it
    return {
        **{"row": name, "seed": seed, "specificity": share, "deviation": 1 - share, "real": real, "sums": sums},
        "copied_5": 0.7 + share / 10,
        "fillers": fillers,
    }


def test_tables_of_texts_that_fit() -> None:
    """Shares beside the printed ones, orders of pairs; fillers of the models that have some."""
    shares = dict(zip(PAPER_MODELS, (0.1, 0.3, 0.6, 0.9), strict=True))
    found = Results.of([row(name, seed, share) for name, share in shares.items() for seed in range(3)])
    text = specificity.specificity(found, PRINTED["Yelp"], REAL)
    assert (
        "| model | fit, % | above unadapted, points | deviation, values | 5-grams copied, % | perplexity per word"
        in text
    )
    assert "| unadapted | 10.0 ± 0.0 |  | 0.90 ± 0.00 | 71.0 ± 0.0 |  | 21.3 | 1.63 | 67.90 |" in text
    assert "| real texts | 63.0 |  | 0.44 | 5.3 |  | 61.0 | 0.40 |  |" in text
    assert "| factorcell | **90.0 ± 0.0** | +80.0 [" in text
    assert "Fit: of 6 pairs told apart in print 6 differ here beyond chance; of all 6" in text
    told = specificity.fillers(found)
    assert "| 5 | great 2 |  |  |\n| 1 | bad |  |  |" in told
    line = verdicts.Line("T6.4", "x", printed="69.5%")
    printed = {name: figures[0] for name, figures in PRINTED["Yelp"].items()}
    assert list(verdicts.ordered(line, found, "specificity", printed, ".1%")[3:]) == [
        *("90.0%", "69.5%", "agrees", "6 of 6 as printed"),
    ]
    nothing = Results.of([])
    assert specificity.specificity(nothing, PRINTED["Yelp"], REAL).endswith("No row yet.\n")
    assert specificity.fillers(nothing).count("No row yet.") == 3


def test_real_texts_without_what_is_copied() -> None:
    """Rows that are older than the figure have a blank, and rows without a judge no line."""
    older = Results.of([row("factorcell", 0, 0.5)])
    assert "| real texts | 63.0 |  | 0.44 |  |  | 61.0 | 0.40 |  |" in specificity.specificity(
        older, PRINTED["Yelp"], REAL
    )
    without = Results.of([{key: value for key, value in row("factorcell", 0, 0.5).items() if key != "real"}])
    assert "real texts" not in specificity.specificity(without, PRINTED["Yelp"], REAL)


def test_figures_of_texts_that_fit(tmp_path: Path) -> None:
    """The accuracy comes from the trials of the same name; ranks and perplexities are those of FactorCells alone."""
    models = [f"{model} {n:02}" for n in range(5) for model in PAPER_MODELS[1:]]
    written = [
        {
            **{"row": name, "seed": 0, "sums": {}, "specificity": 0.2 + 0.01 * place, "perplexity_known": 90 - place},
            "config": {"model": {"rank": 1 + place}},
        }
        for place, name in enumerate(models)
    ]
    told = [{"row": name, "seed": 0, "sums": {}, "accuracy": 0.9 - 0.01 * place} for place, name in enumerate(models)]
    files.write_rows(tmp_path / "specificity_trials_ratings.jsonl", written)
    files.write_rows(tmp_path / "tacl_trials_hotels.jsonl", told[:-1])
    found = overview.written(lambda name, base="unadapted": Results.read(tmp_path, name, base))
    assert {name: len(own) for name, own in found.items()} == {"ratings": 14, "sampled": 0, "hotels": 0}
    text = specificity.figures(found)
    assert "| 6.1 | rating | accuracy | 14 | -1.00 [-1.00, -1.00] |" in text
    assert "| 6.2 | rating | rank | 4 | +1.00 [+1.00, +1.00] |" in text
    assert "| 6.2 | rating | perplexity | 4 | -" in text
    assert "| 6.1 | rating | accuracy within classes | 14 | -1.00 [-1.00, -1.00] |" in text
    assert "| class |" not in text
    assert "| rating | softmaxbias | 5 | 84.0 | 26.0 |" in text
    assert [(one.name, len(one.panels)) for one in drawings.of_texts(found)] == [
        *(("6.1", 1), ("6.2", 2), ("6.3", 0), ("6.4", 0)),
    ]
    assert drawings.of_texts(found)[1].told.endswith("against the rank and the perplexity")
    both = [one.panels for one in drawings.of_texts({**found, "sampled": found["ratings"]})][:2]
    titles = ["rating", "rating, sampled"]
    assert [[panel.title for panel in panels] for panels in both] == [titles, np.repeat(titles, 2).tolist()]
    assert "No row yet." in specificity.figures({name: [] for name in specificity.DRAWN})
