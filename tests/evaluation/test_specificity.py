"""Context-specificity: judges against loops over tuples of words, contexts, resumed files, and the command."""

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands import main
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.data.vocabulary import END, UNKNOWN
from factorcell.evaluation import classification, perplexity, specificity
from factorcell.evaluation.results import find_models
from factorcell.evaluation.specificity import (
    KINDS,
    Judge,
    JudgeOptions,
    contexts,
    copied,
    distinct,
    ngrams,
    repeated,
    write,
)
from factorcell.generation.generate import GenerationOptions
from factorcell.model.run import Run
from tests.small import ROWS, make_run

CONFIG = Config.of(text="review", min_count=2, min_context_count=5, max_tokens=12)
STARS = JudgeOptions("stars")
WORDS = {"1": "awful dirty rude cold", "3": "plain okay average usual", "5": "lovely clean kind warm"}
TABLE = [{**row, "text": f"{row['text']} {word}"} for row in ROWS for word in ("sea", "sun", "sand", "cold", "the")]


def texts(count: int, seed: int, column: str = "review") -> list[dict[str, str]]:
    """Texts of words of their rating among words of all ratings; some have a word that is out of vocabulary."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        rating = draw.choice(sorted(WORDS))
        words = draw.choices([*WORDS[rating].split(), "the", "room", "was", "and"], k=draw.randint(0, 16))
        rare = [f"once{seed}x{number}"] if number % 7 == 0 else []
        rows.append({column: " ".join([*words, *rare]), "stars": rating})
    return rows


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.train_on(texts(400, 1), texts(150, 2), CONFIG, STARS)


def tuples(corpus: Corpus, length: int) -> list[list[tuple[int, ...]]]:
    """The n-grams of every text, without those that have a special or unknown token."""
    found = []
    for text in np.split(corpus.tokens, corpus.offsets[1:-1]):
        ids = text.tolist()
        grams = [tuple(ids[place : place + length]) for place in range(len(ids) - length + 1)]
        found.append([gram for gram in grams if min(gram) > END])
    return found


def test_ngram_figures_equal_loops_over_tuples(judge: Judge) -> None:
    corpus = judge.train.select(np.arange(60))
    other = prepare(texts(80, 3), judge.config, tokenizer=judge.train.tokenizer, schema=judge.train.schema)
    assert (other.tokens == UNKNOWN).any()
    for length in (1, 2, 3, 4, 8):
        grams, theirs = tuples(corpus, length), tuples(other, length)
        flat = [gram for text in theirs for gram in text]
        seen = {gram for text in grams for gram in text}
        hashed, which = ngrams(other, length)
        assert which.tolist() == [row for row, text in enumerate(theirs) for _ in text]
        assert len(np.unique(hashed)) == len(set(flat))
        assert distinct(other, length) == len(set(flat)) / len(flat)
        again = [1 - len(set(text)) / len(text) for text in theirs if text]
        assert repeated(other, length) == pytest.approx(sum(again) / len(again))
        share = sum(gram in seen for gram in flat) / len(flat)
        assert copied(other, np.unique(ngrams(corpus, length)[0]), length) == pytest.approx(share)


def test_variety_does_not_depend_on_the_number_of_texts(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specificity, "MAX_NGRAMS", 50)
    flat = [gram for text in tuples(judge.train, 2) for gram in text][:50]
    assert distinct(judge.train, 2) == len(set(flat)) / 50


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_their_value_fit_and_others_do_not(kind: str) -> None:
    table = texts(400, 1)
    judge = Judge.train_on(table, texts(150, 2), CONFIG, JudgeOptions("stars", kind))
    assert judge.real["accuracy"] > 0.8
    fitting = [{"text": words, "stars": rating} for rating, words in WORDS.items()] * 3
    found, fits = judge.judge(fitting)
    assert (found["accuracy"], found["deviation"], found["texts"], found["tokens"]) == (1.0, 0.0, 9, 5.0)
    assert found["by_value"] == {"1": 1.0, "3": 1.0, "5": 1.0}
    assert fits.all()
    shifted = [{"text": row["text"], "stars": {"1": 3, "3": 5.0, "5": "1"}[row["stars"]]} for row in fitting]
    found, fits = judge.judge(shifted)
    assert (found["accuracy"], found["deviation"]) == (0.0, (2 + 2 + 4) / 3)
    assert not fits.any()
    own, _ = judge.judge([{"text": row["review"], "stars": row["stars"]} for row in table[:40]])
    assert own["copied_5"] == 1.0 > judge.real["copied_5"]


@pytest.mark.parametrize(
    ("names", "order", "scale"),
    [
        (("low", "mid", "high"), ("low", "mid", "high"), {"low": 0.0, "mid": 1.0, "high": 2.0}),
        (("1 star", "2.5 stars", "-3"), (), {"1 star": 1.0, "2.5 stars": 2.5, "-3": -3.0}),
        (("low", "2", "3"), (), None),
        (("2 to 3", "4", "5"), (), None),
    ],
)
def test_values_are_ordered_by_their_numbers_or_as_specified(
    names: tuple[str, ...], order: tuple[str, ...], scale: Mapping[str, float] | None
) -> None:
    table = [{**row, "stars": names["135".index(row["stars"])]} for row in texts(120, 1)]
    judge = Judge.train_on(table, table, CONFIG, JudgeOptions("stars", order=order))
    if scale is None:
        assert judge.scale is None
        assert judge.real["deviation"] is None
    else:
        assert judge.scale is not None
        values = judge.train.schema.categories[0].values[1:]
        assert judge.scale.tolist() == [scale[name] for name in values]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no texts to judge"),
        ([{"text": "clean"}], "row 1 has no 'stars'"),
        ([{"text": "clean", "stars": "5"}, {"stars": "5"}], "row 2 has no 'text'"),
        ([{"text": "clean", "stars": "7"}], "value of stars in row 1 '7'; choose from"),
        ([{"text": None, "stars": "5"}], "not a text"),
    ],
)
def test_rows_that_cannot_be_judged_are_errors(judge: Judge, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        judge.judge(rows)


def test_a_judge_reads_neither_users_nor_times() -> None:
    config = CONFIG.with_options(user="who", anonymous=True, time="day")
    judge = Judge.train_on(texts(200, 1), texts(20, 2), config, STARS)
    assert judge.judge([{"text": "clean lovely", "stars": "5"}])[0]["accuracy"] == 1


def test_mistakes_of_a_judge() -> None:
    table = texts(100, 1)
    with pytest.raises(UserError, match="unknown judge 'fastext'"):
        JudgeOptions("stars", "fastext")
    with pytest.raises(UserError, match="the order of stars lacks '5'; it has 1, 3"):
        Judge.train_on(table, table, CONFIG, JudgeOptions("stars", order=("1", "3")))
    with pytest.raises(UserError, match="fewer than two values"):
        Judge.train_on([{**row, "stars": "5"} for row in table], table, CONFIG, STARS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An unadapted model and two FactorCells, with random weights."""
    folder = tmp_path_factory.mktemp("search")
    for name, model in (("plain", {"adapt": (), "output_bias": ()}), ("two", {}), ("three", {"rank": 3})):
        run = make_run(folder / name, ("city", "stars"), **model)
        run.save_weights({})
    return [folder / name for name in ("plain", "two", "three")]


