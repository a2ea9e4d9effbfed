"""The line that a training ends with: what its context gained, or why that cannot be told."""

from pathlib import Path
from typing import Any

import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.config import Config
from factorcell.evaluation.perplexity import only_unknown_users
from factorcell.evaluation.run_warnings import find_warnings
from factorcell.model.run import Run, training_facts
from factorcell.training.fit import fit, summary

Rows = list[dict[str, Any]]
TEXTS = ["fix typo", "add docs", "fix tests", "add a test"]
TRAIN: Rows = [
    {"text": text, "who": who, "city": city} for text in TEXTS for who in ("ann", "bob") for city in ("Oslo", "Nice")
] + [{"text": "fix all", "who": "rare", "city": "Oslo"}]
GAIN = "over the same model without its context"
LEARN = (
    "no development text is by a known user; `factorcell tune-online {} TABLE` measures the gain from learning users"
)


def by(who: str) -> Rows:
    """Development texts of one person."""
    return [{"text": text, "who": who, "city": "Oslo"} for text in TEXTS * 4]


def trained(folder: Path, dev: Rows, **data: Any) -> Run:
    """A run that tells users apart."""
    said = {
        "data": {"user": "who", "min_user_count": 4, "min_context_count": 1, **data},
        "tokenizer": {"kind": "char", "min_count": 1},
        "model": {"embedding_size": 4, "rank": 2},
        "backbone": {"hidden_size": 6},
        "training": {"epochs": 1, "evaluations": 1, "batch_tokens": 100},
    }
    return fit(TRAIN, dev, Config.from_dict(said), folder)


def test_the_summary_says_that_development_users_are_unknown(tmp_path: Path) -> None:
    new = trained(tmp_path / "new", [*by("carl"), *by("rare")])
    assert training_facts(new.folder)["context"]["only_unknown_users"]
    assert summary(new).endswith(f"minutes; {LEARN.format(new.folder)}")
    assert GAIN not in summary(new)
    assert not [line for line in find_warnings([new]) if "does not significantly lower" in line]
    both = trained(tmp_path / "both", by("carl"), context=("city",))
    assert f" {GAIN}; {LEARN.format(both.folder)}" in summary(both)
    known = trained(tmp_path / "known", [*by("carl"), by("ann")[0]])
    assert "only_unknown_users" not in training_facts(known.folder)["context"]
    assert GAIN in summary(known)
    assert "tune-online" not in summary(known)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that knows the user of its development texts."""
    return trained(tmp_path_factory.mktemp("known") / "run", by("ann"))


def test_only_a_positive_gain_is_compared_with_an_unadapted_run(known: Run) -> None:
    before = training_facts(known.folder)
    for gain, less in ((0.02, True), (-0.02, False), (0.0, False)):
        context = {"texts": 16, "gain": gain, "gain_low": gain - 0.01, "gain_high": gain + 0.01}
        files.write_json(known.folder / "training.json", {**before, "context": context})
        assert summary(known).endswith(" (the gain over an unadapted run is smaller)" if less else GAIN)
    files.write_json(known.folder / "training.json", before)


def test_a_run_without_users_has_no_strangers(known: Run, tmp_path: Path) -> None:
    assert not only_unknown_users(known, known.prepare([*by("ann"), *by("carl")], unknown="group"))
    assert only_unknown_users(known, known.prepare([{"text": "fix", "who": None}], unknown="group"))
    plain = trained(tmp_path / "plain", by("ann"), user="", context=("city",))
    assert not only_unknown_users(plain, plain.prepare(by("carl"), unknown="group"))


def test_evaluate_reports_unknown_users(known: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for who in ("ann", "carl"):
        files.write_rows(tmp_path / f"{who}.jsonl", by(who))
        command = ["evaluate", str(known.folder), str(tmp_path / f"{who}.jsonl"), "--by", "city", "--unknown", "group"]
        assert main(command) == 0
        line = LEARN.format(known.folder).replace("development text", "text")
        assert (line in capsys.readouterr().out) == (who == "carl")
    rows = files.read_rows(known.folder / "results.jsonl")
    assert [row["evaluation"].get("only_unknown_users") for row in rows] == [None, True]
