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
from factorcell.data.corpus import target_frequencies
from factorcell.data.counts import target_counts_by_value
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.evaluation.explaining.token_evidence import (
    MIN_RATIO,
    count_tokens,
    evidence_findings,
    explain,
    has_evidence,
    is_more_frequent,
    most_shifted_tokens,
    read_texts,
    with_evidence,
)
from factorcell.io import files
from factorcell.reports.explaining import explanation_page
from factorcell.runs.run import UNIGRAMS, Run
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


def save_counts(run: Run, rows: list[dict[str, Any]]) -> None:
    """Save the counts of training texts in a run, as training does."""
    corpus = run.prepare([{"age": 0, **row} for row in rows])
    by_value = {v.name: target_counts_by_value(corpus, index) for index, v in enumerate(run.schema.categories)}
    run.save_unigram_counts(target_frequencies(corpus), by_value)


@pytest.mark.parametrize(
    "contexts",
    [
        ({"city": "Oslo"}, {"city": "Nice"}),
        (
            {"city": "Oslo", "stars": "5"},
            {"city": "Nice", "stars": "5"},
        ),  # all texts of both cities, whatever the stars
        ({"city": "Hilo"}, {}),
        ({"city": "Oslo"}, {"city": "Nice"}, {"city": "Hilo"}),
    ],
)
def test_counts_of_contexts_are_those_of_their_texts(run: Run, contexts: tuple[dict[str, str], ...]) -> None:
    save_counts(run, TRAIN)
    counts = count_tokens(run, contexts)
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


@pytest.mark.parametrize(
    "other", [{"age": 4, "city": "Nice"}, {"age": 4, "city": "Oslo"}, {"city": "Nice", "stars": "5"}]
)
def test_contexts_that_differ_in_numbers_or_in_several_columns_have_no_counts(run: Run, other: dict[str, Any]) -> None:
    save_counts(run, ROWS)
    with expected_finding("no evidence"):
        assert count_tokens(run, [{"age": 3, "city": "Oslo", "stars": "1"}, {"stars": "1", "age": 3, **other}]) is None
    assert count_tokens(run, [{"age": 4, "city": "Oslo"}, {"age": 4, "city": "Nice"}]) is not None


def test_only_tokens_with_evidence_are_shown_as_shifted(run: Run) -> None:
    contexts = {"city": "Oslo"}, {"city": "Nice"}
    with expected_finding("no evidence"):
        all_rows = most_shifted_tokens(run, *contexts, count=100)
    save_counts(run, ROWS)
    assert most_shifted_tokens(run, *contexts, count=100) == []  # too few texts
    save_counts(run, TRAIN)
    counts, rows = count_tokens(run, contexts), most_shifted_tokens(run, *contexts, count=100)
    assert counts is not None
    assert rows
    without_counts = {row["token"]: row["nats"] for row in all_rows}
    assert {"lava", "snow"} <= without_counts.keys()
    assert "lava" not in {row["token"] for row in rows}
    for row in rows:
        assert row["nats"] == without_counts[row["token"]]
        index = run.tokenizer.tokens.index(row["token"])
        assert [row["count"], row["count_against"]] == counts[:, index].tolist()
        supported = is_more_frequent(*counts) if row["nats"] > 0 else is_more_frequent(*counts[::-1])
        assert supported[index]


def test_out_of_vocabulary_tokens_have_no_counts(run: Run) -> None:
    contexts = {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}
    save_counts(run, ROWS)
    (row,) = explain(run, ["alamo lava"], contexts)
    assert [token["counts"]["Oslo"] for token in row["tokens"]] == [None, 0, 2]
    assert [has_evidence(token) for token in row["tokens"]] == [True, False, True]


def test_explanation_pages_treat_tokens_without_evidence_as_the_terminal_does(run: Run) -> None:
    save_counts(run, ROWS)
    rows = explain(run, ["lava sea"], {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}})
    content = explanation_page("run", rows)
    ratio, _ = with_evidence(rows[0])
    assert ratio == pytest.approx(rows[0]["ratio"] - rows[0]["tokens"][0]["ratio"])
    (posteriors,) = [row for row in Page(content).rows if row[0] == "lava sea"]
    assert posteriors[-2:] == [f"{rows[0]['ratio']:+.2f}", f"{ratio:+.2f}"]
    assert '; no evidence">lava</span>' in content


def test_explanations_say_which_tokens_have_no_evidence(run: Run) -> None:
    contexts = {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}
    with expected_finding("no evidence"):
        without_counts = explain(run, ["lava sea"], contexts)
    save_counts(run, ROWS)
    rows = explain(run, ["lava sea", "lava lava", ""], contexts)
    assert [token["counts"] for token in rows[0]["tokens"][:2]] == [{"Oslo": 0, "Nice": 0}, {"Oslo": 1, "Nice": 1}]
    (finding,) = evidence_findings(rows)
    assert finding.text.startswith("'lava lava': ")
    assert list(evidence_findings(without_counts)) == []
    assert without_counts[0]["ratio"] == pytest.approx(rows[0]["ratio"], rel=1e-4)


def test_explanations_count_tokens_in_the_training_texts_of_each_context(run: Run) -> None:
    contexts = {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}
    save_counts(run, ROWS)
    rows = explain(run, ["snow sun sea"], contexts)
    assert [token["counts"] for token in rows[0]["tokens"]] == [
        {"Oslo": 3, "Nice": 0},
        {"Oslo": 0, "Nice": 5},
        {"Oslo": 1, "Nice": 1},
        {"Oslo": 2, "Nice": 2},
    ]


def test_a_table_with_a_missing_text_is_an_error_that_names_the_row(tmp_path: Path) -> None:
    files.write_rows(tmp_path / "table.jsonl", [{"text": "a"}, {"text": "a"}, {"text": None}])
    with pytest.raises(UserError, match=r"table\.jsonl line 3, row 3: text is None, not a text; remove such rows"):
        read_texts(tmp_path / "table.jsonl", "text")


def test_damaged_counts_are_an_error(run: Run) -> None:
    save_counts(run, ROWS)
    tensors, _ = files.load_tensors(run.folder / UNIGRAMS)
    files.save_tensors(run.folder / UNIGRAMS, {**tensors, "city:tokens": tensors["city:tokens"] + 100}, {})
    with pytest.raises(UserError, match=r"unigrams\.safetensors: damaged counts of city"):
        run.unigram_counts_by_value("city")


def test_commands_show_words_with_the_counts_that_training_saved(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", str(run.folder), "--text", "lava sea", "--between", "city=Oslo", "city=Nice"]
    assert main(command) == 0
    assert "because training counts words only by one category" in capsys.readouterr().err
    save_counts(run, ROWS)
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
