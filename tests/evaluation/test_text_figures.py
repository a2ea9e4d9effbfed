"""Per-text figures against scores of single texts; saving and loading them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.data.tokenizers.tokenizer import WordTokenizer
from factorcell.errors import UserError
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.text_figures import TextSums, texts_digest
from factorcell.io import files
from tests.small_runs import ROWS, make_run


def test_figures_match_the_scores_of_single_texts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [{**row, "text": f"{row['text']} zyx"} if i % 2 else row for i, row in enumerate(ROWS)]
    corpus = run.prepare(rows)
    figures = text_figures.figures_from_nats(run.nats(corpus), corpus)
    scored = run.score_rows(rows, tokens=True)
    assert figures["perplexity"].numerator == pytest.approx([row["nats"] for row in scored], rel=1e-6)
    assert figures["perplexity"].denominator.tolist() == [row["targets"] for row in scored]
    known_nats = [[token["nats"] for token in row["tokens"] if token["token"] != "<unk>"] for row in scored]
    assert figures["perplexity_known"].numerator == pytest.approx([sum(nats) for nats in known_nats], rel=1e-5)
    assert figures["perplexity_known"].denominator.tolist() == [len(nats) for nats in known_nats]
    evaluation = perplexity.evaluate(run, corpus).row
    for name in ("perplexity", "perplexity_known"):
        assert np.exp(figures[name].ratio) == pytest.approx(evaluation[name])


def test_digest_depends_on_texts_vocabulary_and_question(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    corpus = run.prepare(ROWS)
    assert texts_digest(corpus) == texts_digest(corpus.without_context(run.schema)) == texts_digest(run.prepare(ROWS))
    digest = texts_digest(corpus)
    others = [texts_digest(run.prepare(ROWS[::-1])), texts_digest(run.prepare(ROWS[1:])), texts_digest(corpus, "city")]
    run.tokenizer = WordTokenizer(run.tokenizer.options, [*run.tokenizer.tokens[:-1], "another"])
    assert len({digest, *others, texts_digest(run.prepare(ROWS))}) == 5


def test_figures_are_saved_with_their_keys(tmp_path: Path) -> None:
    figures = {
        "perplexity": TextSums("ab12", np.arange(3.0), np.ones(3)),
        "bits_per_byte": TextSums("c", *np.ones((2, 3))),
    }
    text_figures.save(tmp_path, figures, {"table": "a.csv"})
    loaded = text_figures.load(tmp_path, {"table": "a.csv", "perplexity": 9.0})
    assert {name: sums.key for name, sums in loaded.items()} == {"perplexity": "ab12", "bits_per_byte": "c"}
    assert loaded["perplexity"].numerator.tolist() == [0, 1, 2]
    assert text_figures.load(tmp_path, {"table": "b.csv"}) == {}
    (path,) = tmp_path.iterdir()
    damaged: list[Any] = [{"perplexity": "ab12"}, []]
    for facts in damaged:
        files.save_tensors(path, {"x below": torch.zeros(2)}, facts)
        with pytest.raises(UserError, match="expected a file of figures per text"):
            text_figures.load(tmp_path, {"table": "a.csv"})


def test_results_have_figures_of_their_own(tmp_path: Path) -> None:
    results = [{"table": "a.csv"}, {"table": "b.csv"}, {"table": "a.csv", "predictor": "mixture"}]
    for number, result in enumerate(results):
        text_figures.save(tmp_path, {"perplexity": TextSums("ab12", np.full(3, float(number)), np.ones(3))}, result)
    loaded = [text_figures.load(tmp_path, result) for result in results]
    assert [figures["perplexity"].numerator.tolist() for figures in loaded] == [[0.0] * 3, [1.0] * 3, [2.0] * 3]