def test_runs_are_found_in_folders(runs: list[Path], tmp_path: Path) -> None:
    parent = runs[0].parent
    for hidden in (".ipynb_checkpoints", ".DS_Store"):
        shutil.copytree(runs[0], parent / hidden, dirs_exist_ok=True)
    assert find_models([parent]) == sorted(runs)
    assert find_models([runs[1], parent]) == [runs[1], *(run for run in sorted(runs) if run != runs[1])]
    with pytest.raises(UserError, match="expected a trained run or a folder of trained runs"):
        find_models([tmp_path])


def test_each_value_has_as_many_contexts(runs: list[Path]) -> None:
    run = Run.open(runs[0])
    wanted = contexts(run, "stars", 30, {}, ["city"], 1)
    assert [context["stars"] for context in wanted] == ["1"] * 30 + ["5"] * 30
    assert {context["city"] for context in wanted[:30]} == {"Oslo", "Nice"}
    assert contexts(run, "stars", 30, {}, ["city"], 1) == wanted
    assert contexts(run, "stars", 30, {}, ["city"], 2) != wanted
    assert contexts(run, "stars", 10, {}, ["city"], 1)[:10] == wanted[:10]
    assert contexts(run, "stars", 1, {"city": "Nice"}) == [{"city": "Nice", "stars": stars} for stars in ("1", "5")]
    for wrong in ({"stars": "1"}, {"city": "Nice"}):
        with pytest.raises(UserError, match="several"):
            contexts(run, "stars", 1, wrong, ["city"])
    with pytest.raises(UserError, match="number is 0"):
        contexts(run, "stars", 0, {})


