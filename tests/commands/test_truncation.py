"""Commands that cut texts after `max_tokens` report the number once per table; scoring and rescoring cut none."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.io import files
from factorcell.runs.run import Run
from tests.findings import collected_findings, expected_finding

MAX_TOKENS = 8
TEXTS = ("ab", "abcab", "abcabca", "abcabcab", "abcabcabcabc", "", "cababcabcabcb", "ba")
CUT = ("abcabcab", "abcabcabcabc", "cababcabcabcb")  # of 8 characters or more
SMALL = "--embedding-size 4 --hidden-size 6 --rank 2 --context-size 3 --variable-size 2 --min-count 1".split()
QUICK = "--min-context-count 1 --min-user-count 1 --batch-tokens 200 --evaluations 1 --threads 1".split()
READS = ["--tokenizer", "char", "--max-tokens", str(MAX_TOKENS), "--context", "city", "--user", "who"]
TRAIN = [*READS, *SMALL, *QUICK, "--epochs", "1"]
TABLES = {"train": 40, "dev": 21, "test": 13}  # rows of each, of which different numbers are cut


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"text": text, "city": ("Oslo", "Nice")[place % 2], "who": f"user {place % 3}", "time": place}
        for place, text in zip(range(count), itertools.cycle(TEXTS), strict=False)
    ]


def cut_and_total(name: str) -> tuple[int, int]:
    return sum(row["text"] in CUT for row in rows(TABLES[name])), TABLES[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only folder with tables, a run and an n-gram model with the same vocabulary."""
    path = tmp_path_factory.mktemp("truncation")
    for name, count in TABLES.items():
        files.write_rows(path / f"{name}.jsonl", rows(count))
    train = [str(path / "train.jsonl"), "--dev", str(path / "dev.jsonl"), "--out", str(path / "run")]
    assert main(["train", *train, *TRAIN]) == 0
    like = ["--like", str(path / "run"), "--out", str(path / "grams")]
    assert main(["baseline", "ngram", str(path / "train.jsonl"), *like, "--order", "3"]) == 0
    return path


# The command line (with names of files in `folder`), and the tables whose texts the command cuts.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("train train.jsonl --dev dev.jsonl --out OUT *TRAIN", "train dev"),
    "compare": (
        "compare train.jsonl --dev dev.jsonl --test test.jsonl --out OUT "
        "--models unadapted factorcell --target city *TRAIN",
        "train dev test",
    ),
    "finetune": ("finetune run test.jsonl --dev dev.jsonl --out OUT --epochs 1", "test dev"),
    "evaluate": ("evaluate run test.jsonl --by city", "test"),
    "evaluate, n-grams": ("evaluate grams test.jsonl", "test"),
    "evaluate, baseline": ("evaluate run test.jsonl --baseline grams", "test"),
    "classify": ("classify run test.jsonl --target city --calibrate dev.jsonl", "test dev"),
    "baseline ngram": ("baseline ngram train.jsonl --like run --out OUT", "train"),
    "baseline linear": ("baseline linear train.jsonl --target city --test test.jsonl --like run", "train test"),
    "mix": ("mix run grams --dev dev.jsonl --out OUT", "dev"),
    "advise": ("advise train.jsonl *READS", "train"),
    "tune-online": ("tune-online run test.jsonl --optimizer sgd", "test"),
    "replay": ("replay run test.jsonl --compare plain,online --out OUT", "test"),
    "score": ("score run test.jsonl", ""),
}
LEARNING = ("tune-online", "replay")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_table_is_reported_once(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, tables = COMMANDS[name]
    monkeypatch.chdir(folder)
    lists = {"*TRAIN": TRAIN, "*READS": READS, "OUT": [str(tmp_path / "out")]}
    with collected_findings() as findings:
        assert main([word for part in line.split() for word in lists.get(part, [part])]) == 0
    expected = []
    for table in tables.split():
        cut, count = cut_and_total(table)
        expected.append(f"{table}.jsonl: {cut} of {count} texts cut after {MAX_TOKENS} tokens")
    if name in LEARNING:  # these commands read one text after the other
        expected = [f"contexts: texts cut after {MAX_TOKENS} tokens"]
    texts = [finding.text.partition(";")[0] for finding in findings if finding.name == "cut texts"]
    assert {Path(text).name for text in texts} >= set(expected)
    assert len(texts) == len(set(texts))


def test_results_count_truncated_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, train, test = (str(folder / name) for name in ("run", "train.jsonl", "test.jsonl"))
    cut, _ = cut_and_total("test")
    for command in (
        ["evaluate", run, test],
        ["evaluate", str(folder / "grams"), test],
        ["classify", run, test, "--target", "city"],
        ["baseline", "linear", train, "--target", "city", "--test", test, "--like", run],
    ):
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0])["truncated"] == cut
    files.write_rows(folder / "new.jsonl", [{"text": text} for text in TEXTS])
    new = ["classify", run, str(folder / "new.jsonl"), "--target", "city", "--unknown", "expected", "--json"]
    assert main(new) == 0
    predicted = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["truncated"] for row in predicted] == [text in CUT for text in TEXTS]


def test_scores_include_tokens_after_the_limit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begins = "abc" * 3
    files.write_rows(folder / "pair.jsonl", [{"text": begins + end, "city": "Oslo", "who": "user 0"} for end in "abc"])
    assert main(["score", str(folder / "run"), str(folder / "pair.jsonl"), "--json"]) == 0
    scored = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["targets"] for row in scored] == [11] * 3
    assert len({row["nats"] for row in scored}) == 3


@pytest.mark.parametrize("model", ["run", "grams"])
def test_hypotheses_that_differ_after_the_limit_are_ranked(
    model: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["abc" * 80 + end for end in ("aaaa", "abca", "cccc")]
    for order in itertools.permutations(texts):
        row = {"id": "u", "hypotheses": [{"text": text} for text in order], "city": "Oslo", "who": "user 0"}
        files.write_rows(folder / "lists.jsonl", [row])
        command = ["rescore", str(folder / model), str(folder / "lists.jsonl"), "--json"]
        assert main(command) == 0
        (chosen,) = (row["text"] for row in map(json.loads, capsys.readouterr().out.splitlines()) if "text" in row)
        scores = [nats(folder / model, text) for text in order]
        assert chosen == order[scores.index(min(scores))]
        assert len(set(scores)) == 3


def nats(model: Path, text: str) -> float:
    if (model / "config.json").exists():
        return float(Run.open(model).score({"text": text, "city": "Oslo", "who": "user 0"})[0])
    from factorcell.ngram.ngram import NGram

    grams = NGram.open(model)
    return float(grams.nats(grams.prepare([{"text": text}], truncate=False)).sum())


def test_completion_reports_texts_that_are_too_long(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", str(folder / "run"), "abcabcabca", "--context", "city=Oslo"]) == 0
    notice = "PREFIX is too long: the run completes texts of at most 7 tokens"
    assert notice in capsys.readouterr().err.splitlines()
    history = ["--history", "ab", "--history", "abcabcabca"]
    with expected_finding("cut texts"):
        assert main(["complete", str(folder / "run"), "ab", "--context", "city=Oslo", *history]) == 0
