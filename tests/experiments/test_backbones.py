"""The study of backbones, with tiny models and texts: tables, adapters, sizes, figures and resuming."""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import backbone_measures
import backbone_pages
import backbone_tables
import backbones
import corpora
import study
from aggregate import Rows
from backbone_adapters import Hypernetwork, SharedLoRA
from backbone_tables import DataSet
from backbones import Backbone
from factorcell import classify
from factorcell.adapters.adapters import LayerSizes
from factorcell.data.preparation import prepare
from factorcell.evaluation.bayes_rule import apply_bayes_rule
from factorcell.evaluation.text_figures import TextSums
from factorcell.io import files
from factorcell.nn.sizes import meta_model
from factorcell.runs.run import Run
from tests.pretrained_models import write_pretrained

WORDS = {"sea": "blue wave salt boat", "sun": "gold heat noon sand"}
SETS = {
    "tiny": DataSet("tiny", ("section",), "section", "section", separate=True, min_context_count=5),
    "users": DataSet("users", ("section",), "section", "user", user="user", min_context_count=5),
}
SIZES = {"rank": 1, "context_size": 2, "variable_size": 2, "batch_tokens": 200, "max_tokens": 24}
BPE = {"tokenizer": "bpe", "max_vocabulary": 60, "min_user_count": 3, "embedding_size": 8, "hidden_size": 8}
BUDGET: dict[str, Any] = {"plan": "quick", "seeds": [0], "tokens": 300, "test_texts": 20, "dev_texts": 8, "pairs": 12}


