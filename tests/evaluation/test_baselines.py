"""The linear baseline against scikit-learn's TF-IDF features, and the commands of baselines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from factorcell.evaluation.linear_classifier import classify_with_linear_baseline, read_train_and_test
from factorcell.io import files
from factorcell.ngram.ngram import NGram
from tests.small_runs import CONTEXT, make_run

Dialects = Callable[[int, int], tuple[list[dict[str, str]], float]]

CONFIG = Config.of(min_count=1, min_context_count=2)
TRAIN = [
    {"text": "sun sun sand", "place": "beach"},
    {"text": "sea sun", "place": "beach"},
    {"text": "", "place": "beach"},
    {"text": "snow ice snow", "place": "hill"},
    {"text": "sun snow wood wood wood", "place": "hill"},
    {"text": "sand wood", "place": "desert"},
]
TEST = [
    {"text": "sun sand sand", "place": "beach"},
    {"text": "never seen snow", "place": "hill"},
    {"text": "wood", "place": "beach"},
    {"text": "sand", "place": "desert"},
    {"text": "ice", "place": "swamp"},
]


@pytest.fixture
def corpora() -> tuple[Corpus, Corpus]:
    """Corpora with two frequent values, a rare one (desert), and an unseen one (swamp)."""
    return read_train_and_test(TRAIN, TEST, "place", CONFIG)


def test_rare_and_unseen_values_are_no_candidates_and_invalid_tables_are_errors(corpora: tuple[Corpus, Corpus]) -> None:
    with pytest.raises(UserError, match="place: expected at least two values with 2 training texts each, got fewer"):
        read_train_and_test(TRAIN[:3], TEST, "place", CONFIG)
    with pytest.raises(UserError, match="no column 'city'"):
        read_train_and_test(TRAIN, TEST, "city", CONFIG)
    result = classify_with_linear_baseline(*corpora)
    assert (result.names, result.truth.tolist()) == (("beach", "hill"), [0, 1, 0, -1, -1])
    np.testing.assert_allclose(result.probabilities.sum(1), 1)


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, two_dialects: Dialects) -> Path:
    for name, count, seed in (("train", 300, 1), ("test", 60, 2)):
        files.write_rows(tmp_path / f"{name}.jsonl", two_dialects(count, seed)[0])
    (tmp_path / "recipe.toml").write_text("[tokenizer]\nmin_count = 1\n", encoding="utf-8")
    return tmp_path


def test_the_baseline_commands_print_the_metrics_of_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test, recipe = (str(folder / name) for name in ("train.jsonl", "test.jsonl", "recipe.toml"))
    model = str(folder / "kn")
    assert main(["baseline", "ngram", train, "--config", recipe, "--out", model, "--order", "2"]) == 0
    assert "n-grams" in capsys.readouterr().err
    (row,) = run_json(capsys, "evaluate", model, test, "--save")
    assert 1 < row["perplexity"] < 12
    assert row["perplexity"] == row["perplexity_known"]
    assert files.read_rows(folder / "kn" / "results.jsonl")[0] == row
    assert main(["evaluate", model, test, "--by", "dialect"]) == 0
    judging = [train, "--config", recipe, "--test", test, "--target", "dialect"]
    (regression,) = run_json(capsys, "baseline", "linear", *judging)
    assert regression["accuracy"] > 0.8
    assert (regression["classifier"], regression["priors"]) == ("linear", "linear")
    assert main(["baseline", "linear", *judging]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == [
        "classifier",
        "linear baseline",
        "majority class (hills)",
    ]


def test_baselines_ignore_users_and_times(folder: Path) -> None:
    config = CONFIG.with_options(user="dialect", anonymous=True, time="day")
    train, test = read_train_and_test(folder / "train.jsonl", folder / "test.jsonl", "dialect", config)
    assert [variable.name for variable in train.schema.variables] == ["dialect"]
    assert set(test.categories[:, 0].tolist()) == {1, 2}
    table = [{"text": "sun sand"}, {"text": "sun sea"}]
    model = NGram.fit(table, config, folder / "counts", order=2)
    data = model.config.data
    assert (data.user, data.time, data.anonymous) == ("", "", False)
    assert NGram.open(folder / "counts").prepare(table).target_count == 6


def test_like_reads_texts_with_the_tokenizer_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "run", CONTEXT).save_weights({})
    train, model = str(folder / "train.jsonl"), str(folder / "kn")
    assert main(["baseline", "ngram", train, "--like", str(folder / "run"), "--out", model]) == 0
    (row,) = run_json(capsys, "evaluate", model, str(folder / "test.jsonl"))
    assert row["unknown_share"] > 0.5
    again = str(folder / "kn2")
    assert (
        main(["baseline", "ngram", train, "--like", model, "--out", again]) == 0
    )  # --like also accepts an n-gram model
    (same,) = run_json(capsys, "evaluate", again, str(folder / "test.jsonl"))
    assert same == row
    assert main(["baseline", "ngram", train, "--like", str(folder / "nothing"), "--out", str(folder / "kn3")]) == 2
    assert "expected a run folder" in capsys.readouterr().err


def test_the_linear_classifier_learns_from_another_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(5)
    for name, count in (("train", 400), ("test", 100)):
        places, ages = random.choice(["beach", "hill"], count), random.normal(0, 1, count)
        rows = [
            {"text": "sun sea", "place": place, "age": age + 3 * (place == "hill")}
            for place, age in zip(places.tolist(), ages.tolist(), strict=True)
        ]
        files.write_rows(tmp_path / f"{name}.jsonl", rows)
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    accuracies = []
    for context in ([], ["--context", "age:number"]):
        paths = [str(train), "--test", str(test), "--target", "place", "--json"]
        assert main(["baseline", "linear", *paths, *context]) == 0
        accuracies.append(json.loads(capsys.readouterr().out)["accuracy"])
    best = np.mean([(row["age"] > 1.5) == (row["place"] == "hill") for row in files.read_rows(test)])
    assert accuracies[0] < 0.65
    assert accuracies[1] == pytest.approx(best, abs=0.03)
    assert main(["baseline", "linear", str(train), "--test", str(test), "--target", "place", "--context", "place"]) == 2
    assert "context column 'place': it is the target; choose other columns" in capsys.readouterr().err
