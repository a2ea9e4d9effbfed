"""Specificity of several models: contexts, texts that are kept, figures, the verb and its page."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands import main
from factorcell.config import UserError
from factorcell.evaluation import classification, perplexity, specificity
from factorcell.evaluation.judge import Judge, JudgeOptions
from factorcell.evaluation.results import find_models
from factorcell.evaluation.specificity import Design, examples, measure, write
from factorcell.generation.generate import GenerationOptions
from factorcell.model.run import Run
from tests.small import ROWS, make_run

TABLE = [{**row, "text": f"{row['text']} {word}"} for row in ROWS for word in ("sea", "sun", "sand", "cold", "the")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An unadapted model and two FactorCells, with random weights."""
    folder = tmp_path_factory.mktemp("search")
    for name, model in (("plain", {"adapt": (), "output_bias": ()}), ("two", {}), ("three", {"rank": 3})):
        run = make_run(folder / name, ("city", "stars"), **model)
        run.save_weights({})
    return [folder / name for name in ("plain", "two", "three")]


@pytest.fixture(scope="module")
def judge(runs: list[Path]) -> Judge:
    """A judge of stars."""
    run = Run.open(runs[0])
    return Judge.train_on(TABLE, run.config.data, JudgeOptions("stars"), held=TABLE, vocabulary=run.vocabulary)


def test_runs_are_found_in_folders(runs: list[Path], tmp_path: Path) -> None:
    """A run is itself, a folder is its trained runs, each once; an empty one is a mistake."""
    parent = runs[0].parent
    for hidden in (".ipynb_checkpoints", ".DS_Store"):
        shutil.copytree(runs[0], parent / hidden, dirs_exist_ok=True)
    assert find_models([parent]) == sorted(runs)
    assert find_models([runs[1], parent]) == [runs[1], *(run for run in sorted(runs) if run != runs[1])]
    with pytest.raises(UserError, match="expected a trained run or a folder of trained runs"):
        find_models([tmp_path])


def test_contexts_are_as_many_for_each_value(runs: list[Path]) -> None:
    """Each value as often; drawn columns vary and repeat with the seed; given ones stay."""
    run = Run.open(runs[0])
    wanted = Design(30, draw=["city"]).contexts(run, "stars", seed=1)
    assert [context["stars"] for context in wanted] == ["1"] * 30 + ["5"] * 30
    assert {context["city"] for context in wanted[:30]} == {"Oslo", "Nice"}
    assert Design(30, draw=["city"]).contexts(run, "stars", seed=1) == wanted
    assert Design(30, draw=["city"]).contexts(run, "stars", seed=2) != wanted
    assert Design(10, draw=["city"]).contexts(run, "stars", seed=1)[:10] == wanted[:10]
    assert Design(1, {"city": "Nice"}).contexts(run, "stars", 0) == [{"city": "Nice", "stars": s} for s in ("1", "5")]
    for wrong in ({"stars": "1"}, {"city": "Nice"}):
        with pytest.raises(UserError, match="several"):
            Design(1, wrong, ["city"]).contexts(run, "stars", 0)
    with pytest.raises(UserError, match="number is 0"):
        Design(0)


def test_texts_that_are_there_are_not_written_again(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was stopped is gone on with; a whole one is read; texts of other contexts are refused."""
    run, options, file = Run.open(runs[1]), GenerationOptions(max_tokens=6), tmp_path / "texts.jsonl"
    wanted = Design(3).contexts(run, "stars", 0)
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


def test_figures_are_those_of_their_sources(runs: list[Path], judge: Judge) -> None:
    """Perplexity and accuracy are the model's own; the judge is asked about the texts and the values they were for."""
    texts = [{"text": row["text"], "context": {"stars": row["stars"], "city": "Oslo"}} for row in TABLE]
    for folder, model, rank in zip(runs, ("unadapted", "factorcell", "factorcell"), (None, 2, 3), strict=True):
        run = Run.open(folder)
        row, _ = measure(run, judge, texts, TABLE)
        assert (row["name"], row["model"], row["rank"]) == (folder.name, model, rank)
        assert row["perplexity"] == perplexity.evaluate(run, run.prepare(TABLE))["perplexity"]
        assert row["specificity"] == judge.real["accuracy"]  # these texts are the real ones
        assert row["confusion"] == judge.real["confusion"]
        accuracy = classification.classify(run, TABLE, "stars").metrics()["accuracy"] if rank else None
        assert row["accuracy"] == accuracy


def command(runs: list[Path], tmp_path: Path, *more: str) -> list[str]:
    """The verb, on a table in a file."""
    table = tmp_path / "table.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in TABLE))
    real = ["--train", str(table), "--dev", str(table)]
    out = ["--out", str(tmp_path / "out"), "--number", "4", "--max-tokens", "6"]
    return ["specificity", *map(str, runs), "--target", "stars", *real, *out, *more]


def test_the_verb_compares_and_goes_on(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a model, real texts beside; texts, figures and the page are kept; --resume writes nothing anew."""
    assert main.main(command(runs, tmp_path, "--draw", "city", "--json")) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("name") for row in shown] == ["plain", "two", "three", "real texts", None]
    assert all(0 <= row["specificity"] <= 1 and row["texts"] == 8 for row in shown[:3])
    assert set(shown[-1]["correlations"]) == {"accuracy", "rank", "perplexity"}
    out = tmp_path / "out"
    kept = {path.name: path.read_text() for path in out.iterdir()}
    texts = [name for name in kept if name.startswith(runs[0].parent.name)]
    assert len(texts) == 3
    page = kept["specificity.html"]
    assert "http" not in page.split("</style>")[1].replace("http://www.w3.org", "")
    for row in examples(out, runs, "stars", 1):
        assert row["name"] in page
    assert main.main(command(runs, tmp_path, "--draw", "city")) == 2
    assert "--resume" in capsys.readouterr().err
    assert main.main(command(runs, tmp_path, "--draw", "city", "--resume")) == 0
    assert "real texts" in capsys.readouterr().out
    assert {path.name: path.read_text() for path in out.iterdir()} == kept


def test_an_unadapted_model_alone_has_a_page(runs: list[Path], tmp_path: Path) -> None:
    """Without ranks, accuracies and correlations there is still a page, of what there is: no chart of one point."""
    assert main.main(command(runs[:1], tmp_path)) == 0
    page = (tmp_path / "out" / "specificity.html").read_text()
    assert "plain" in page
    assert "Texts that one model wrote" in page
    assert "<svg" not in page
    assert "accuracy on real texts</th>" not in page, "nobody has one"


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
def test_mistakes(runs: list[Path], tmp_path: Path, more: list[str], words: str, capsys: Any) -> None:
    """Exit code 2 and a line that says what is wrong."""
    assert main.main(command(runs, tmp_path, *more)) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
