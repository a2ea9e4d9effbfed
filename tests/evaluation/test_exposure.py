"""Exposure against ranks found text by text, its test against SciPy's, and a run that has learned canaries by heart."""

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
# 36 letters and digits are known, each of many people; ann, bob and cat have vectors of their own, others have none.
ROWS: list[dict[str, Any]] = [
    {"text": f"{first} {second} {letters}", "who": who, "place": ("Oslo", "Nice")[len(first) % 2]}
    for letters in ("abcdefghijkl", "mnopqrstuvwx", "yz0123456789")
    for first in WORDS
    for second in WORDS[:2]
    for who in ("ann", "bob", "cat", f"rare {first}")
]
DATA = {"tokenizer": "char", "user": "who", "context": ["place:category"], "min_user_count": 20, "min_context_count": 2}
MODEL = {"embedding_size": 12, "hidden_size": 48, "context_size": 4, "variable_size": 4, "rank": 2, "output_bias": []}


def trained(folder: Path, data: dict[str, Any] | None = None, **training: Any) -> Run:
    options = {"epochs": 1, "batch_tokens": 400, "learning_rate": 1e-2, "evaluations": 1, "canaries": 20, **training}
    config = Config.of(**{**DATA, **(data or {}), **MODEL, **options})
    return fit(ROWS, ROWS[:10], config, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("audited") / "run")


def test_exposure_is_that_of_the_paper() -> None:
    assert exposure(1, 1023) == 10
    assert exposure(1024, 1023) == 0
    assert exposure(512, 1023) == 1
    assert exposure(math.nan, 1023) is None
    assert chance_exposure(100_000) == pytest.approx(math.log2(math.e), abs=1e-3)
    assert chance_exposure(1) == 0.5


@pytest.mark.parametrize("count", [1, 7, 200])
def test_the_test_is_the_one_sided_one_of_kolmogorov_and_smirnov(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(count)
    for power in (0.5, 1.0, 1.5, 3.0):  # from ranks too high to ranks too low
        ranks = np.ceil(random.random(count) ** power * 1001)
        expected = stats.kstest(ranks / 1001, "uniform", alternative="greater", method="exact").pvalue
        assert uniformity_p_value(ranks, 1000) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_by_chance_p_is_rarely_small() -> None:
    random = np.random.default_rng(0)
    small = np.mean([uniformity_p_value(random.integers(1, 1002, 15).astype(float), 1000) < 0.1 for _ in range(2000)])
    assert small == pytest.approx(0.1, abs=0.02)


def plain(run: Run, texts: list[str], people: list[tuple[str, str]]) -> list[float]:
    """The nats of each of `texts` by whoever of `people` makes it most likely."""
    rows = [{"text": text, "who": who, "place": place} for text in texts for who, place in people]
    nats = [float(row["nats"]) for row in run.score(rows, unknown="group")]
    return [min(nats[at : at + len(people)]) for at in range(0, len(nats), len(people))]


def test_ranks_are_those_of_texts_scored_by_the_run(run: Run) -> None:
    run = Run.open(run.folder)
    assert run.model.encoder is not None
    for table in run.model.encoder.tables:
        table.normal_(0, 4)  # values that differ in all that they make likely
    found = audit(run, ROWS[:10])
    canaries = Canaries.open(run.folder / CANARIES_FILE, run.tokenizer, run.schema)
    drawn = canaries.form.draw(1000, (0, 0xA17E))
    named = [variable.values for variable in run.schema.categories]
    column = [variable.name for variable in run.schema.categories].index("who")
    ids = canaries.corpus.categories.tolist()
    owners = [(named[column][one[column]], named[1 - column][one[1 - column]]) for one in ids]
    number = next(n for n, owner in enumerate(owners) if owner[0] == "ann")
    readers = {
        "owner": [owners[number]],
        "stranger": [("nobody", owners[number][1])],
        "others": sorted({owner for owner in owners if owner[0] in ("bob", "cat")}),
    }
    assert len({who for who, _ in readers["others"]}) == 2
    own = found["canaries"][number]["canary"]
    for reader, people in readers.items():
        first, *others = plain(run, [own, *map("".join, drawn)], people)
        rank = 1 + sum(nats < first for nats in others)
        assert 1001 / 2 ** found["canaries"][number][reader] == pytest.approx(rank, abs=1), reader  # but for rounding


def test_rows_sum_up_what_single_canaries_have(run: Run) -> None:
    found = audit(run, ROWS[:10])
    rows = found["canaries"]
    assert [row["times"] for row in found["exposure"]] == ["all", *map(str, range(1, 11))]
    assert [row["canaries"] for row in found["exposure"]] == [20, *[2] * 10]
    for group in found["exposure"]:
        chosen = [row for row in rows if group["times"] in ("all", str(row["times"]))]
        for reader in ("stranger", "others", "owner"):
            bits = [row[reader] for row in chosen]
            assert group[reader] == pytest.approx(np.mean(bits))
            assert group[f"{reader}_largest"] == max(bits)
            assert group[f"{reader}_low"] < group[reader] < group[f"{reader}_high"]
            assert group[f"{reader}_at_chance"] == (group[f"{reader}_p"] >= 0.01)
        assert group["model"] == sum(row["model"] for row in chosen)
    assert found["texts"]["perplexity"] > 1
    assert found == audit(run, ROWS[:10])


def test_mistakes_of_an_audit(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="alternatives is 999; it must be at least 1000"):
        audit(run, ROWS[:10], alternatives=999)
    plain = trained(tmp_path / "plain", canaries=0)
    with pytest.raises(UserError, match="--canaries"):
        audit(plain, ROWS[:10])


@pytest.mark.parametrize(("data", "readers"), [
    ({"user": "", "context": ["place:category"]}, {"stranger", "others", "owner"}),
    ({"user": "", "context": []}, {"stranger", "owner"}),
    ({"tokenizer": "word", "min_count": 1}, {"stranger", "others", "owner"}),
])  # fmt: skip
def test_runs_of_other_columns_and_units(data: dict[str, Any], readers: set[str], tmp_path: Path) -> None:
    rows = [{**row, "text": f"{row['text']} w{number} w{number // 2}"} for number, row in enumerate(ROWS)]
    config = Config.of(**{**DATA, **data, **MODEL, "epochs": 0.1, "canaries": 10})
    run = fit(rows, rows[:10], config, tmp_path / "run")
    found = audit(run, rows[:10])
    assert {name for name in found["exposure"][0] if name in ("stranger", "others", "owner")} == readers
    assert ("model" in found["exposure"][0]) == (config.tokenizer.kind == "char")


def test_the_verb_shows_a_table_or_rows(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_what_is_learned_by_heart_is_exposed_and_what_is_forgotten_is_not(tmp_path: Path) -> None:
    exposed = audit(trained(tmp_path / "exposed", epochs=30, canaries=40), ROWS[:10])["exposure"]
    often, everyone = exposed[-1], exposed[0]
    assert often["owner"] > 9
    assert not everyone["owner_at_chance"]
    assert not everyone["stranger_at_chance"]
    assert everyone["model"] > 0
    kept = audit(trained(tmp_path / "kept", epochs=30, canaries=40, min_users=2), ROWS[:10])["exposure"][0]
    assert kept["stranger_at_chance"]
    assert kept["others_at_chance"]
    assert kept["model"] == kept["popularity"] == kept["blend"] == 0
