"""What texts add to figures: against scores text by text; kept in folders and read again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from factorcell import files
from factorcell.config import UserError
from factorcell.data.tokenizer import WordTokenizer
from factorcell.data.vocabulary import Vocabulary
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.text_figures import TextSums, texts_digest
from tests.small_runs import ROWS, make_run


def test_texts_add_what_they_cost(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [{**row, "text": f"{row['text']} zyx"} if i % 2 else row for i, row in enumerate(ROWS)]
    corpus = run.prepare(rows)
    found = text_figures.figures_from_nats(run.nats(corpus), corpus)
    scored = run.score(rows, tokens=True)
    assert found["perplexity"].numerator == pytest.approx([row["nats"] for row in scored], rel=1e-6)
    assert found["perplexity"].denominator.tolist() == [row["targets"] for row in scored]
    known = [[token["nats"] for token in row["tokens"] if token["token"] != "<unk>"] for row in scored]
    assert found["perplexity_known"].numerator == pytest.approx([sum(nats) for nats in known], rel=1e-5)
    assert found["perplexity_known"].denominator.tolist() == [len(nats) for nats in known]
    whole = perplexity.evaluate(run, corpus)
    for name in ("perplexity", "perplexity_known"):
        assert np.exp(found[name].ratio) == pytest.approx(whole[name])
    assert found["bits_per_byte"].ratio == pytest.approx(whole["bits_per_byte"])


def test_the_key_is_of_the_texts_and_what_is_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    corpus = run.prepare(ROWS)
    assert texts_digest(corpus) == texts_digest(corpus.without_context(run.schema)) == texts_digest(run.prepare(ROWS))
    own = texts_digest(corpus)
    others = [texts_digest(run.prepare(ROWS[::-1])), texts_digest(run.prepare(ROWS[1:])), texts_digest(corpus, "city")]
    run.tokenizer = WordTokenizer(run.tokenizer.options, Vocabulary([*run.tokenizer.tokens[:-1], "another"]))
    assert len({own, *others, texts_digest(run.prepare(ROWS))}) == 5


def test_figures_of_the_same_texts_are_kept_together(tmp_path: Path) -> None:
    first, second = (TextSums("ab12", np.arange(3.0) + n, np.ones(3)) for n in (0, 1))
    text_figures.save(tmp_path, {"perplexity": first, "accuracy of a b": first})
    text_figures.save(tmp_path, {"perplexity": second, "other": first._replace(key="cd34")})
    found = text_figures.load(tmp_path, "ab12")
    assert list(found) == ["accuracy of a b", "perplexity"]
    assert found["perplexity"].numerator.tolist() == [1, 2, 3]
    assert found["accuracy of a b"].numerator.tolist() == [0, 1, 2]
    assert list(text_figures.load(tmp_path, "cd34")) == ["other"]
    for key in (None, "", "ef56", "../ab12"):
        assert text_figures.load(tmp_path, key) == {}
    damaged: list[dict[str, object]] = [{}, {"originals": {}}, {"originals": []}]
    for facts in damaged:
        files.save_tensors(tmp_path / "texts-ab12.safetensors", {"x below": torch.zeros(2)}, facts)
        with pytest.raises(UserError, match="not a file of figures of texts"):
            text_figures.load(tmp_path, "ab12")
