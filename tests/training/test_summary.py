"""The lines that a training logs: the gain over an unknown context, or why it is unknown."""

from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.evaluation.perplexity import has_only_unknown_users
from factorcell.io import files
from factorcell.runs.run import Run, training_facts
from factorcell.runs.summary import result_facts
from factorcell.training.fit import fit
from tests.findings import collected_findings, expected_finding

Rows = list[dict[str, Any]]
TEXTS = ["fix typo", "add docs", "fix tests", "add a test"]
TRAIN: Rows = [
    {"text": text, "who": who, "city": city} for text in TEXTS for who in ("ann", "bob") for city in ("Oslo", "Nice")
] + [{"text": "fix all", "who": "rare", "city": "Oslo"}]


def texts_by(who: str) -> Rows:
    """Return development texts of one user."""
    return [{"text": text, "who": who, "city": "Oslo"} for text in TEXTS * 4]


def train_run(folder: Path, dev: Rows, tokenizer: str = "char", **data: Any) -> Run:
    """Train a run with a user column."""
    options = {
        "data": {"user": "who", "min_user_count": 4, "min_context_count": 1, **data},
        "tokenizer": {"kind": tokenizer, "min_count": 1},
        "model": {"embedding_size": 4, "rank": 2},
        "backbone": {"hidden_size": 6},
        "training": {"epochs": 1, "evaluations": 1, "batch_tokens": 100},
    }
    return fit(TRAIN, dev=dev, out=folder, config=Config.from_dict(options))


def test_a_training_reports_that_development_users_are_unknown(tmp_path: Path) -> None:
    unknown_users = [*texts_by("carl"), *texts_by("rare")]
    with expected_finding("unknown users", f"tune-online {tmp_path / 'words'}"):
        words = train_run(tmp_path / "words", unknown_users, "word")
    assert training_facts(words.folder)["context"]["only_unknown_users"]
    with collected_findings() as findings:  # the gain from learning users is measured
        letters = train_run(tmp_path / "letters", unknown_users)
    assert "unknown users" not in [finding.name for finding in findings]
    assert "perplexity_change" in training_facts(letters.folder)["completion"]
    with collected_findings() as findings:
        known = train_run(tmp_path / "known", [*texts_by("carl"), texts_by("ann")[0]])
    assert "unknown users" not in [finding.name for finding in findings]
    assert "only_unknown_users" not in training_facts(known.folder)["context"]
    for run, is_measured in ((known, True), (letters, False)):
        block = dict(result_facts(run))
        assert ("gain" in block) == is_measured
        assert block["completion"]


@pytest.fixture(scope="module")
def known_user_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that knows the user of its development texts."""
    return train_run(tmp_path_factory.mktemp("known") / "run", texts_by("ann"))


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
            "--verbose",
        ]
        assert main(command) == 0
        assert ("no text is by a known user" in capsys.readouterr().err) == (who == "carl")
    rows = [row for row in files.read_rows(known_user_run.folder / "results.jsonl") if row["kind"] == "evaluate"]
    assert [row.get("only_unknown_users") for row in rows] == [None, True]
