"""The experiments of the thesis: their rows and their texts."""

import itertools
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import communities
import corpora
import papers
import study
import tacl
import thesis_sixteen
import variations
from factorcell.config import Config
from factorcell.data.columns.schema import UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.corpus import Corpus, target_ids
from factorcell.data.preparation import prepare
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.text_figures import TextSums
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training.rules import TableFacts
from tests.small_runs import make_run

PUBLISHED = tomllib.loads((study.EXPERIMENTS_FOLDER / "published.toml").read_text(encoding="utf-8"))

# The gains of the thesis in per cent, row by row, to detect transcription errors in its perplexities.
GAINS = {
    "reddit_titles": "0 7.3 9.5 11.0 9.0 11.0 9.6 11.5 7.7 8.5 10.6 8.2 10.2 9.1 10.7",
    "scotus": "0 16.5 12.0 19.6 11.0 19.8 12.4 20.3 10.7 20.1 13.4 21.7 11.0 20.1 13.7 21.1",
    "subreddits": "24.6 22.2 18.3 16.3 16.3 15.5 15.2 14.3 13.5 12.2 10.9 8.2 7.1 3.9 3.7 3.0 2.9 2.5",
}


# ---- the rows ----


@pytest.mark.parametrize("name", tacl.SWITCHED)
def test_every_row_of_switches_can_be_built(name: str, tmp_path: Path) -> None:
    """Each row differs from all others."""
    experiment = variations.EXPERIMENTS[f"switches_{name}"]
    assert len({str(row) for row in experiment.rows.values()}) == len(experiment.rows)
    numbers = "lat" in experiment.config(study.Training("ours", 0), 1).data.context[0]
    rows = [
        {"text": f"a {n % 3}", "section": "xy"[n % 2], "rating": str(n % 8), "lat": float(n % 5), "lon": float(n % 7)}
        for n in range(200)
    ]
    for row in experiment.rows:
        config = experiment.config(study.Training(row, 0), 1)
        corpus = prepare(rows, config.with_options(min_count=1))
        assert bool(corpus.schema.numbers) == numbers
        Run.create(tmp_path / row, config, corpus.tokenizer, corpus.schema)


def test_measurements_of_ranks_count_texts_per_value(tmp_path: Path) -> None:
    """The column with the most values counts, with its unknown value, as in the rules of the planner."""
    places = ["Rome", "Nice", "Bari"]
    texts = [{"text": "sun and sea", "city": places[n % 3], "stars": str(n % 2)} for n in range(18)]
    config = Config.of(context=["city", "stars"], min_count=1, min_context_count=1)
    corpus = prepare(texts, config)
    run = Run.create(tmp_path / "r", config, corpus.tokenizer, corpus.schema)
    files.write_json(run.folder / "training.json", {"texts": 18, "targets": 72})
    row = variations.measure_with_sizes(
        run, {}, lambda run, tables: study.Measurement({"accuracy": 0.5, "targets": 7})
    ).row
    assert row == {"accuracy": 0.5, "targets": 7, "trained_targets": 72, "values": 3, "texts_per_value": 4.5}
    assert TableFacts.of(corpus, corpus).texts_per_value == 4.5


@pytest.mark.parametrize("name", GAINS)
def test_published_perplexities_give_the_published_gains(name: str) -> None:
    rows = PUBLISHED[name]
    pairs = [(rows["unadapted"][0], row[0]) if "unadapted" in rows else tuple(row) for row in rows.values()]
    assert [100 * (1 - after / before) for before, after in pairs] == pytest.approx(
        [float(figure) for figure in GAINS[name].split()], abs=0.21
    )


# ---- the texts ----


def test_long_turns_are_split() -> None:
    """No word is lost up to the maximum, and each part keeps its context."""
    lengths = [3, 45, 46, 0, 200, 7]
    texts = [" ".join(f"w{row}.{word}" for word in range(length)) for row, length in enumerate(lengths)]
    table = pa.table({"text": texts, "case": list("abcdef")})
    all_words = " ".join(texts).split()
    for words in (1, 3, 48, 93, 94, 95, 1000):
        pieces = thesis_sixteen.split_turns(table, words).to_pylist()
        assert " ".join(piece["text"] for piece in pieces).split() == all_words[:words]
        assert all(0 < len(piece["text"].split()) <= thesis_sixteen.MAX_TURN_WORDS for piece in pieces)
        assert all("abcdef"[int(piece["text"][1])] == piece["case"] for piece in pieces)
        assert all(piece["text"][1] == str(piece["turn"]) for piece in pieces)


