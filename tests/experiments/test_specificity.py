"""Context-specificity: judges, copied n-grams and resumed files."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specificity
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.tokenizer import END, UNKNOWN
from factorcell.errors import UserError
from factorcell.generation.generate import GenerationOptions
from factorcell.reports.runs import find_models
from factorcell.runs.run import Run
from specificity import COPIED, Judge, ngrams, write_texts
from tests.small_runs import make_run

CONFIG = Config.of(text="review", min_count=2, min_context_count=5, max_tokens=12)
WORDS = {"1": "awful dirty rude cold", "3": "plain okay average usual", "5": "lovely clean kind warm"}


def texts(count: int, seed: int, column: str = "review") -> list[dict[str, str]]:
    """Return texts with words of their rating and common words; some have an out-of-vocabulary word."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        rating = draw.choice(sorted(WORDS))
        words = draw.choices([*WORDS[rating].split(), "the", "room", "was", "and"], k=draw.randint(0, 16))
        rare = [f"once{seed}x{number}"] if number % 7 == 0 else []
        rows.append({column: " ".join([*words, *rare]), "stars": rating})
    return rows


def make_judge(table: list[dict[str, str]], held_out: list[dict[str, str]], *order: str, **options: Any) -> Judge:
    config = CONFIG.with_options(**options)
    tokenizer = prepare(table, CONFIG).tokenizer
    return Judge(table, held_out, config, "stars", order, tokenizer)


@pytest.fixture(scope="module")
def judge() -> Judge:
    return make_judge(texts(400, 1), texts(150, 2))


def ngram_tuples(corpus: Corpus) -> list[tuple[int, ...]]:
    """Return the n-grams of all texts without special or unknown tokens."""
    result = []
    for text in np.split(corpus.tokens, corpus.offsets[1:-1]):
        ids = text.tolist()
        grams = [tuple(ids[place : place + COPIED]) for place in range(len(ids) - COPIED + 1)]
        result += [gram for gram in grams if min(gram) > END]
    return result


def test_copied_ngrams_equal_loops_over_tuples(judge: Judge) -> None:
    other = texts(80, 3)
    corpus = prepare(other, judge.config, tokenizer=judge.train.tokenizer, schema=judge.train.schema)
    assert (corpus.tokens == UNKNOWN).any()
    grams, training_grams = ngram_tuples(corpus), set(ngram_tuples(judge.train))
    hashed = ngrams(corpus)
    assert len(hashed) == len(grams)
    assert len(np.unique(hashed)) == len(set(grams))
    figures, _ = judge.judge([row["review"] for row in other], [row["stars"] for row in other])
    assert figures["copied_5"] == pytest.approx(sum(gram in training_grams for gram in grams) / len(grams))


def test_only_texts_of_their_value_fit() -> None:
    table = texts(400, 1)
    judge = make_judge(table, texts(150, 2))
    assert judge.real["accuracy"] > 0.8
    generated = list(WORDS.values()) * 3
    figures, fits = judge.judge(generated, list(WORDS) * 3)
    assert (figures["accuracy"], figures["deviation"]) == (1.0, 0.0)
    assert fits.all()
    figures, fits = judge.judge(generated, ["3", "5", "1"] * 3)
    assert (figures["accuracy"], figures["deviation"]) == (0.0, (2 + 2 + 4) / 3)
    assert not fits.any()
    training_figures, _ = judge.judge([row["review"] for row in table[:40]], [row["stars"] for row in table[:40]])
    assert training_figures["copied_5"] == 1.0 > judge.real["copied_5"]


def test_values_are_ordered_by_their_numbers_or_as_specified(judge: Judge) -> None:
    values = judge.train.schema.categories[0].values[1:]
    assert judge.scale.tolist() == [float(value) for value in values]
    table = [{**row, "stars": {"1": "low", "3": "mid", "5": "high"}[row["stars"]]} for row in texts(120, 1)]
    ordered_judge = make_judge(table, table, "low", "mid", "high")
    values = ordered_judge.train.schema.categories[0].values[1:]
    assert ordered_judge.scale.tolist() == [("low", "mid", "high").index(value) for value in values]


def test_a_judge_reads_neither_users_nor_times() -> None:
    judge = make_judge(texts(200, 1), texts(20, 2), user="who", anonymous=True, time="day")
    assert judge.judge(["clean lovely"], ["5"])[0]["accuracy"] == 1


def test_a_judge_needs_two_values() -> None:
    table = [{**row, "stars": "5"} for row in texts(100, 1)]
    with pytest.raises(UserError, match="two"):
        make_judge(table, table)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An unadapted model and two FactorCells, with random weights."""
    folder = tmp_path_factory.mktemp("search")
    for name, model in (("plain", {"adapt": (), "output_bias": ()}), ("two", {}), ("three", {"rank": 3})):
        run = make_run(folder / name, ("city", "stars"), **model)
        run.save_weights({})
    return [folder / name for name in ("plain", "two", "three")]


def test_runs_are_listed_recursively(runs: list[Path], tmp_path: Path) -> None:
    parent = runs[0].parent
    for hidden in (".ipynb_checkpoints", ".DS_Store"):
        shutil.copytree(runs[0], parent / hidden, dirs_exist_ok=True)
    assert find_models([parent]) == sorted(runs)
    assert find_models([runs[1], parent]) == [runs[1], *(run for run in sorted(runs) if run != runs[1])]
    with pytest.raises(UserError, match=tmp_path.name):
        find_models([tmp_path])


def test_a_file_of_texts_is_resumed(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, options, file = Run.open(runs[1]), GenerationOptions(max_tokens=6), tmp_path / "texts.jsonl"
    contexts = [{"stars": stars} for stars in ("1", "5") for _ in range(3)]
    rows = write_texts(run, contexts, options, file)
    assert [row["context"] for row in rows] == contexts
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:4]) + "\n")
    again = write_texts(run, contexts, options, file)
    assert [row["text"] for row in again] == [row["text"] for row in rows]
    monkeypatch.setattr(specificity, "generate", lambda *positional, **keywords: iter(()))
    assert write_texts(run, contexts, options, file) == again
    with pytest.raises(UserError, match=file.name):
        write_texts(run, contexts[3:], options, file)
