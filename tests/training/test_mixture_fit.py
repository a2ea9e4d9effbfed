"""Trainings that end with an n-gram mixture: when it is saved, what is reported, and what reads it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import run_findings
from factorcell.evaluation.perplexity import evaluate
from factorcell.io import files
from factorcell.ngram import mixture
from factorcell.runs.run import Run, training_facts
from factorcell.runs.summary import result_facts
from factorcell.training.fit import read_corpora, train_run
from factorcell.training.mixture import MAX_DEV_TARGETS, fit_mixture
from factorcell.training.rules import plan
from tests.findings import parse_block
from tests.small_runs import ROWS

OPTIONS: dict[str, Any] = {
    "context": ["city"],
    "min_count": 1,
    "min_context_count": 1,
    "embedding_size": 4,
    "hidden_size": 5,
    "rank": 2,
    "context_size": 3,
    "variable_size": 2,
    "epochs": 1.0,
    "batch_tokens": 40,
    "evaluations": 1,
}
TRAIN = ROWS * 3


def train(folder: Path, **options: Any) -> Run:
    """Train a small run."""
    arguments = {name: options.pop(name) for name in ("compare_ngram",) if name in options}
    config = Config.of(**OPTIONS, **options)
    return train_run(TRAIN, ROWS, config, folder, **arguments)


def test_a_training_with_the_option_saves_and_uses_the_mixture(tmp_path: Path) -> None:
    run = train(tmp_path / "run", ngram_mixture=True)
    opened = Run.open(tmp_path / "run")
    assert run.mixture is not None
    assert opened.mixture is not None
    corpus = opened.prepare(ROWS)
    np.testing.assert_allclose(opened.nats(corpus), run.nats(corpus), rtol=1e-5)
    row = training_facts(run.folder)["ngram"]
    assert row["is_saved"]
    assert row["components"][:2] == ["neural", "ngram"]
    neural = Run.open(tmp_path / "run", mixture=False)
    assert evaluate(neural, ROWS).perplexity == pytest.approx(row["perplexity"]["neural"], rel=1e-4)
    assert evaluate(opened, ROWS).perplexity < row["perplexity"]["neural"]


def test_a_training_without_the_option_only_reports_the_mixture(tmp_path: Path) -> None:
    run = train(tmp_path / "run", compare_ngram=True)
    assert run.mixture is None
    assert Run.open(tmp_path / "run").mixture is None
    assert not (tmp_path / "run" / mixture.FILE).exists()
    assert not training_facts(run.folder)["ngram"]["is_saved"]
    assert "undertrained" in [finding.name for finding in run_findings(run)]
    assert dict(result_facts(run))["n-grams"].endswith("(not used; option --ngram-mixture)")


def test_a_training_without_the_comparison_counts_nothing(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    assert "ngram" not in training_facts(run.folder)


@pytest.mark.parametrize(("budget", "is_mixed"), [({"preset": "best"}, True), ({"preset": "good"}, False), ({}, False)])
@pytest.mark.parametrize("user", ["", "city"])
def test_the_preset_best_mixes_unless_there_are_users(budget: dict[str, Any], is_mixed: bool, user: str) -> None:
    data: dict[str, Any] = {
        "min_context_count": 1,
        **({"user": user, "min_user_count": 1} if user else {"context": ["city"]}),
    }
    specified: dict[str, dict[str, Any]] = {
        "data": data,
        "tokenizer": {"min_count": 1},
        "training": {"precision": "float32"},
    }
    corpus, dev = read_corpora(TRAIN, ROWS, Config.from_dict(specified))
    complete = plan(specified, corpus, dev, **budget)
    assert complete.training.ngram_mixture == (is_mixed and not user)


def test_an_unadapted_mixture_does_not_depend_on_the_context(tmp_path: Path) -> None:
    run = train(tmp_path / "run", ngram_mixture=True, adapt=[], output_bias=[])
    assert run.mixture is not None
    assert run.mixture.counts.variable is None
    corpora = [run.prepare([{"text": "the sea", "city": city}]) for city in ("Oslo", "Nice")]
    first, second = (run.nats(corpus) for corpus in corpora)
    assert np.array_equal(first, second)


def test_the_weights_are_fitted_on_a_part_of_many_development_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "run")
    corpus, dev = read_corpora(TRAIN, ROWS * 20, run.config)
    assert dev.target_count < MAX_DEV_TARGETS
    sizes: list[int] = []
    whole_batches = Run.batches

    def batches(self: Run, texts: Corpus) -> Any:
        sizes.append(texts.target_count)
        return whole_batches(self, texts)

    monkeypatch.setattr(Run, "batches", batches)
    monkeypatch.setattr("factorcell.training.mixture.MAX_DEV_TARGETS", 100)
    _, row = fit_mixture(run, corpus, dev)
    assert 0 < max(sizes) <= 150
    assert row["perplexity"]["mixture"] > 1


def test_the_commands_use_the_mixture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_rows(tmp_path / "train.jsonl", TRAIN)
    files.write_rows(tmp_path / "dev.jsonl", ROWS)
    table, dev, run = (str(tmp_path / name) for name in ("train.jsonl", "dev.jsonl", "run"))
    flags = ["--context", "city", "--min-count", "1", "--min-context-count", "1", "--hidden-size", "5", "--epochs", "1"]
    assert main(["train", table, "--dev", dev, "--out", run, "--ngram-mixture", *flags, "--batch-tokens", "40"]) == 0
    block = parse_block(capsys.readouterr().err.splitlines())
    assert "mixture; " in block["perplexity"]
    assert "mixture" in block["n-grams"]
    assert main(["evaluate", run, dev]) == 0
    perplexity = evaluate(Run.open(run), ROWS).perplexity
    assert f"{perplexity:.2f}" in capsys.readouterr().out
    assert main(["classify", run, dev, "--target", "city", "--samples", "10"]) == 2
    assert "omit --samples" in capsys.readouterr().err
    assert main(["score", run, dev]) == 0


def test_a_mixture_is_refused_where_min_users_protects_texts() -> None:
    with pytest.raises(UserError, match="n-gram counts would reveal what min_users protects"):
        Config.of(user="city", min_users=2, ngram_mixture=True)