def test_parts_of_a_turn_are_in_the_same_group(tmp_path: Path) -> None:
    """There is an entry for every turn, and totals are those of the parts."""
    lengths = np.random.default_rng(0).integers(1, 200, 150)
    texts = [" ".join(f"w{turn}" for _ in range(length)) for turn, length in enumerate(lengths)]
    rows = [
        {"text": text, "case": "a", "speaker": f"j{turn % 3}", "role": "justice" if turn % 2 else "advocate"}
        for turn, text in enumerate(texts)
    ]
    for part in corpora.PARTS:
        corpora.write_table(tmp_path / "scotus" / f"{part}.parquet", pa.Table.from_pylist(rows))
    tables = thesis_sixteen.scotus_tables(tmp_path, tmp_path / "tables", 1.0)
    figures, turn_numbers = {}, {}
    for name, part in (("perplexity", "test"), ("accuracy", "judged")):
        table = corpora.read(tables[part])
        assert table.column_names == ["text", "case", "speaker", "role"]
        turn_numbers[name] = np.array([int(text.split()[0][1:]) for text in table["text"].to_pylist()])
        figures[name] = TextSums("k", 1.0 + turn_numbers[name], np.ones(len(table)))
    by_turn = thesis_sixteen.sum_over_turns(figures, tables)
    for name, sums in by_turn.items():
        turns, counts = np.unique(turn_numbers[name], return_counts=True)
        assert max(counts) > 1
        assert sums.numerator.tolist() == ((1.0 + turns) * counts).tolist()
        assert sums.denominator.tolist() == counts.tolist()
        assert sums.ratio == pytest.approx(figures[name].ratio)
        assert sums.key != figures[name].key  # rows by turn and by part are never compared
        grouped = study.group_sums(sums)
        assert sum(grouped["below"]) == len(turn_numbers[name])
    with pytest.raises(ValueError, match="turn"):
        thesis_sixteen.sum_by_turn(figures["accuracy"], np.zeros(3, dtype=np.int64))


def test_only_oral_arguments_have_sums_by_turn() -> None:
    """Table 3.8 contains rows of table 3.7, so both have sums by turn."""
    by_turns = {
        name
        for name, experiment in papers.EXPERIMENTS.items()
        if experiment.merge_parts is thesis_sixteen.sum_over_turns
    }
    assert by_turns == {"scotus", "variables", "ranks_scotus"}


def test_judged_texts_are_those_of_the_most_frequent_justices() -> None:
    """There are eleven of them, and their texts keep their order."""
    names = [f"j{index}" for index in range(14) for _ in range(20 - index)]
    rows = [{"text": str(n), "speaker": name, "role": "justice"} for n, name in enumerate(names)]
    rows += [{"text": "objection", "speaker": "a", "role": "advocate"}] * 50
    result = thesis_sixteen.justice_texts(pa.Table.from_pylist(rows), 170).to_pylist()
    assert result == rows[: len(result)]
    assert len(result) == sum(name in {f"j{index}" for index in range(11)} for name in names)
    assert len(thesis_sixteen.justice_texts(pa.Table.from_pylist(rows), 30)) == 30


def test_held_out_titles_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the first ones of every eighth community and of the published ones."""
    monkeypatch.setattr(communities, "HELD_OUT_TITLES", 3)
    names = [f"s{index:02}" for index in range(17)] + ["nba"]
    rows = [{"text": f"{name} {n}", "subreddit": name} for n in range(5) for name in names]
    dev_rows = [{"text": f"dev {name}", "subreddit": name} for name in names]
    chosen = communities.selected_communities(pa.Table.from_pylist(rows)) & set(names)
    assert chosen == {*sorted(names)[::8], "nba"}
    train, judged = communities.split_communities(pa.Table.from_pylist(rows), pa.Table.from_pylist(dev_rows), chosen)
    assert Counter(judged["subreddit"].to_pylist()) == dict.fromkeys(chosen, 4)
    training_titles = set(train["text"].to_pylist())
    assert training_titles.isdisjoint(judged["text"].to_pylist())
    assert training_titles == {row["text"] for row in rows} - {f"{name} {n}" for name in chosen for n in range(3)}


def test_titles_in_the_training_texts_are_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test part also has the later development titles."""
    monkeypatch.setattr(communities, "HELD_OUT_TITLES", 2)
    monkeypatch.setattr(communities, "DEV_TITLES", 1)
    parts = {
        "train": [("shared", "a"), ("own", "a"), ("shared", "b"), ("rest", "b")],
        "test": [("tested", "a"), ("rest", "a")],
        "dev": [("first", "b"), ("more", "b"), ("rest", "a")],
    }
    for part, rows in parts.items():
        table = pa.Table.from_pylist([{"text": text, "subreddit": name} for text, name in rows])
        corpora.write_table(tmp_path / "reddit_titles" / f"{part}.parquet", table)
    paths = communities.titles(tmp_path, tmp_path, 1.0, "x", lambda train: {"a"})
    texts = {part: corpora.read(path)["text"].to_pylist() for part, path in paths.items()}
    assert texts == {
        "train": ["shared", "rest"],
        "judged": ["own", "tested"],
        "dev": ["first"],
        "test": ["tested", "more"],
    }


