"""Generated rows and streams, from Python and from the command line."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell.commands.cli import main
from factorcell.data.tokenizers.tokenizer import sentence_case
from factorcell.errors import UserError
from factorcell.generation.generate import BATCH_SIZES, GenerationOptions, category_values, generate, stream
from factorcell.nn.kernels import library
from factorcell.options.limits import GENERATION_METHODS
from factorcell.runs.run import Run
from tests.findings import collected_findings, expected_finding, no_findings
from tests.small_runs import make_letters, make_run, split, with_ngrams

CONTEXTS = [{"city": "Oslo", "stars": "5"}, {"city": "Nice", "stars": "1"}, {"city": "Oslo", "stars": "1"}]
SHORT = GenerationOptions(max_tokens=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run folder with a word model and random weights."""
    run_with_words = make_run(tmp_path_factory.mktemp("runs") / "small", ("city", "stars"))
    run_with_words.save_weights({})
    return run_with_words


def generate_rows(run: Run, contexts: list[dict[str, str]] = CONTEXTS, **options: Any) -> list[dict[str, Any]]:
    """Return all rows of `generate`."""
    return list(generate(run, contexts, **{"options": SHORT, **options}))


@pytest.mark.parametrize("method", GENERATION_METHODS)
def test_rows_agree_with_the_scores_of_their_texts(run: Run, method: str) -> None:
    number = 1 if method == "greedy" else 3
    rows = generate_rows(run, number=number, options=GenerationOptions(method, max_tokens=8, width=5))
    assert [row["number"] for row in rows] == list(range(3 * number))
    assert [row["context"] for row in rows] == [context for context in CONTEXTS for _ in range(number)]
    for row in rows:
        (scored,) = run.score_rows([{**row["context"], "text": row["text"]}], tokens=True)
        assert split(row["text"], run.config) == [token["token"] for token in scored["tokens"]][: row["tokens"]]
        targets = row["tokens"] + row["ended"]
        nats = sum(token["nats"] for token in scored["tokens"][:targets])
        assert row["log_probability"] == pytest.approx(-nats, abs=1e-4)
        assert row["perplexity"] == pytest.approx(2.718281828 ** (nats / targets), rel=1e-4)
        assert row["tokens"] <= 8


