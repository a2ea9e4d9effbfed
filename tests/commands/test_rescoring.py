"""The command `rescore`: input lists, fitted weights and output rows."""

import json
from pathlib import Path

import pytest
import torch

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.evaluation.rescoring.nbest import read_nbest
from factorcell.evaluation.rescoring.rescore import read_weights, rescore, score_hypotheses, word_error_rates
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training.trainer import observe
from tests.findings import expected_finding

TEXTS = ("the sea is cold", "the sand is cold", "sun and sand", "the sea", "cold", "")


def make_run(folder: Path) -> Run:
    """Save a word model with random weights; its users are the speakers and its context is their role."""
    config = Config.of(
        **{
            "context": ("role",),
            "user": "who",
            "min_count": 1,
            "min_context_count": 1,
            "min_user_count": 1,
            "embedding_size": 5,
            "hidden_size": 6,
            "rank": 2,
            "context_size": 3,
            "variable_size": 2,
        }
    )
    people = (("ann", "judge"), ("ben", "clerk"))
    rows = [{"text": text, "who": who, "role": role} for text in TEXTS for who, role in people]
    corpus = prepare(rows, config)
    run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
    observe(run.model, corpus)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.6, generator=random)
    run.model.requires_grad_(False)
    run.save_weights({})
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run, lists to fit weights on and lists to rescore, as JSON lines."""
    make_run(tmp_path / "run")
    for name, count in (("tune", 9), ("test", 8)):
        rows = [
            {
                "id": f"{name}-{number}",
                "hypotheses": [
                    {"text": TEXTS[(number + step) % 5], "acoustic": -1.0 - step, "lm": -4.0 + (number * step) % 3}
                    for step in range(4)
                ],
                "reference": TEXTS[(number + number % 3) % 5] + (" <b>" if number == 2 else ""),
                "who": ("ann", "ben")[number % 2],
                "role": "judge",
                "hall": f"h{number % 3}",
            }
            for number in range(count)
        ]
        files.write_rows(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


def command(folder: Path, *more: str) -> list[str]:
    return ["rescore", str(folder / "run"), str(folder / "test.jsonl"), "--threads", "1", *more]


def test_rescore_writes_rows_and_fits_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, weights_file = folder / "best.jsonl", folder / "weights.json"
    tuned = ["--tune", str(folder / "tune.jsonl"), "--weights", str(weights_file), "--by", "hall"]
    assert main(command(folder, *tuned, "--out", str(out))) == 0
    shown = capsys.readouterr()
    weights, header, *lines = shown.out.splitlines()
    assert weights.startswith("weights: acoustic ")
    assert header.split() == ["value", "utterances", "words", "first", "rescored", "oracle", "gain"]
    assert [line.split()[0] for line in lines] == ["all", "hall", "hall", "hall"]
    assert "nats" in shown.err
    scored = score_hypotheses(Run.open(folder / "run"), read_nbest(folder / "test.jsonl"))
    fitted = read_weights(weights_file)
    rows = rescore(scored, fitted)
    assert files.read_rows(out) == rows
    assert main(command(folder, "--weights", str(weights_file), "--json", "--by", "hall")) == 0
    first, *summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first == {"weights": fitted}
    assert summary == word_error_rates(rows, ["hall"])


def test_a_weight_of_zero_has_no_minus_sign(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights_file = folder / "weights.json"
    files.write_json(weights_file, {"acoustic": 1.0, "lm": 0.5, "model": 0.5, "words": -0.0})
    assert main(command(folder, "--weights", str(weights_file))) == 0
    assert capsys.readouterr().out.splitlines()[0] == "weights: acoustic 1, lm 0.5, model 0.5, words 0"


def test_a_share_of_zero_reproduces_the_first_pass(folder: Path) -> None:
    rows = [
        {
            **row,
            "hypotheses": sorted(row["hypotheses"], key=lambda hypothesis: -hypothesis["acoustic"] - hypothesis["lm"]),
        }
        for row in files.read_rows(folder / "test.jsonl")
    ]
    files.write_rows(folder / "test.jsonl", rows)
    out = folder / "best.jsonl"
    assert main(command(folder, "--share", "0", "--out", str(out))) == 0
    assert [row["place"] for row in files.read_rows(out)] == [1] * 8
    assert main(command(folder, "--share", "1", "--out", str(out))) == 2  # an existing file is not overwritten
    out.unlink()
    assert main(command(folder, "--share", "1", "--out", str(out))) == 0
    assert any(row["place"] > 1 for row in files.read_rows(out))


def test_kaldi_lists_are_read_with_references_and_contexts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = folder / "kaldi"
    lists.mkdir()
    (lists / "words_text").write_text("u-1 the sea is cold\nu-2 the sand is cold\nv-1 sun\n")
    (lists / "ac_cost").write_text("u-1 10\nu-2 11\nv-1 3\n")
    (folder / "utt.tsv").write_text("utt\twho\trole\nu\tann\tjudge\nv\tben\tclerk\n")
    (folder / "text").write_text("u the sand is cold\nv sun\n")
    words = ["rescore", str(folder / "run"), str(lists), "--threads", "1"]
    assert (
        main([*words, "--utt2context", str(folder / "utt.tsv"), "--reference", str(folder / "text"), "--by", "who"])
        == 0
    )
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["all", "2"],
        ["who", "ann"],
        ["who", "ben"],
    ]
    with expected_finding("missing values", "role, who"):
        assert main(words) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["weights:", "utterance", "u", "v"]
    assert main([*words, "--json", "--utt2context", str(folder / "utt.tsv")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in rows[1:]] == ["u", "v"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--by", "room"], "unknown column 'room'; choose from who, role, hall"),
        (["--share", "2"], "--share: expected a number from 0 to 1, got '2'"),
        (["--tune", "nowhere.jsonl"], "nowhere.jsonl: there is no such file"),
        (["--weights", "nowhere.json"], "nowhere.json: there is no such file"),
        (["--context", "age=3"], "unknown context column 'age'"),
        (["--reference", "nowhere"], "nowhere: there is no such file"),
        (["--tune-reference", "nowhere"], "--tune-reference nowhere: requires the lists of --tune"),
    ],
)
def test_errors_are_one_line(more: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("factorcell: ")
    assert message in error


def test_weights_cannot_be_fitted_on_lists_with_other_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_rows(folder / "tune.jsonl", [{"id": "a", "hypotheses": [{"text": "x", "am": 1.0}], "reference": "x"}])
    assert main(command(folder, "--tune", str(folder / "tune.jsonl"))) == 2
    assert "tune.jsonl: expected the scores acoustic, lm of " in capsys.readouterr().err