def test_a_file_of_texts_is_resumed(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, options, file = Run.open(runs[1]), GenerationOptions(max_tokens=6), tmp_path / "texts.jsonl"
    wanted = contexts(run, "stars", 3, {})
    rows = write(run, wanted, options, file)
    assert [row["context"] for row in rows] == wanted
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:4]) + "\n")
    again = write(run, wanted, options, file)
    assert [row["text"] for row in again] == [row["text"] for row in rows]
    monkeypatch.setattr(specificity, "generate", lambda *given, **named: iter(()))
    assert write(run, wanted, options, file) == again
    with pytest.raises(UserError, match="nothing resumed"):
        write(run, wanted[3:], options, file)


def command(runs: list[Path], tmp_path: Path, *more: str) -> list[str]:
    table = tmp_path / "table.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in TABLE))
    real = ["--train", str(table), "--dev", str(table)]
    out = ["--out", str(tmp_path / "out"), "--number", "4", "--max-tokens", "6"]
    return ["specificity", *map(str, runs), "--target", "stars", *real, *out, *more]


def test_the_command_compares_runs_and_resumes(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(command(runs, tmp_path, "--draw", "city", "--json")) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in shown] == ["plain", "two", "three", "real texts"]
    assert all(0 <= row["specificity"] <= 1 and row["texts"] == 8 for row in shown[:3])
    for folder, row in zip(runs, shown, strict=False):
        run = Run.open(folder)
        assert row["perplexity"] == pytest.approx(perplexity.evaluate(run, TABLE)["perplexity"])
        if run.model.adapted:
            assert row["accuracy"] == classification.classify(run, TABLE, "stars").metrics()["accuracy"]
            assert {"gain", "gain_low", "specificity_difference"} < set(row)
        else:
            assert "accuracy" not in row
    out = tmp_path / "out"
    kept = {path.name: path.read_text() for path in out.iterdir()}
    assert sum(name.startswith(runs[0].parent.name) for name in kept) == 3
    assert main.main(command(runs, tmp_path, "--draw", "city")) == 2
    assert "--resume" in capsys.readouterr().err
    assert main.main(command(runs, tmp_path, "--draw", "city", "--resume")) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["plain", "two", "three", "real texts"]
    assert all(title in head for title in ("fit their context", "fit above plain", "perplexity below plain"))
    assert {path.name: path.read_text() for path in out.iterdir()} == kept


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--target", "star"], "did you mean 'stars'"),
        (["--context", "stars=1"], "several"),
        (["--judge", "linear", "--order", "1"], "lacks '5'"),
        (["--draw", "town"], "town"),
        (["--draw", "stars"], "is the target"),
    ],
)
def test_mistakes_of_the_command(
    runs: list[Path], tmp_path: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(command(runs, tmp_path, *more)) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
