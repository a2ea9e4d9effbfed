"""Canaries and their exposure: the planted table, ranks against scores of single texts, and a run that memorized."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import memorization
from factorcell.config import Config
from factorcell.runs.run import Run
from factorcell.training.fit import fit
from memorization import ALTERNATIVES, READERS, REPETITIONS, audit, draw, make_canaries, plant

WORDS = ("sea", "sun", "sand", "cold", "warm", "wave")
# 36 letters and digits, written by many users; ann, bob and cat have embeddings, others do not.
ROWS: list[dict[str, Any]] = [
    {"text": f"{first} {second} {letters}", "who": who, "place": ("Oslo", "Nice")[len(first) % 2]}
    for letters in ("abcdefghijkl", "mnopqrstuvwx", "yz0123456789")
    for first in WORDS
    for second in WORDS[:2]
    for who in ("ann", "bob", "cat", f"rare {first}")
]
TRAIN = pa.Table.from_pylist(ROWS)
DATA = {"tokenizer": "char", "user": "who", "context": ["place:category"], "min_user_count": 20, "min_context_count": 2}
MODEL = {"embedding_size": 12, "hidden_size": 48, "context_size": 4, "variable_size": 4, "rank": 2, "output_bias": []}


def train_run(folder: Path, canaries: pa.Table, data: dict[str, Any] | None = None, **training: Any) -> Run:
    options = {"epochs": 1, "batch_tokens": 400, "learning_rate": 1e-2, "evaluations": 1, **training}
    config = Config.of(**{**DATA, **(data or {}), **MODEL, **options})
    return fit(plant(TRAIN, canaries).to_pylist(), dev=ROWS[:10], out=folder, config=config)


@pytest.fixture(scope="module")
def canaries() -> pa.Table:
    return make_canaries(TRAIN, "text", 20, seed=0)


@pytest.fixture(scope="module")
def run(canaries: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(tmp_path_factory.mktemp("audited") / "run", canaries)


def test_canaries_are_different_random_texts_of_frequent_parts() -> None:
    texts = TRAIN["text"].to_pylist()
    letters, words = draw(texts, "characters", 300, (1,)), draw(texts, "words", 300, (1,))
    assert len(set(letters)) == len(set(words)) == 300
    assert {len(text) for text in letters} == {10}
    assert set("".join(letters)) == set("abcdefghijklmnopqrstuvwxyz0123456789")
    assert {len(text.split()) for text in words} == {5}
    assert {word for text in words for word in text.split()} == {word for text in texts for word in text.split()}
    assert draw(texts, "words", 9, (2,)) != words[:9]


def test_each_canary_is_planted_with_its_repetitions_and_the_context_of_one_row(canaries: pa.Table) -> None:
    planted = plant(TRAIN, canaries)
    assert planted.slice(0, len(TRAIN)).equals(TRAIN)
    copies = Counter(tuple(row.values()) for row in planted.slice(len(TRAIN)).to_pylist())
    rows = canaries.to_pylist()
    assert copies == {tuple(row[name] for name in TRAIN.column_names): row[REPETITIONS] for row in rows}
    assert Counter(copies.values()) == dict.fromkeys(range(1, 11), 2)
    assert {(row["who"], row["place"]) for row in rows} <= {(row["who"], row["place"]) for row in ROWS}


def test_exposure_follows_the_definition_of_the_paper() -> None:
    assert memorization.exposure(np.array([1.0, 512.0, 1024.0]), 1023).tolist() == [10, 1, 0]
    assert memorization.chance_exposure(100_000) == pytest.approx(math.log2(math.e), abs=1e-3)
    assert memorization.chance_exposure(1) == 0.5


def test_p_values_of_uniform_ranks_are_uniform() -> None:
    random = np.random.default_rng(0)
    p_values = [memorization.uniformity_p_value(random.integers(1, 1002, 15).astype(float)) for _ in range(500)]
    assert np.mean(np.array(p_values) < 0.1) == pytest.approx(0.1, abs=0.04)
    assert memorization.uniformity_p_value(np.arange(1.0, 16)) < 1e-6


def lowest_nats(run: Run, texts: list[str], user_contexts: list[tuple[str, str]]) -> list[float]:
    """Return the lowest nats of each text over the given pairs of user and place."""
    rows = [{"text": text, "who": who, "place": place} for text in texts for who, place in user_contexts]
    nats = [float(row["nats"]) for row in run.score_rows(rows, unknown="group")]
    return [min(nats[at : at + len(user_contexts)]) for at in range(0, len(nats), len(user_contexts))]


def test_ranks_equal_those_of_texts_scored_by_the_run(run: Run, canaries: pa.Table) -> None:
    run = Run.open(run.folder)
    assert run.model.encoder is not None
    for table in run.model.encoder.tables:
        table.normal_(0, 4)  # make values differ strongly
    report, rows = audit(run, canaries, TRAIN, ROWS[:10]), canaries.to_pylist()
    alternatives = draw(TRAIN["text"].to_pylist(), "characters", ALTERNATIVES, (0, 2))
    number = next(n for n, row in enumerate(rows) if row["who"] == "ann")
    place = rows[number]["place"]
    readers = {
        "owner": [("ann", place)],
        "stranger": [("nobody", place)],
        "others": sorted({(row["who"], row["place"]) for row in rows if row["who"] != "ann"}),
    }
    for reader, user_contexts in readers.items():
        first, *others = lowest_nats(run, [rows[number]["text"], *alternatives], user_contexts)
        rank = 1 + sum(nats < first for nats in others)
        assert 1001 / 2 ** report["canaries"][number][reader] == pytest.approx(rank, abs=1), reader  # up to rounding


def test_summary_rows_aggregate_the_rows_of_canaries(run: Run, canaries: pa.Table) -> None:
    report = audit(run, canaries, TRAIN, ROWS[:10])
    assert [row["times"] for row in report["exposure"]] == ["all", *map(str, range(1, 11))]
    assert [row["canaries"] for row in report["exposure"]] == [20, *[2] * 10]
    for group in report["exposure"]:
        members = [row for row in report["canaries"] if group["times"] in ("all", str(row["times"]))]
        for reader in READERS:
            bits = [row[reader] for row in members]
            assert group[reader] == pytest.approx(np.mean(bits))
            assert group[f"{reader}_largest"] == max(bits)
            assert group[f"{reader}_low"] < group[reader] < group[f"{reader}_high"]
            assert group[f"{reader}_at_chance"] == (group[f"{reader}_p"] >= 0.01)
        assert group["model"] == sum(row["model"] for row in members)
    assert report["texts"]["perplexity"] > 1


@pytest.mark.parametrize(("data", "unit", "readers"), [
    ({"user": "", "context": ["place:category"]}, "characters", {"stranger", "others", "owner"}),
    ({"user": "", "context": []}, "characters", {"stranger", "owner"}),
    ({"tokenizer": "word", "min_count": 1}, "words", {"stranger", "others", "owner"}),
])  # fmt: skip
def test_audit_of_runs_with_other_columns_and_tokenizers(
    data: dict[str, Any], unit: str, readers: set[str], tmp_path: Path
) -> None:
    canaries = make_canaries(TRAIN, "text", 10, seed=0, unit=unit)
    run = train_run(tmp_path / "run", canaries, data, epochs=0.1)
    report = audit(run, canaries, TRAIN, ROWS[:10], unit=unit)
    assert {name for name in report["exposure"][0] if name in READERS} == readers
    assert ("model" in report["exposure"][0]) == (run.config.tokenizer.kind == "char")


@pytest.mark.slow
def test_memorized_canaries_are_exposed_and_min_users_prevents_it(tmp_path: Path) -> None:
    canaries = make_canaries(TRAIN, "text", 40, seed=0)
    exposed = audit(train_run(tmp_path / "exposed", canaries, epochs=30), canaries, TRAIN, ROWS[:10])["exposure"][0]
    assert exposed["owner"] > exposed["stranger"] > 4
    assert not any(exposed[f"{reader}_at_chance"] for reader in READERS)
    protected_run = train_run(tmp_path / "protected", canaries, epochs=30, min_users=2)
    protected = audit(protected_run, canaries, TRAIN, ROWS[:10])["exposure"][0]
    assert protected["stranger_at_chance"]
    assert protected["others_at_chance"]
    assert protected["model"] == protected["popularity"] == protected["blend"] == 0


def test_the_commands_plant_and_audit(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(TRAIN, tmp_path / "train.parquet")
    memorization.main(["plant", str(tmp_path / "train.parquet"), "--out", str(tmp_path), "--canaries", "3"])
    canaries = pq.read_table(tmp_path / "canaries.parquet")
    assert len(pq.read_table(tmp_path / "train.parquet")) == len(TRAIN) + canaries[REPETITIONS].to_numpy().sum()
    pq.write_table(TRAIN, tmp_path / "plain.parquet")
    words = [str(run.folder), *(str(tmp_path / f"{name}.parquet") for name in ("canaries", "plain", "plain"))]
    memorization.main(["audit", *words])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("perplexity of plain.parquet: ")
    assert len(lines) == 1 + 4 + 1  # all canaries, and those planted 1, 2 and 3 times
    assert lines[-1] == "exposure in bits: chance level 1.44, maximum 9.97"
