"""Texts that also occur in the training table."""

import random
from pathlib import Path

import pytest

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.evaluation import repeated_texts
from factorcell.evaluation.repeated_texts import repeated_notices, repeated_training_texts
from factorcell.training.fit import fit


@pytest.mark.parametrize("block", [1, 7, 1 << 24])
def test_repeated_texts_are_those_that_a_set_finds(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_texts, "BLOCK_TOKENS", block)
    draw = random.Random(0)
    texts = ["".join(draw.choices("ab ", k=draw.randint(0, 6))).strip() for _ in range(600)]
    known, new = texts[:200], texts[200:]
    config = Config.of(tokenizer="char", min_count=1)
    train = prepare([{"text": text} for text in known], config)
    corpus = prepare([{"text": text} for text in new], config, tokenizer=train.tokenizer, schema=train.schema)
    (line,) = repeated_notices(corpus, train, "texts")
    count = sum(text != "" and text in set(known) for text in new)
    assert 0 < count < 400
    assert line.startswith(f"{count} of 400 texts also occur in the training table, token for token")


def test_texts_with_different_unknown_words_are_not_repeated() -> None:
    config = Config.of(tokenizer="word", min_count=2)
    train = prepare([{"text": text} for text in ("see CVE-1", "see CVE-2", "see it", "see CVE-3 CVE-4")], config)
    texts = ["see CVE-2", "see CVE-5", "see CVE-2 CVE-2", "see CVE-3CVE-4", "see CVE-3 CVE-4", "CVE-2 see"]
    corpus = prepare([{"text": text} for text in texts], config, tokenizer=train.tokenizer, schema=train.schema)
    (line,) = repeated_notices(corpus, train, "texts")
    assert line.startswith("2 of 6 texts also occur in the training table")


def test_a_run_reports_the_texts_of_its_training_table(tmp_path: Path) -> None:
    def write(name: str, texts: list[str]) -> Path:
        path = tmp_path / name
        path.write_text("text,city\n" + "".join(f"{text},{'AB'[i % 2]}\n" for i, text in enumerate(texts)))
        return path

    numbers = [f"room {i} is {'red' if i % 3 else 'blue'}" for i in range(60)]
    train, dev = write("train.csv", numbers[:40]), write("dev.csv", numbers[40:])
    options = {"context": ("city",), "tokenizer": "char", "epochs": 0.1, "hidden_size": 8, "embedding_size": 4}
    run = fit(train, dev, Config.of(**options, min_count=1, ngram_mixture=False), tmp_path / "run")
    assert repeated_training_texts(run, dev) == []
    (line,) = repeated_training_texts(run, write("test.csv", numbers[39:]))
    assert line.startswith("1 of 21 texts also occur in the training table")
    train.unlink()
    assert repeated_training_texts(run, dev) == []