def test_classifiers_of_communities_have_the_auc_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean AUC of each detected community against the others and the distractors."""
    monkeypatch.setattr(thesis_sixteen, "DETECTED", ("red", "blue", "green", "never seen"))
    random = np.random.default_rng(0)
    words = {"red": "rose wine", "blue": "sky wine", "green": "leaf tea", "other": "stone tea"}

    def texts(count: int) -> list[dict[str, str]]:
        pairs = [(name, name if random.random() < 0.7 else "other") for name in words for _ in range(count)]
        return [{"text": str(random.choice(words[topic].split())), "subreddit": name} for name, topic in pairs]

    rows = {"train": [*texts(60), {"text": "not read", "subreddit": "unasked"}], "judged": texts(40)}
    tables = {
        part: corpora.write_table(tmp_path / f"{part}.parquet", pa.Table.from_pylist(rows[part])) for part in rows
    }
    judged_values = thesis_sixteen.texts_of_judged_values(tables["train"], tables["judged"], "subreddit")
    assert judged_values.to_pylist() == rows["train"][:-1]
    tables["labelled_train"] = corpora.write_table(tmp_path / "own.parquet", judged_values)
    config = Config.of(context=["subreddit"], min_count=1, min_context_count=10)
    figures = thesis_sixteen.detect_by_classifier(config, tables, tmp_path, "subreddit", 1, "bayes").row
    tokenizer = prepare(tables["train"], config.with_options(context=())).tokenizer
    paths = tables["labelled_train"], tables["judged"]
    train, test = linear_classifier.read_train_and_test(*paths, "subreddit", config, tokenizer=tokenizer)
    likelihoods = {
        name: np.array([sum(np.log(smoothed_share(train, name, word)) for word in text) for text in targets_of(test)])
        for name in ("red", "blue", "green")
    }
    perplexities = {name: np.exp(-nats / test.lengths) for name, nats in likelihoods.items()}
    all_perplexities = np.stack(list(perplexities.values()))
    areas = []
    for name, perplexity in perplexities.items():
        scores = ((all_perplexities.mean(0) - perplexity) / all_perplexities.std(0)).round(9)
        is_positive = np.array([row["subreddit"] == name for row in rows["judged"]])
        pairs = scores[is_positive][:, None] - scores[~is_positive]
        areas.append(((pairs > 0) + (pairs == 0) / 2).mean())
    assert figures == {"candidates": 3, "judged": 120, "distractors": 40, "auc": pytest.approx(np.mean(areas))}
    assert thesis_sixteen.detect_by_classifier(config, tables, tmp_path, "subreddit", 1, "linear").row["auc"] > 0.6
    monkeypatch.setattr(thesis_sixteen, "DETECTED", ("red", "never seen"))
    assert thesis_sixteen.detect_by_classifier(config, tables, tmp_path, "subreddit", 1, "bayes").row == {}


def targets_of(corpus: Corpus) -> list[list[int]]:
    """Return the targets of each text, with the end token."""
    return [part.tolist() for part in np.split(target_ids(corpus), np.cumsum(corpus.lengths)[:-1])]


def smoothed_share(train: Corpus, name: str, word: int) -> float:
    """Return the share of a word in the texts of a community, with 0.5 added to every count."""
    place = train.schema.categories[0].values.index(name)
    community_texts = [text for text, of in zip(targets_of(train), train.categories[:, 0], strict=True) if of == place]
    words = list(itertools.chain(*community_texts))
    return (words.count(word) + 0.5) / (len(words) + 0.5 * (len(train.tokenizer) - 1))


def test_neighbours_are_sorted_by_distance(tmp_path: Path) -> None:
    """Neither the unknown community nor a community itself is a neighbour."""
    run = make_run(tmp_path / "r", ("city", "stars"))
    assert run.model.encoder is not None
    names = ["hub", "far", "near", "middle", "beyond", "same"]
    run.schema = ContextSchema((Variable("subreddit", "category", (UNKNOWN_VALUE, *names), (1,) * 7),))
    places = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0], [0.0, -1.0], [-3.0, 0.0], [0.0, 20.0], [0.0, 0.0]])
    run.model.encoder.tables[0] = torch.nn.Parameter(places)
    assert communities.nearest_communities(run, ["hub", "nowhere"]) == {"hub": ["same", "near", "middle", "far"]}
