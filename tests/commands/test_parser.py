"""What the words of a command mean: options in any place, texts that look like options, mistakes in one line."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.main import main
from tests.commands.verbs import LEAVES, parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "factorcell: unknown verb 'trian'; did you mean 'train'? (factorcell --help lists all)"),
        (["--vers"], "factorcell: unknown option --vers (factorcell --help lists all)"),
        (
            ["baseline", "ngrams"],
            "factorcell baseline: unknown verb 'ngrams'; did you mean 'ngram'? (factorcell baseline --help lists all)",
        ),
        (
            ["train", "--epoch", "3"],
            "factorcell train: unknown option --epoch; did you mean --epochs? (factorcell train --help lists all)",
        ),
        (
            ["train", "t.csv", "--rnk=3"],
            "factorcell train: unknown option --rnk; did you mean --rank? (factorcell train",
        ),
        (["train", "t.csv"], "factorcell train: missing: --out (factorcell train --help lists all)"),
        (["score", "run", "t.csv", "more"], "factorcell score: unknown argument 'more' (factorcell score"),
        (["score", "run", "t.csv", "-x"], "factorcell score: unknown argument '-x' (factorcell score"),
        (
            ["train", "t.csv", "--out", "r", "--rank", "x"],
            "factorcell train: --rank: 'x' is not a whole number (",
        ),
        (
            ["train", "t.csv", "--out", "r", "--minutes", "2m"],
            "factorcell train: --minutes: '2m' is not a number (",
        ),
        (
            ["score", "run", "t.csv", "--device", "tpu"],
            "factorcell score: argument --device: unknown 'tpu' (did you mean 'cpu'?); choose from auto, cpu, cuda (",
        ),
        (
            ["users", "key", "shop", "--keys", "f", "--scope", "complet"],
            "factorcell users key: argument --scope: unknown 'complet' (did you mean 'complete'?); choose from comp",
        ),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest name, and exit code 2."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(message)


def test_texts_may_look_like_options() -> None:
    """After `--`, after `=`, or with spaces; a number below zero is no option."""
    made = parser("complete")
    assert made.parse(["run", "--", "--so"]).prefix == "--so"
    assert made.parse(["run", "a", "--history=--so"]).history == "--so"
    assert made.parse(["run", "-- so"]).prefix == "-- so"
    assert made.parse(["run", "--count", "3", "--", "--so"]).prefix == "--so"
    assert made.parse(["--count", "3", "--", "run", "--so"]).prefix == "--so"
    assert parser("train").parse(["t", "--out", "r", "--rank", "-1"]).rank == -1


# Each verb that takes several positionals, a kind after its verb and a slash: what they are, and options that it needs
# or may have, by what they say.
MIXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "finetune r t": ({"run": Path("r"), "table": Path("t")}, {"--out o": Path("o"), "--resume": True}),
    "mix r s t": (
        {"runs": [Path("r"), Path("s"), Path("t")]},
        {"--dev d": Path("d"), "--out o": Path("o"), "--json": True},
    ),
    "report r s t": ({"runs": [Path("r"), Path("s"), Path("t")]}, {"--out o": Path("o")}),
    "evaluate r t": ({"run": Path("r"), "table": Path("t")}, {"--by r": ["r"], "--top": True}),
    "classify r t": (
        {"run": Path("r"), "table": Path("t")},
        {"--target c": "c", "--values t r --json": ["t", "r"]},
    ),
    "score r t": ({"run": Path("r"), "table": Path("t")}, {"--tokens": True, "--unknown=group": "group"}),
    "rescore r t": ({"run": Path("r"), "lists": Path("t")}, {"--by t": ["t"], "--learn": True}),
    "complete r p": ({"run": Path("r"), "prefix": "p"}, {"--count 3": 3, "--context u=p": ["u=p"], "--explain": True}),
    "complete r": ({"run": Path("r"), "prefix": None}, {"--count 3": 3, "--json": True}),
    "tune-online r t": ({"run": Path("r"), "dev": Path("t")}, {"--optimiser sgd": ["sgd"], "--json": True}),
    "audit r t": ({"run": Path("r"), "table": Path("t")}, {"--queries 3": 3, "--json": True}),
    "replay r t": ({"run": Path("r"), "heldout": Path("t")}, {"--compare mpc": "mpc", "--out o": Path("o")}),
    "specificity r s t": (
        {"runs": [Path("r"), Path("s"), Path("t")]},
        {"--target c": "c", "--train a": Path("a"), "--dev d": Path("d"), "--out o": Path("o")},
    ),
    "explain r f": (
        {"run": Path("r"), "file": "f"},
        {"--between a=1 a=2 --words 3": ["a=1", "a=2"], "--text f": ["f"], "--page p": Path("p")},
    ),
    "explain r": ({"run": Path("r"), "file": None}, {"--between a=1 a=2 --text t": ["a=1", "a=2"]}),
    "users/forget u t": ({"user": "u", "text": "t"}, {"--store s": "s"}),
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
def test_options_stand_anywhere(command: str) -> None:
    """Among the positionals too: every order means the same."""
    (verb, *positionals), (expected, options) = command.split(), MIXED[command]
    made = parser(*verb.split("/"))
    named = {option.split("=")[0].split()[0].strip("-"): value for option, value in options.items()}
    for words in orders(positionals, list(options)):
        given = vars(made.parse(words))
        assert {name: given[name] for name in expected | named} == expected | named, words


def test_every_verb_of_several_positionals_is_mixed() -> None:
    """None is left out above."""
    several = {
        "/".join(words)
        for words in LEAVES
        for found in [parser(*words)._get_positional_actions()]
        if len(found) > 1 or any(action.nargs == "+" for action in found)
    }
    assert several == {command.split()[0] for command in MIXED}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "missing: TRAIN, --out ("),
        (["train", "--out", "o"], "missing: TRAIN ("),
        (["evaluate", "--top", "r", "--json"], "missing: TABLE ("),
        (["complete", "r", "--count", "3", "a", "b"], "unknown argument 'b' ("),
        (["complete", "r", "--count", "3", "-x"], "unknown argument '-x' ("),
        (["complete", "r", "a", "--history"], "argument --history: expected one argument ("),
        (["baseline", "ngram", "t", "--out", "o", "--like", "r", "--config", "c"], "argument --config: not allowed"),
    ],
)
def test_what_is_missing_is_named_at_once(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Positionals and options in one line."""
    with pytest.raises(SystemExit):
        main(words)
    assert capsys.readouterr().err.partition(": ")[2].startswith(message)


def test_help_wins(capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever it stands, beside a mistake too, but not after `--`, where it is a prefix."""
    for words in (["-h"], ["r", "--count", "x", "--help"], ["--coutn", "3", "-h"]):
        with pytest.raises(SystemExit) as stop:
            parser("complete").parse(words)
        assert stop.value.code == 0
        assert capsys.readouterr() == (parser("complete").format_help(), "")
    assert parser("complete").parse(["r", "--", "-h"]).prefix == "-h"
