"""Counts of tokens in the training texts of contexts against loops over texts, and what the commands show with them."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.evaluation.explaining.likelihood_ratios import evidence_findings, explain, has_evidence, with_evidence
from factorcell.evaluation.explaining.token_evidence import (
    MIN_RATIO,
    count_tokens,
    is_more_frequent,
    most_shifted_tokens,
    read_training_texts,
)
from factorcell.io import files
from factorcell.reports.explain import explanation_page
from factorcell.runs.run import Run
from tests.findings import expected_finding
from tests.pages import Page

ROWS: list[dict[str, Any]] = [
    {"text": "snow snow sea", "city": "Oslo", "stars": "5"},
    {"text": "snow rain", "city": "Oslo", "stars": "1"},
    {"text": "sun sea sun", "city": "Nice", "stars": "5"},
    {"text": "sun rain sun sun", "city": "Nice", "stars": "5"},
    {"text": "lava lava rain", "city": "Hilo", "stars": "1"},
    {"text": "lava sea", "city": "Hilo", "stars": "5"},
]

TRAIN = ROWS * 5


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = Config.of(context=("city", "stars", "age:number"), min_count=1, min_context_count=1)
    corpus = prepare([{**row, "age": index} for index, row in enumerate(ROWS)], config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.5)
        run.model.encoder.tables[0].data *= 0.2  # type: ignore[union-attr]
    run.save_weights({})
    return run


def training_texts(run: Run, rows: list[dict[str, Any]]) -> Corpus:
    corpus = read_training_texts(run, rows)
    assert corpus is not None
    return corpus


@pytest.mark.parametrize(
    "contexts",
    [
        ({"city": "Oslo"}, {"city": "Nice"}),
        (
            {"city": "Oslo", "stars": "5"},
            {"city": "Nice", "stars": "5"},
        ),  # all texts of both cities, whatever the stars
        ({"city": "Oslo", "stars": "5"}, {"city": "Nice", "stars": "1"}),
        ({"city": "Hilo"}, {}),
        ({"city": "Oslo"}, {"city": "Nice"}, {"city": "Hilo"}),
    ],
)
def test_counts_of_contexts_are_those_of_their_texts(run: Run, contexts: tuple[dict[str, str], ...]) -> None:
    counts = count_tokens(run, training_texts(run, TRAIN), contexts)
    assert counts is not None
    columns = [name for name in ("city", "stars") if len({context.get(name) for context in contexts}) > 1]
    for index, context in enumerate(contexts):
        texts = [row["text"] for row in TRAIN if all(row[c] == context.get(c, row[c]) for c in columns)]
        words = Counter(word for text in texts for word in text.split())
        for token, count in zip(run.tokenizer.tokens, counts[index].tolist(), strict=True):
            assert count == (len(texts) if token == "</s>" else words[token])
    first, second = counts[:2]
    for place, is_supported in enumerate(is_more_frequent(first, second)):
        total, ratio = first[place] + second[place], 0.0
        for context in (first, second):
            expected = total * context.sum() / (first.sum() + second.sum())
            ratio += 2 * context[place] * math.log(context[place] / expected) if context[place] else 0.0
        assert is_supported == (first[place] * second.sum() > second[place] * first.sum() and ratio >= MIN_RATIO)


def test_numbers_have_no_counts(run: Run) -> None:
    corpus = training_texts(run, ROWS)
    assert count_tokens(run, corpus, [{"age": 3, "city": "Oslo"}, {"age": 4, "city": "Nice"}]) is None
    assert count_tokens(run, corpus, [{"age": 4, "city": "Oslo"}, {"age": 4, "city": "Nice"}]) is not None


def test_only_tokens_with_evidence_are_shown_as_shifted(run: Run) -> None:
    contexts = {"city": "Oslo"}, {"city": "Nice"}
    counts = count_tokens(run, training_texts(run, TRAIN), contexts)
    assert counts is not None
    assert most_shifted_tokens(run, *contexts, count=100, train=ROWS) == []  # too few texts
    rows = most_shifted_tokens(run, *contexts, count=100, train=TRAIN)
    assert rows
    with expected_finding("no evidence"):
        all_rows = most_shifted_tokens(run, *contexts, count=100)
    without_counts = {row["token"]: row["nats"] for row in all_rows}
    assert {"lava", "snow"} <= without_counts.keys()
    assert "lava" not in {row["token"] for row in rows}
    for row in rows:
        assert row["nats"] == without_counts[row["token"]]
        index = run.tokenizer.tokens.index(row["token"])
        assert [row["count"], row["count_against"]] == counts[:, index].tolist()
        supported = is_more_frequent(*counts) if row["nats"] > 0 else is_more_frequent(*counts[::-1])
        assert supported[index]


def test_shifted_tokens_are_counted_in_the_training_table_of_the_run(run: Run, tmp_path: Path) -> None:
    contexts = {"city": "Oslo"}, {"city": "Nice"}
    files.write_rows(tmp_path / "train.jsonl", TRAIN)
    files.write_json(run.folder / "training.json", {"path": "../train.jsonl"})
    assert most_shifted_tokens(run, *contexts) == most_shifted_tokens(run, *contexts, train=TRAIN) != []
    with expected_finding("no evidence"):
        most_shifted_tokens(run, {"age": 3}, {"age": 4})


def test_out_of_vocabulary_tokens_have_no_counts(run: Run) -> None:
    contexts = {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}
    (row,) = explain(run, ["alamo lava"], contexts, train=ROWS)
    assert [token["counts"]["Oslo"] for token in row["tokens"]] == [None, 0, 2]
    assert [has_evidence(token) for token in row["tokens"]] == [True, False, True]


def test_explanation_pages_treat_tokens_without_evidence_as_the_terminal_does(run: Run) -> None:
    rows = explain(run, ["lava sea"], {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}, train=ROWS)
    content = explanation_page("run", rows)
    ratio, _ = with_evidence(rows[0])
    assert ratio == pytest.approx(rows[0]["ratio"] - rows[0]["tokens"][0]["ratio"])
    (posteriors,) = [row for row in Page(content).rows if row[0] == "lava sea"]
    assert posteriors[-2:] == [f"{rows[0]['ratio']:+.2f}", f"{ratio:+.2f}"]
    assert '; no evidence">lava</span>' in content


def test_explanations_say_which_tokens_have_no_evidence(run: Run, tmp_path: Path) -> None:
    contexts = {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}
    rows = explain(run, ["lava sea", "lava lava", ""], contexts, train=ROWS)
    assert [token["counts"] for token in rows[0]["tokens"][:2]] == [{"Oslo": 0, "Nice": 0}, {"Oslo": 1, "Nice": 1}]
    (finding,) = evidence_findings(rows)
    assert finding.text.startswith("'lava lava': ")
    without_counts = explain(run, ["lava sea"], contexts)
    assert list(evidence_findings(without_counts)) == []
    assert without_counts[0]["ratio"] == pytest.approx(rows[0]["ratio"], rel=1e-4)


def test_explanations_count_tokens_in_the_training_texts_of_each_context(run: Run) -> None:
    contexts = {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}
    rows = explain(run, ["snow sun sea"], contexts, train=ROWS)
    assert [token["counts"] for token in rows[0]["tokens"]] == [
        {"Oslo": 3, "Nice": 0},
        {"Oslo": 0, "Nice": 5},
        {"Oslo": 1, "Nice": 1},
        {"Oslo": 2, "Nice": 2},
    ]


def test_commands_count_words_in_the_training_table(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["explain", str(run.folder), "--text", "lava sea", "--between", "city=Oslo", "city=Nice"]
    assert main(command) == 0
    assert "no counts of words: " in capsys.readouterr().err
    files.write_rows(tmp_path / "train.jsonl", ROWS)
    files.write_json(run.folder / "training.json", {"path": "../train.jsonl"})
    assert main(command) == 0
    output = capsys.readouterr()
    assert "without the tokens without evidence (lava): " in output.out
    (row,) = explain(run, ["lava sea"], {"a": {"city": "Oslo"}, "b": {"city": "Nice"}})
    ratio = sum(token["ratio"] for token in row["tokens"][1:])
    probability = 1 / (1 + np.exp(-ratio))
    assert f"{ratio:+.2f} nats; p(city=Oslo | text) = {probability:.1%}" in output.out
    assert main(["contexts", str(run.folder), "--between", "city=Oslo", "city=Nice"]) == 0
    shown = capsys.readouterr().out
    assert "city=Oslo against city=Nice" in shown
    assert "lava" not in shown
