"""Parsing of command lines: options in any place, texts that look like options, errors in one line."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from tests.commands.leaf_commands import parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "factorcell: unknown command 'trian' (did you mean 'train'?); see factorcell --help"),
        ("--vers", "factorcell: unknown option '--vers'; see factorcell --help"),
        (
            "baseline ngrams",
            "factorcell: unknown command 'ngrams' (did you mean 'ngram'?); see factorcell base",
        ),
        (
            "train --epoch 3",
            "factorcell: unknown option --epoch (did you mean '--epochs'?); see factorcell",
        ),
        ("train t.csv --rnk=3", "factorcell: unknown option --rnk (did you mean '--rank'?); see factorcell"),
        ("train t.csv", "factorcell: missing: --out; see factorcell train --help"),
        ("train --out o", "factorcell: missing: TRAIN; "),
        ("evaluate r --json", "factorcell: missing: TABLE; "),
        ("score run t.csv more", "factorcell: unknown argument 'more'; "),
        ("score run t.csv -x", "factorcell: unknown argument '-x'; "),
        ("complete r --count 3 a b", "factorcell: unknown argument 'b'; "),
        ("complete r a --history", "factorcell: argument --history: expected one argument; "),
        (
            "train t.csv --out r --rank x",
            "factorcell: argument --rank: expected a whole number from 0 to 1000000, got 'x'; ",
        ),
        (
            "score run t.csv --device tpu",
            "factorcell: argument --device: expected one of auto, cpu, cuda, got 'tpu' (did you mean 'cpu'?); ",
        ),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(message)


def test_texts_may_look_like_options() -> None:
    complete = parser("complete")
    assert complete.parse(["run", "--", "--so"]).prefix == "--so"
    assert complete.parse(["run", "a", "--history=--so"]).history == ["--so"]
    assert complete.parse(["run", "-- so"]).prefix == "-- so"
    assert complete.parse(["run", "--count", "3", "--", "--so"]).prefix == "--so"
    assert complete.parse(["--count", "3", "--", "run", "--so"]).prefix == "--so"
    assert parser("generate").parse(["r", "--context", "lat=-1", "--seed", "5"]).context == ["lat=-1"]


# Commands with several positional arguments (subcommands after a slash): their values, and values of some options.
MIXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mix r s t": (
        {"runs": [Path("r"), Path("s"), Path("t")]},
        {"--dev d": Path("d"), "--out o": Path("o"), "--json": True},
    ),
    "classify r t": ({"run": Path("r"), "table": Path("t")}, {"--target c": "c", "--values t r --json": ["t", "r"]}),
    "score r t": ({"run": Path("r"), "table": Path("t")}, {"--tokens": True, "--unknown=group": "group"}),
    "complete r p": ({"run": Path("r"), "prefix": "p"}, {"--count 3": 3, "--context u=p": ["u=p"], "--explain": True}),
    "users/export u": ({"users": ["u"]}, {"--store s": "s"}),
    "users/delete u t": ({"users": ["u", "t"]}, {"--store s": "s"}),
}


def orders(positionals: list[str], options: list[str]) -> Iterator[list[str]]:
    """Yield every order of the options and positional arguments, where the latter keep their order."""
    size = len(positionals) + len(options)
    for order in itertools.permutations(options):
        for places in itertools.combinations(range(size), len(options)):
            remaining, chosen = iter(positionals), dict(zip(places, order, strict=True))
            yield [
                word
                for index in range(size)
                for word in (chosen[index] if index in chosen else next(remaining)).split()
            ]


@pytest.mark.parametrize("command", MIXED)
def test_options_may_be_anywhere_among_positional_arguments(command: str) -> None:
    (first, *positionals), (expected, options) = command.split(), MIXED[command]
    command_parser = parser(*first.split("/"))
    option_values = {option.split("=")[0].split()[0].strip("-"): value for option, value in options.items()}
    for words in orders(positionals, list(options)):
        parsed = vars(command_parser.parse(words))
        assert {name: parsed[name] for name in expected | option_values} == expected | option_values, words


def test_help_precedes_errors_unless_it_follows_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["-h"], ["r", "--count", "x", "--help"], ["--coutn", "3", "-h"]):
        with pytest.raises(SystemExit) as stop:
            parser("complete").parse(words)
        assert stop.value.code == 0
        assert capsys.readouterr() == (parser("complete").format_help(), "")
    complete = parser("complete", shows_all=True)
    with pytest.raises(SystemExit):
        complete.parse(["--help-all"])
    assert capsys.readouterr().out == complete.format_help()
    assert parser("complete").parse(["r", "--", "-h"]).prefix == "-h"
