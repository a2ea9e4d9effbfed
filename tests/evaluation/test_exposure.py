"""Exposure against ranks of single texts, its test against SciPy, and a run that memorized canaries."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import audit, files
from factorcell.commands.main import main
from factorcell.config import Config, UserError
from factorcell.data.canaries import CANARIES_FILE, Canaries
from factorcell.evaluation.exposure import chance_exposure, exposure, uniformity_p_value
from factorcell.model.run import Run
from factorcell.training.fit import fit

WORDS = ("sea", "sun", "sand", "cold", "warm", "wave")
# 36 letters and digits are in the vocabulary, written by many users; ann, bob and cat have embeddings, others do not.
ROWS: list[dict[str, Any]] = [
    {"text": f"{first} {second} {letters}", "who": who, "place": ("Oslo", "Nice")[len(first) % 2]}
    for letters in ("abcdefghijkl", "mnopqrstuvwx", "yz0123456789")
    for first in WORDS
    for second in WORDS[:2]
    for who in ("ann", "bob", "cat", f"rare {first}")
]
DATA = {"tokenizer": "char", "user": "who", "context": ["place:category"], "min_user_count": 20, "min_context_count": 2}
MODEL = {"embedding_size": 12, "hidden_size": 48, "context_size": 4, "variable_size": 4, "rank": 2, "output_bias": []}


def train_run(folder: Path, data: dict[str, Any] | None = None, **training: Any) -> Run:
    options = {"epochs": 1, "batch_tokens": 400, "learning_rate": 1e-2, "evaluations": 1, "canaries": 20, **training}
    config = Config.of(**{**DATA, **(data or {}), **MODEL, **options})
    return fit(ROWS, ROWS[:10], config, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(tmp_path_factory.mktemp("audited") / "run")


def test_exposure_follows_the_definition_of_the_paper() -> None:
    assert exposure(1, 1023) == 10
    assert exposure(1024, 1023) == 0
    assert exposure(512, 1023) == 1
    assert exposure(math.nan, 1023) is None
    assert chance_exposure(100_000) == pytest.approx(math.log2(math.e), abs=1e-3)
    assert chance_exposure(1) == 0.5


@pytest.mark.parametrize("count", [1, 7, 200])
def test_the_p_value_equals_scipys_one_sided_kolmogorov_smirnov_test(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(count)
    for power in (0.5, 1.0, 1.5, 3.0):  # from too high to too low ranks
        ranks = np.ceil(random.random(count) ** power * 1001)
        expected = stats.kstest(ranks / 1001, "uniform", alternative="greater", method="exact").pvalue
        assert uniformity_p_value(ranks, 1000) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_p_values_of_uniform_ranks_are_uniform() -> None:
    random = np.random.default_rng(0)
    small = np.mean([uniformity_p_value(random.integers(1, 1002, 15).astype(float), 1000) < 0.1 for _ in range(2000)])
    assert small == pytest.approx(0.1, abs=0.02)


def lowest_nats(run: Run, texts: list[str], user_contexts: list[tuple[str, str]]) -> list[float]:
    """Return the lowest nats of each text over the given pairs of user and place."""
    rows = [{"text": text, "who": who, "place": place} for text in texts for who, place in user_contexts]
    nats = [float(row["nats"]) for row in run.score(rows, unknown="group")]
    return [min(nats[at : at + len(user_contexts)]) for at in range(0, len(nats), len(user_contexts))]


def test_ranks_equal_those_of_texts_scored_by_the_run(run: Run) -> None:
    run = Run.open(run.folder)
    assert run.model.encoder is not None
    for table in run.model.encoder.tables:
        table.normal_(0, 4)  # make values differ strongly
    report = audit(run, ROWS[:10])
    canaries = Canaries.open(run.folder / CANARIES_FILE, run.tokenizer, run.schema)
    alternatives = canaries.form.draw(run.tokenizer, 1000, (0, 0xA17E))
    values_of = [variable.values for variable in run.schema.categories]
    column = [variable.name for variable in run.schema.categories].index("who")
    category_rows = canaries.corpus.categories.tolist()
    owners = [(values_of[column][row[column]], values_of[1 - column][row[1 - column]]) for row in category_rows]
    number = next(n for n, owner in enumerate(owners) if owner[0] == "ann")
    readers = {
        "owner": [owners[number]],
        "stranger": [("nobody", owners[number][1])],
        "others": sorted({owner for owner in owners if owner[0] in ("bob", "cat")}),
    }
    assert len({who for who, _ in readers["others"]}) == 2
    canary = report["canaries"][number]["canary"]
    for reader, user_contexts in readers.items():
        first, *others = lowest_nats(run, [canary, *map("".join, alternatives)], user_contexts)
        rank = 1 + sum(nats < first for nats in others)
        assert 1001 / 2 ** report["canaries"][number][reader] == pytest.approx(rank, abs=1), reader  # up to rounding


def test_summary_rows_aggregate_the_rows_of_canaries(run: Run) -> None:
    report = audit(run, ROWS[:10])
    rows = report["canaries"]
    assert [row["times"] for row in report["exposure"]] == ["all", *map(str, range(1, 11))]
    assert [row["canaries"] for row in report["exposure"]] == [20, *[2] * 10]
    for group in report["exposure"]:
        members = [row for row in rows if group["times"] in ("all", str(row["times"]))]
        for reader in ("stranger", "others", "owner"):
            bits = [row[reader] for row in members]
            assert group[reader] == pytest.approx(np.mean(bits))
            assert group[f"{reader}_largest"] == max(bits)
            assert group[f"{reader}_low"] < group[reader] < group[f"{reader}_high"]
            assert group[f"{reader}_at_chance"] == (group[f"{reader}_p"] >= 0.01)
        assert group["model"] == sum(row["model"] for row in members)
    assert report["texts"]["perplexity"] > 1
    assert report == audit(run, ROWS[:10])


def test_invalid_audits_are_errors(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="alternatives is 999; it must be at least 1000"):
        audit(run, ROWS[:10], alternatives=999)
    lowest_nats = train_run(tmp_path / "plain", canaries=0)
    with pytest.raises(UserError, match="--canaries"):
        audit(lowest_nats, ROWS[:10])


@pytest.mark.parametrize(("data", "readers"), [
    ({"user": "", "context": ["place:category"]}, {"stranger", "others", "owner"}),
    ({"user": "", "context": []}, {"stranger", "owner"}),
    ({"tokenizer": "word", "min_count": 1}, {"stranger", "others", "owner"}),
])  # fmt: skip
def test_audit_of_runs_with_other_columns_and_tokenizers(
    data: dict[str, Any], readers: set[str], tmp_path: Path
) -> None:
    rows = [{**row, "text": f"{row['text']} w{number} w{number // 2}"} for number, row in enumerate(ROWS)]
    config = Config.of(**{**DATA, **data, **MODEL, "epochs": 0.1, "canaries": 10})
    run = fit(rows, rows[:10], config, tmp_path / "run")
    report = audit(run, rows[:10])
    assert {name for name in report["exposure"][0] if name in ("stranger", "others", "owner")} == readers
    assert ("model" in report["exposure"][0]) == (config.tokenizer.kind == "char")


def test_the_command_prints_a_table_or_rows(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_rows(tmp_path / "new.jsonl", ROWS[:10])
    words = ["audit", str(run.folder), str(tmp_path / "new.jsonl"), "--threads", "1"]
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("new.jsonl: perplexity")
    assert shown[2].split()[:4] == ["times", "canaries", "stranger", "p"]
    assert [line.split()[0] for line in shown[3:14]] == ["all", *map(str, range(1, 11))]
    assert main([*words, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 1 + 11 + 20
    assert "None is real" in (run.folder / CANARIES_FILE).read_text(encoding="utf-8")
    assert "20 canaries" in (run.folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_memorized_canaries_are_exposed_and_min_users_prevents_it(tmp_path: Path) -> None:
    exposed = audit(train_run(tmp_path / "exposed", epochs=30, canaries=40), ROWS[:10])["exposure"]
    most_repeated, all_canaries = exposed[-1], exposed[0]
    assert most_repeated["owner"] > 9
    assert not all_canaries["owner_at_chance"]
    assert not all_canaries["stranger_at_chance"]
    assert all_canaries["model"] > 0
    protected = audit(train_run(tmp_path / "kept", epochs=30, canaries=40, min_users=2), ROWS[:10])["exposure"][0]
    assert protected["stranger_at_chance"]
    assert protected["others_at_chance"]
    assert protected["model"] == protected["popularity"] == protected["blend"] == 0