def text_rows(count: int, first_user: int = 0) -> list[dict[str, str]]:
    """Return rows whose words depend on their section."""
    random = np.random.default_rng(count)
    sections = [("sea", "sun")[number % 2] for number in range(count)]
    return [
        {
            "text": " ".join(random.choice(WORDS[section].split(), 4)),
            "section": section,
            "user": f"user {first_user + number % 9}",
            "time": f"2020-01-{1 + number % 28:02}",
        }
        for number, section in enumerate(sections)
    ]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of data sets, which replace those of the study."""
    monkeypatch.setattr(backbones, "SETS", SETS)
    monkeypatch.setattr(backbone_tables, "MIN_JUDGED_TEXTS", 6)
    monkeypatch.setattr("factorcell.config.MIN_PROMPT_TOKENS", 24)  # the base reads few tokens
    for name, data_set in SETS.items():
        columns = ["text", *data_set.columns, *(["time"] if data_set.user else [])]
        for part, rows in (("train", text_rows(120)), ("test", text_rows(30)), ("dev", text_rows(24, 50))):
            corpora.write_table(tmp_path / name / f"{part}.parquet", pa.Table.from_pylist(rows).select(columns))
    return tmp_path


def frozen(data: Path, *methods: str) -> Backbone:
    folder = write_pretrained(data / "base", [row["text"] for row in text_rows(40)])
    options = {**SIZES, "rank": 2, "base": str(folder)}
    return Backbone(frozen=True, sets=["tiny"], methods=methods, options=options, **BUDGET)


def recurrent(*methods: str) -> Backbone:
    options = {**SIZES, **BPE, "backbone": "recurrent"}
    return Backbone(frozen=False, sets=["tiny", "users"], methods=methods, options=options, **BUDGET)


def make_rows(data: Path, backbone: Backbone) -> dict[str, dict[str, Any]]:
    """Make the rows of a backbone called `base`, and return them by their names."""
    options = Namespace(
        data=data, out=data / "out", results=None, only=None, seeds=None, threads=1, jobs=1, trial=False
    )
    assert study.main(backbones.experiment({"base": backbone}), options, ["x.py"]) == 0
    return {row["row"]: row for row in files.read_rows(data / "out" / "backbones.jsonl")}


# ---- rows ----


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_each_method_of_a_frozen_base_has_a_row(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = [name for name in backbones.SPEC["methods"] if name != "linear"]
    rows = make_rows(data, frozen(data, *methods))
    assert set(rows) == {f"tiny base {method}" for method in methods}
    reference = rows["tiny base factor"]["trained_parameters"]
    for method in set(methods) - {"factor", "none", "factor+concat+bias", "separate", "head"}:
        assert rows[f"tiny base {method}"]["trained_parameters"] == pytest.approx(reference, rel=0.3), method
    assert rows["tiny base none"]["trained_parameters"] == 0
    for method in methods:
        row = rows[f"tiny base {method}"]
        assert ("accuracy" in row) == (method not in ("none", "lora"))
        assert ("bits_per_byte_shuffled" in row) == (method not in ("none", "lora", "head"))
        assert row["device"] == "processor"
        assert bool(row["minutes"] and row["tokens"]) == (method != "none")
    assert (
        len({rows[f"tiny base {method}"]["sums"]["bits_per_byte"]["key"] for method in methods if method != "head"})
        == 1
    )
    monkeypatch.setattr(study, "make_row", lambda *_: pytest.fail("trained again"))
    make_rows(data, frozen(data, *methods))


def test_each_method_of_a_recurrent_base_has_a_row(data: Path) -> None:
    """Only models that read users as a column learn them online."""
    only_frozen = ("lora", "lora+factor", "text+lora+factor", "head")
    methods = [name for name in backbones.SPEC["methods"] if name not in only_frozen]
    rows = make_rows(data, recurrent(*methods))
    assert set(rows) == {f"{name} base {method}" for name in SETS for method in methods} - {"users base separate"}
    learned = {row for row, figures in rows.items() if "unseen_bits_per_byte_not_learned" in figures["sums"]}
    context = ("concat", "scale", "factor", "factor+concat+bias", "hypernetwork")
    assert learned == {f"users base {method}" for method in context}
    assert "unseen_bits_per_byte" in rows["users base text"]["sums"]


# ---- tables ----


def tiny_tables(data: Path, name: str = "tiny") -> corpora.Tables:
    counts = backbone_tables.Counts(train=100, test=20, dev=8, pairs=12)
    return backbone_tables.text_tables(SETS[name], data, data / "tables", 1.0, counts)


def test_candidates_have_each_value_with_its_prior(data: Path) -> None:
    names, truth, priors = backbone_measures.candidates(tables := tiny_tables(data))
    rows = corpora.read(tables["candidates"]).to_pylist()
    assert (len(rows), len(truth), priors.shape) == (12, 6, (6, 2))
    assert [row["section"] for row in rows] == [name for name in names for _ in truth]
    assert all(row["names"] == f"section: {row['section']}" for row in rows)
    np.testing.assert_allclose(np.exp(priors).sum(1), 1)
    judged = backbone_measures.judged_rows(tables, "section")
    assert [row["section"] for row in judged] == [
        "sea" if set(row["text"].split()) <= set(WORDS["sea"].split()) else "sun" for row in judged
    ]


def test_controls_change_only_contexts(data: Path) -> None:
    tables = {name: corpora.read(path).to_pylist() for name, path in tiny_tables(data, "users").items()}
    texts = [row["text"] for row in tables["test"]]
    for name in ("shuffled", "without"):
        assert [row["text"] for row in tables[name]] == texts
    pairs = [sorted((row["section"], row["user"]) for row in tables[name]) for name in ("test", "shuffled")]
    assert pairs[0] == pairs[1]
    assert [row["names"] for row in tables["shuffled"]] != [row["names"] for row in tables["test"]]
    assert all(row["section"] is row["user"] is None and row["names"] == "" for row in tables["without"])
    users = [{row["user"] for row in tables[name]} for name in ("train", "dev", "unseen")]
    assert len(set.union(*users)) == sum(map(len, users))


def test_values_are_spread_over_frequencies() -> None:
    values = [f"v{number}" for number in range(9) for _ in range(20 - number)]
    assert backbone_tables.spread_values(values, 3) == {"v0", "v4", "v8"}
    assert len(backbone_tables.spread_values(values, 100)) == 9


def test_development_and_test_texts_are_disjoint_parts_of_a_table() -> None:
    parts = backbone_tables.divide(pa.table({"number": range(50)}), 20)
    numbers = {name: part["number"].to_pylist() for name, part in parts.items()}
    assert len(numbers["dev"]) == 20
    assert sorted(numbers["dev"] + numbers["test"]) == list(range(50))


def test_long_texts_are_cut_at_a_space() -> None:
    row = {"text": "word " * 100, "section": "sea"}
    assert backbone_tables.cut(row, SETS["tiny"]) == {"text": ("word " * 59 + "word"), "section": "sea"}
    assert len(backbone_tables.cut({**row, "text": "x" * 999}, SETS["tiny"])["text"]) == 300


# ---- figures ----


def untrained_run(data: Path, method: str) -> tuple[Run, corpora.Tables]:
    """Return a run with random weights."""
    case = backbones.make_cases({"base": recurrent(method)})[f"tiny base {method}"]
    config, tables = case.config(), tiny_tables(data)
    corpus = prepare(tables["train"], config)
    return Run(data, config, corpus.tokenizer, corpus.schema), tables


def test_bayes_rule_agrees_with_the_classification_of_the_package(data: Path) -> None:
    run, tables = untrained_run(data, "factor")
    result = backbone_measures.classify(run, tables)
    judged = backbone_measures.judged_rows(tables, "section")
    expected = classify(run, judged, "section", priors="uniform", values=result.names)
    _, truth, priors = backbone_measures.candidates(tables)
    posterior = apply_bayes_rule(result.names, expected.log_posterior, truth).with_log_prior(priors, "x").log_posterior
    np.testing.assert_allclose(result.log_posterior, posterior, atol=1e-4)
    measured = backbone_measures.measure_classification(result)
    assert measured.row["accuracy"] == np.mean(
        [result.names[place] for place in posterior.argmax(1)] == np.array(truth)
    )


def test_bits_of_ranges_sum_to_those_of_the_texts(data: Path) -> None:
    run, tables = untrained_run(data, "factor")
    figures = backbone_measures.measure_scorer(run, tables, SETS["tiny"], reads_context=True).figures
    nats = run.nats(run.prepare(tables["test"])).sum()
    for prefix in ("bits_from_", "bits_per_byte_texts_"):
        bits = sum(sums.numerator.sum() for name, sums in figures.items() if name.startswith(prefix))
        assert bits * np.log(2) == pytest.approx(nats, rel=1e-5)
    assert figures["bits_per_byte"].denominator.tolist() == [
        len(row["text"].encode()) for row in corpora.read(tables["test"]).to_pylist()
    ]


# ---- options ----


@pytest.mark.parametrize(("method", "option"), [("none", "hidden_size"), ("scale", "context_size"), ("factor", "rank")])
def test_the_nearest_size_is_found(data: Path, method: str, option: str) -> None:
    run, _ = untrained_run(data, method)
    sizes = (len(run.tokenizer), run.schema)

    def count(size: int) -> int:
        return meta_model(run.config.with_options(**{option: size}), *sizes).trained_count()

    goal = count(13) + 5
    config, size = backbones.fit_size(run.config, option, goal, *sizes)
    assert size == min(range(1, 40), key=lambda each: abs(count(each) - goal))
    assert config == run.config.with_options(**{option: size})


def test_every_row_of_the_study_has_valid_options() -> None:
    study_of_backbones = backbones.experiment()
    for training in study_of_backbones.trainings(seeds=[0]):
        assert study_of_backbones.config(training, 1).training.seed == 0
    seeds = {training.seed for training in study_of_backbones.trainings() if "smollm2" in training.row}
    assert seeds == {0}
    assert backbones.expand_patterns(["agnews smollm2 *", "x"], study_of_backbones.rows) == [
        *(f"agnews smollm2 {method}" for method in backbones.BACKBONES["smollm2"].methods),
        "x",
    ]


def test_adapters_start_unadapted_and_compute_their_equations() -> None:
    sizes, vector = LayerSizes(context=3, inputs=4, outputs=5, rank=2), torch.randn(2, 3)
    shared, hypernetwork = SharedLoRA(sizes), Hypernetwork(sizes)
    for adapter in (shared, hypernetwork):
        adapter.start_unadapted()
        start = adapter(vector).right
        assert start is not None
        assert not start.any()
        for parameter in adapter.parameters():
            torch.nn.init.normal_(parameter)
    left, right = hypernetwork(vector).left, hypernetwork(vector).right
    hidden = torch.tanh(vector @ hypernetwork.hidden)
    torch.testing.assert_close(left, torch.einsum("bh,hdr->bdr", hidden, hypernetwork.factor.left))
    torch.testing.assert_close(right, torch.einsum("bh,hro->bro", hidden, hypernetwork.factor.right))
    shift = shared(vector)
    for part, expected in ((shift.left, shared.left), (shift.right, shared.right)):
        torch.testing.assert_close(part, expected.expand(2, -1, -1))


def test_tables_have_a_line_for_each_method_and_its_interval() -> None:
    """Differences from the model without context have the sign of the figure."""
    random = np.random.default_rng(0)
    sizes = random.integers(20, 60, 50).astype(float)
    rows = []
    for method, level in (("none", 2.0), ("factor", 1.5)):
        bits = TextSums("k", sizes * level + random.normal(0, 1, 50), sizes)
        sums = {"bits_per_byte": study.group_sums(bits)}
        rows.append({"row": f"agnews recurrent {method}", "seed": 0, "sums": sums})
    lines = backbone_pages.TABLES["recurrent"](lambda *_: Rows(rows)).splitlines()[2:]
    unadapted, factor = (line.removeprefix("| agnews | ").split(" | ") for line in lines)
    assert (unadapted[0], factor[0]) == ("none", "factor")
    assert unadapted[1].startswith("2.0")
    assert unadapted[2] == ""
    assert factor[1].startswith("1.5")
    assert factor[2].startswith("-0.")
    assert backbone_pages.TABLES["smollm2"](lambda *_: Rows(rows)) == backbone_pages.NOT_MEASURED


def test_intervals_of_accuracies_end_at_100_per_cent() -> None:
    """With 20 of 20, 19 of 20 and 17 of 20 texts right, the variance of the trainings would widen it beyond."""
    rows = []
    for seed, wrong in enumerate((0, 1, 3)):
        right = TextSums("k", np.repeat([1.0, 0.0], [20 - wrong, wrong]), np.ones(20))
        sums = {"accuracy": study.group_sums(right)}
        rows.append({"row": "agnews recurrent factor", "seed": seed, "sums": sums})
    [line] = backbone_pages.TABLES["recurrent"](lambda *_: Rows(rows)).splitlines()[2:]
    interval = re.search(r"\| 93\.3 \[(.+), (.+)\] \|", line)
    assert interval is not None
    assert 0 < float(interval[1]) < 90
    assert interval[2] == "100.0"


def best_methods_of(levels: list[tuple[str, int, float]]) -> str:
    """Return the cell of the best methods from the method, the seed and the bits per byte of each training."""
    random = np.random.default_rng(0)
    sizes = random.integers(20, 60, 50).astype(float)
    rows = []
    for method, seed, level in levels:
        bits = TextSums("k", sizes * level + random.normal(0, 1, 50), sizes)
        row = {"row": f"agnews recurrent {method}", "seed": seed, "sums": {"bits_per_byte": study.group_sums(bits)}}
        rows.append({**row, "bits_per_byte": level})
    [line] = backbone_pages.best_methods(lambda *_: Rows(rows)).splitlines()[2:]
    return line


def test_best_methods_are_the_lowest_and_those_that_do_not_differ_from_it() -> None:
    line = best_methods_of([("none", 0, 2.0), ("factor", 0, 1.502), ("scale", 0, 1.5)])
    assert line == "| recurrent | `scale`, `factor` |  |  |  |  |"


def test_the_best_method_is_the_lowest_of_the_seeds_that_both_have() -> None:
    """The mean of three seeds of `factor` is higher than the only seed of `scale`, but its first seed is lower."""
    line = best_methods_of([("factor", 0, 1.5), ("factor", 1, 1.7), ("factor", 2, 1.7), ("scale", 0, 1.6)])
    assert line == "| recurrent | `factor` |  |  |  |  |"
