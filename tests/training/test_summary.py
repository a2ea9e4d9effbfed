"""The summary line of a training: the gain over an unknown context, or why it is unknown."""

from pathlib import Path
from typing import Any

import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.config import Config
from factorcell.evaluation.perplexity import has_only_unknown_users
from factorcell.evaluation.run_warnings import find_warnings
from factorcell.model.run import Run, training_facts
from factorcell.training.fit import fit, summary

Rows = list[dict[str, Any]]
TEXTS = ["fix typo", "add docs", "fix tests", "add a test"]
TRAIN: Rows = [
    {"text": text, "who": who, "city": city} for text in TEXTS for who in ("ann", "bob") for city in ("Oslo", "Nice")
] + [{"text": "fix all", "who": "rare", "city": "Oslo"}]
EFFECT = "gain over an unknown context (same model): "
UNKNOWN_USERS = (
    "no development text is by a known user; "
    "`factorcell replay {} TABLE --out FOLDER` measures the gain from learning users"
)


def texts_by(who: str) -> Rows:
    """Return development texts of one user."""
    return [{"text": text, "who": who, "city": "Oslo"} for text in TEXTS * 4]


def train_run(folder: Path, dev: Rows, **data: Any) -> Run:
    """Train a run with a user column."""
    options = {
        "data": {"user": "who", "min_user_count": 4, "min_context_count": 1, **data},
        "tokenizer": {"kind": "char", "min_count": 1},
        "model": {"embedding_size": 4, "rank": 2},
        "backbone": {"hidden_size": 6},
        "training": {"epochs": 1, "evaluations": 1, "batch_tokens": 100},
    }
    return fit(TRAIN, dev, Config.from_dict(options), folder)


def test_the_summary_says_that_development_users_are_unknown(tmp_path: Path) -> None:
    new = train_run(tmp_path / "new", [*texts_by("carl"), *texts_by("rare")])
    assert training_facts(new.folder)["context"]["only_unknown_users"]
    assert summary(new).endswith(f"minutes of training; {UNKNOWN_USERS.format(new.folder)}")
    assert EFFECT not in summary(new)
    (warning,) = find_warnings([new])
    assert "the effect of its context is measured only on texts of unknown users" in warning
    both = train_run(tmp_path / "both", texts_by("carl"), context=("city",))
    assert EFFECT in summary(both)
    assert summary(both).endswith(f"; {UNKNOWN_USERS.format(both.folder)}")
    known = train_run(tmp_path / "known", [*texts_by("carl"), texts_by("ann")[0]])
    assert "only_unknown_users" not in training_facts(known.folder)["context"]
    assert EFFECT in summary(known)
    assert "replay" not in summary(known)


@pytest.fixture(scope="module")
def known_user_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that knows the user of its development texts."""
    return train_run(tmp_path_factory.mktemp("known") / "run", texts_by("ann"))


def test_only_a_positive_effect_is_compared_with_an_unadapted_run(known_user_run: Run) -> None:
    before = training_facts(known_user_run.folder)
    for gain, is_lower in ((0.02, True), (-0.02, False), (0.0, False)):
        context = {
            "texts": 16,
            "gain_over_unknown_context": gain,
            "gain_over_unknown_context_low": gain - 0.01,
            "gain_over_unknown_context_high": gain + 0.01,
        }
        files.write_json(known_user_run.folder / "training.json", {**before, "context": context})
        assert EFFECT in summary(known_user_run)
        assert summary(known_user_run).endswith("; the gain over an unadapted run may be smaller") == is_lower
    files.write_json(known_user_run.folder / "training.json", before)


def test_only_runs_with_users_can_have_only_unknown_users(known_user_run: Run, tmp_path: Path) -> None:
    assert not has_only_unknown_users(
        known_user_run, known_user_run.prepare([*texts_by("ann"), *texts_by("carl")], unknown="group")
    )
    assert has_only_unknown_users(
        known_user_run, known_user_run.prepare([{"text": "fix", "who": None}], unknown="group")
    )
    plain = train_run(tmp_path / "plain", texts_by("ann"), user="", context=("city",))
    assert not has_only_unknown_users(plain, plain.prepare(texts_by("carl"), unknown="group"))


def test_evaluate_reports_unknown_users(
    known_user_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for who in ("ann", "carl"):
        files.write_rows(tmp_path / f"{who}.jsonl", texts_by(who))
        command = [
            "evaluate",
            str(known_user_run.folder),
            str(tmp_path / f"{who}.jsonl"),
            "--by",
            "city",
            "--unknown",
            "group",
            "--save",
        ]
        assert main(command) == 0
        line = UNKNOWN_USERS.format(known_user_run.folder).replace("development text", "text")
        assert (line in capsys.readouterr().err) == (who == "carl")
    rows = [row for row in files.read_rows(known_user_run.folder / "results.jsonl") if row["kind"] == "evaluate"]
    assert [row.get("only_unknown_users") for row in rows] == [None, True]
