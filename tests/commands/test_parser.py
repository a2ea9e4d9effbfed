"""What the words of a command mean: options in any place, texts that look like options, mistakes in one line."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.main import main
from tests.commands.leaf_commands import parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "factorcell: unknown verb 'trian' (did you mean 'train'?); see factorcell --help"),
        ("--vers", "factorcell: unknown option '--vers'; see factorcell --help"),
        ("baseline ngrams", "factorcell baseline: unknown verb 'ngrams' (did you mean 'ngram'?); see factorcell base"),
        (
            "train --epoch 3",
            "factorcell train: unknown option --epoch (did you mean '--epochs'?); see factorcell",
        ),
        ("train t.csv --rnk=3", "factorcell train: unknown option --rnk (did you mean '--rank'?); see factorcell"),
        ("train t.csv", "factorcell train: missing: --out; see factorcell train --help"),
        ("train --out o", "factorcell train: missing: TRAIN; "),
        ("evaluate r --json", "factorcell evaluate: missing: TABLE; "),
        ("score run t.csv more", "factorcell score: unknown argument 'more'; "),
        ("score run t.csv -x", "factorcell score: unknown argument '-x'; "),
        ("complete r --count 3 a b", "factorcell complete: unknown argument 'b'; "),
        ("complete r a --history", "factorcell complete: argument --history: expected one argument; "),
        ("train t.csv --out r --rank x", "factorcell train: argument --rank: invalid int value: 'x'; "),
        ("score run t.csv --device tpu", "factorcell score: argument --device: unknown 'tpu' (did you mean 'cpu'?), "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(message)


def test_texts_may_look_like_options() -> None:
    made = parser("complete")
    assert made.parse(["run", "--", "--so"]).prefix == "--so"
    assert made.parse(["run", "a", "--history=--so"]).history == "--so"
    assert made.parse(["run", "-- so"]).prefix == "-- so"
    assert made.parse(["run", "--count", "3", "--", "--so"]).prefix == "--so"
    assert made.parse(["--count", "3", "--", "run", "--so"]).prefix == "--so"
    assert parser("train").parse(["t", "--out", "r", "--rank", "-1"]).rank == -1


# Verbs with several positionals (a kind after its verb and a slash): their values, and those of some options.
MIXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mix r s t": (
        {"runs": [Path("r"), Path("s"), Path("t")]},
        {"--dev d": Path("d"), "--out o": Path("o"), "--json": True},
    ),
    "classify r t": ({"run": Path("r"), "table": Path("t")}, {"--target c": "c", "--values t r --json": ["t", "r"]}),
    "score r t": ({"run": Path("r"), "table": Path("t")}, {"--tokens": True, "--unknown=group": "group"}),
    "complete r p": ({"run": Path("r"), "prefix": "p"}, {"--count 3": 3, "--context u=p": ["u=p"], "--explain": True}),
    "complete r": ({"run": Path("r"), "prefix": None}, {"--count 3": 3, "--json": True}),
    "users/delete u t": ({"users": ["u", "t"]}, {"--store s": "s", "--purge": True}),
}


def orders(positionals: list[str], options: list[str]) -> Iterator[list[str]]:
    """Every way to put the positionals, in their order, between and around the options, in any order."""
    size = len(positionals) + len(options)
    for some in itertools.permutations(options):
        for places in itertools.combinations(range(size), len(options)):
            left, chosen = iter(positionals), dict(zip(places, some, strict=True))
            yield [word for at in range(size) for word in (chosen[at] if at in chosen else next(left)).split()]


@pytest.mark.parametrize("command", MIXED)
def test_options_stand_anywhere_among_positionals(command: str) -> None:
    (verb, *positionals), (expected, options) = command.split(), MIXED[command]
    made = parser(*verb.split("/"))
    named = {option.split("=")[0].split()[0].strip("-"): value for option, value in options.items()}
    for words in orders(positionals, list(options)):
        given = vars(made.parse(words))
        assert {name: given[name] for name in expected | named} == expected | named, words


def test_help_wins_over_mistakes_but_not_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["-h"], ["r", "--count", "x", "--help"], ["--coutn", "3", "-h"]):
        with pytest.raises(SystemExit) as stop:
            parser("complete").parse(words)
        assert stop.value.code == 0
        assert capsys.readouterr() == (parser("complete").format_help() + "\n", "")
    assert parser("complete").parse(["r", "--", "-h"]).prefix == "-h"