@pytest.mark.parametrize("method", ["sample", "stochastic", "beam"])
def test_texts_are_the_same_in_any_batch(run: Run, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = GenerationOptions(method, max_tokens=6, width=6, branching=2)
    whole = generate_rows(run, number=4, options=options)
    for together in (1, 2):
        monkeypatch.setitem(BATCH_SIZES, method, together)
        for first in (0, 1, 5, 8, 12):
            part = generate_rows(run, number=4, options=options, first=first)
            assert [(row["number"], row["text"]) for row in part] == [
                (row["number"], row["text"]) for row in whole[first:]
            ]
    if method != "beam":
        assert [row["text"] for row in generate_rows(run, number=4, options=replace(options, seed=1))] != [
            row["text"] for row in whole
        ]


@pytest.mark.parametrize(
    "options",
    [
        SHORT,
        GenerationOptions("greedy", max_tokens=8),
        GenerationOptions(max_tokens=8, temperature=0.5),
    ],
)
@pytest.mark.parametrize("prompt", ["", "The cold moon"])
def test_a_stream_is_the_first_generated_text(run: Run, options: GenerationOptions, prompt: str) -> None:
    (row, *_) = generate_rows(run, CONTEXTS[:1], options=options, prompt=prompt, case=True)
    pieces = list(stream(run, CONTEXTS[0], options=options, prompt=prompt, case=True))
    assert "".join(pieces) == row["text"]
    assert row["text"].startswith(sentence_case(prompt.lower()))
    assert len(pieces) == row["tokens"] + bool(prompt)


@pytest.mark.parametrize("tokenizer", ["char", "grapheme", "bpe", "word"])
@pytest.mark.parametrize("case", [False, True])
def test_a_stream_yields_no_character_that_a_later_token_changes(tokenizer: str, case: bool) -> None:
    data = {"tokenizer": tokenizer, "lowercase": True, "max_tokens": 30}
    letters = make_letters(("σσασ σ\u0323σ", "i ii i'i", "σ. iσ σ\u0301\u0323σ"), data=data)
    for seed in range(20):
        options = GenerationOptions(max_tokens=12, min_tokens=8, seed=seed)
        for prompt in ("", "σσ", "i"):
            pieces = list(stream(letters, {"city": "Oslo"}, options=options, prompt=prompt, case=case))
            (row,) = generate(letters, {"city": "Oslo"}, options=options, prompt=prompt, case=case)
            assert "".join(pieces) == row["text"]
            assert all(pieces)
            assert tokenizer == "bpe" or len(pieces) > 4


def test_a_stream_does_not_change_the_precision_of_its_caller(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "precision", "bfloat16")
    (row, *_) = generate_rows(run, CONTEXTS[:1])
    text = ""
    for piece in stream(run, CONTEXTS[0], options=SHORT):
        text += piece
        assert not library.autocasts_to_bfloat16(run.device)
        assert not torch.is_inference_mode_enabled()
    assert text == row["text"]


def test_without_time_there_are_no_rows(run: Run) -> None:
    assert generate_rows(run, options=GenerationOptions(max_tokens=8, seconds=0.0)) == []


@pytest.mark.parametrize("method", ["sample", "beam"])
def test_texts_that_are_not_finished_in_time_are_left_out(
    method: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = GenerationOptions(method, max_tokens=8, seconds=1.0)
    expected = generate_rows(run, options=replace(options, seconds=None), number=2)
    clock = itertools.count(0.0, 0.2)
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: next(clock))
        in_time = generate_rows(run, options=options, number=2)
    assert len(in_time) < len(expected)
    assert in_time == expected[: len(in_time)]
    rest = generate_rows(run, options=replace(options, seconds=None), number=2, first=len(in_time))
    assert [*in_time, *rest] == expected


def test_category_values_are_sorted(run: Run, tmp_path: Path) -> None:
    assert category_values(run.schema, "stars") == ["1", "5"]
    assert category_values(run.schema, "city") == ["Nice", "Oslo"]
    with pytest.raises(UserError, match="did you mean 'stars'"):
        category_values(run.schema, "star")
    with pytest.raises(UserError, match="lat: expected a column of kind category, got number"):
        category_values(make_run(tmp_path / "run").schema, "lat")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": 0}, "number is 0"),
        ({"number": 2, "options": GenerationOptions("greedy")}, "greedy"),
        ({"contexts": [{"city": "Olso", "stars": "1"}]}, "'Olso'.*Oslo"),
        ({"contexts": [{"town": "Oslo"}]}, "town"),
        ({"contexts": ["city"]}, "context: expected a mapping from column to value, got 'city'"),
        ({"contexts": [None]}, "context: expected a mapping"),
    ],
)
def test_invalid_arguments_are_reported(run: Run, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate_rows(run, **options)


def test_invalid_options_are_reported(run: Run) -> None:
    with pytest.raises(UserError, match="did you mean 'beam'"):
        GenerationOptions("beem")
    for seed in (-1, 1 << 63):
        with pytest.raises(UserError, match=f"seed is {seed}"):
            GenerationOptions(seed=seed)
    with pytest.raises(UserError, match="temperature"):
        GenerationOptions(temperature=0)
    for method in ("greedy", "beam"):
        with pytest.raises(UserError, match="choose sample or stochastic"):
            GenerationOptions(method, top_k=3)
    with pytest.raises(UserError, match="left to right"):
        next(stream(run, CONTEXTS[0], options=GenerationOptions("beam")))


def test_the_command_writes_the_same_texts_as_python(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run.folder)
    columns = ["--each", "stars", "--each", "city"]
    assert main.main(["generate", folder, *columns, "--number", "2", "--max-tokens", "8", "--json"]) == 0
    contexts = [{"stars": stars, "city": city} for stars in ("1", "5") for city in ("Nice", "Oslo")]
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown == generate_rows(run, contexts, number=2)
    assert main.main(["generate", folder, "--context", "city=Nice", "--max-tokens", "8", "--prompt", "the"]) == 0
    (row,) = generate_rows(run, [{"city": "Nice"}], prompt="the")
    assert capsys.readouterr().out == f"city Nice\t{row['text']}{'' if row['ended'] else ' ...'}\n"
    assert main.main(["generate", folder, "--context", "city=Nice", "--stream", "--max-tokens", "8"]) == 0
    assert capsys.readouterr().out == generate_rows(run, [{"city": "Nice"}])[0]["text"] + "\n"


def test_the_command_generates_for_each_of_several_values(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    values = ["--context", "city=Oslo", "--context", "city=Nice", "--context", "city=Oslo", "--each", "stars"]
    assert main.main(["generate", str(run.folder), *values, "--max-tokens", "8", "--json"]) == 0
    contexts = [{"city": city, "stars": stars} for city in ("Oslo", "Nice") for stars in ("1", "5")]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == generate_rows(run, contexts)


def test_a_finding_reports_numbers_outside_the_range_of_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    high = run.schema.variable("lat").high
    with expected_finding("outside range"):
        generate_rows(run, [{"lat": str(high + 1)}])
    with no_findings():
        generate_rows(run, [{"lat": str(high)}])


def test_a_file_is_resumed(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "texts.jsonl"
    command = ["generate", str(run.folder), "--each", "city", "--number", "3", "--max-tokens", "8", "--out", str(out)]
    assert main.main(command) == 0
    whole = out.read_text()
    assert len(whole.splitlines()) == 6
    assert main.main(command) == 2
    assert "exists already" in capsys.readouterr().err
    out.write_text("".join(line + "\n" for line in whole.splitlines()[:4]) + '{"number": 4, "te')
    assert main.main([*command, "--resume"]) == 0
    before, after = ([json.loads(line) for line in text.splitlines()] for text in (whole, out.read_text()))
    for old, new in zip(before, after, strict=True):
        assert {**new, "log_probability": 0, "perplexity": 0} == {**old, "log_probability": 0, "perplexity": 0}
        assert new["log_probability"] == pytest.approx(old["log_probability"], abs=1e-5)
    whole = out.read_text()
    other_ways: list[list[str]] = [["--number", "2"], ["--each", "stars"], ["--seed", "1"], ["--prompt", "the"]]
    for other in other_ways:
        assert main.main([*command, *other, "--resume"]) == 2
        assert "nothing resumed" in capsys.readouterr().err
    assert out.read_text() == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--context", "city=Oslo", "--each", "city"], "--each city"),
        (["--each", "town"], "unknown context variable 'town'"),
        (["--context", "city"], "NAME=VALUE"),
        (["--stream", "--number", "2"], "--stream"),
        (["--stream", "--context", "city=Oslo", "--context", "city=Nice"], "--stream"),
        (["--context", "city=Rome"], "'Rome'"),
        (["--temperature", "0"], "--temperature: expected a number above 0"),
        (["--max-tokens", "0"], "--max-tokens"),
    ],
)
def test_invalid_options_of_the_command_are_reported(
    run: Run, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["generate", str(run.folder), *options]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_python_reports_unknown_words_of_the_prompt(tmp_path: Path) -> None:
    run = with_ngrams(make_run(tmp_path / "run"), ["the sea", "cold sand"])
    with collected_findings() as findings:
        list(generate(run, CONTEXTS[:1], options=SHORT, prompt="the moon"))
    assert {finding.name for finding in findings} == {"unknown words"}
    assert any(finding.text.endswith("'moon'") for finding in findings)
