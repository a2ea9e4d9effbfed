"""The study of exposure: its rows, its texts, and the table of the page, which is that of the rows that are kept."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import exposure
import exposure_phrases
import study
from factorcell import files
from factorcell.evaluation.exposure import uniformity
from tests import ROOT
from tests.experiments.test_tables import cells

EXPERIMENTS = {"exposure": exposure.EXPERIMENT, "exposure_phrases": exposure_phrases.EXPERIMENT}
WORDS = ("fixed", "adding", "tests", "with", "from", "docs", "build", "code", "more", "some")
TEXTS = pa.table(
    {
        "text": [f"{WORDS[n % 10]} {WORDS[n % 7]} {n}" for n in range(400)],
        "user": [f"user {n * n % 37}" for n in range(400)],
    }
)


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, one in EXPERIMENTS.items() for row in one.rows])
def test_the_library_knows_every_option(name: str, row: str) -> None:
    config = EXPERIMENTS[name].config(study.Training(row, 0), 1).to_dict()
    for section, options in EXPERIMENTS[name].rows[row].items():
        assert {key: config[section][key] for key in options} == options


def test_users_are_drawn_whole() -> None:
    """About as many texts as asked for, and every text of who is drawn."""
    some = exposure.some_users(TEXTS, 150)
    whole, drawn = Counter(TEXTS["user"].to_pylist()), Counter(some["user"].to_pylist())
    assert 150 <= len(some) < 150 + max(whole.values())
    assert drawn == {user: whole[user] for user in drawn}


def test_each_passphrase_is_planted_three_times_by_one_user() -> None:
    planted, drawn = exposure_phrases.planted(TEXTS), exposure_phrases.phrases(TEXTS)
    added = planted.slice(len(TEXTS)).to_pylist()
    assert planted.slice(0, len(TEXTS)).equals(TEXTS)
    assert Counter(row["text"] for row in added) == dict.fromkeys(drawn[: exposure_phrases.PHRASES], 3)
    assert len({(row["text"], row["user"]) for row in added}) == exposure_phrases.PHRASES
    assert {word for text in drawn for word in text.split()} <= set(WORDS)
    assert len(drawn) == exposure_phrases.PHRASES + exposure_phrases.ALTERNATIVES


def test_a_line_has_the_canaries_of_all_trainings() -> None:
    """Means and deviations of trainings; of canaries together how likely they are, and how many are suggested."""

    def row(seed: int, bits: float) -> dict[str, object]:
        canaries = [[times, bits, bits / 2, 0.0] for times in range(1, 11) for _ in range(10)]
        exposure = [{"times": "3"}, {"times": "all", "popularity": 2 + seed, "model": 1}]
        return {
            "row": "as it is",
            "seed": seed,
            "perplexity": 6.0 + seed,
            "audited": {"mrr": 0.05},
            "exposure": exposure,
        } | {"canaries": canaries}

    (line,) = cells(exposure_table := exposure.table([row(0, 4.0), row(1, 8.0)]))
    assert line[:4] == ["as it is", "2", "6.50 ± 0.71", "0.050 ± 0.000"]
    assert line[4:10] == ["6.00 ± 2.83", "0.000", "3.00 ± 1.41", "0.000", "0.00 ± 0.00", "1.000"]
    assert line[10:] == ["6.00", "0.000", "3.00", line[13], "5"]
    ranks = 1001 / 2 ** np.array([2.0] * 10 + [4.0] * 10)
    assert line[13] == f"{uniformity(ranks, 1000):.3f}"
    assert "perplexity per character, all targets" in exposure_table
    assert exposure.by_chance(np.zeros(20)) == "1.000"
    assert exposure.table([row(0, 4.0)]).count("±") == 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_table_of_the_page_is_that_of_the_rows(name: str) -> None:
    """What is committed was trained with the options that the script has, and is what the page shows."""
    rows, of = files.read_rows(study.HERE / "results" / f"{name}.jsonl"), EXPERIMENTS[name]
    assert {(row["row"], row["seed"]) for row in rows} == {(one.row, one.seed) for one in of.trainings()}
    for row in rows:
        assert study.made_with(row) == of.config(study.Training(row["row"], row["seed"]), 1)
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    table = {"exposure": exposure.table, "exposure_phrases": exposure_phrases.table}[name]
    assert table(rows) in page


def test_a_line_has_the_passphrases_of_all_trainings() -> None:
    """The mean exposure of them, and the largest p."""
    rows = [{"row": "a", "seed": n, "stranger": 2.0 + n, "p": 0.1 * n, "chance": 1.436} for n in range(2)]
    assert cells(exposure_phrases.table(rows)) == [["a", "2", "2.50 ± 0.71", "1.44", "0.100"]]
