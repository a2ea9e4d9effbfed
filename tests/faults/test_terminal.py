"""Hostile texts, values, names and arguments in every command never reach a terminal, page or card unescaped."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from factorcell.commands.cli import terminal
from factorcell.commands.cli.main import main
from factorcell.io import files
from tests.hostile_texts import HOSTILE_TEXTS, NOT_UTF8, read_exactly, unescaped_characters

COLUMN, OTHER = "ci\x1b[2Jty\u202e", "ki\x9bnd"
CITIES = [f"Oslo{HOSTILE_TEXTS['screen']}", f"Nice{HOSTILE_TEXTS['round']}"]
WORDS, LETTERS = f"words{NOT_UTF8}", f"letters{NOT_UTF8}"
LISTS = f"lists{NOT_UTF8}.jsonl"
TABLE = f"ta\x1bb{NOT_UTF8}le.jsonl"
TEXTS = [f"the sea {hostile_text} is cold" for hostile_text in HOSTILE_TEXTS.values()] + ["sun and sand", "the sun"]
SIZES = "--hidden-size 6 --embedding-size 4 --variable-size 2 --context-size 3 --epochs 1 --evaluations 1".split()
MIN_COUNTS = "--min-count 1 --min-context-count 1 --min-user-count 1 --min-text-users 1 --threads 1".split()

# Commands and their arguments; {words} is a run of words, {letters} a run of characters with users.
COMMANDS: dict[str, str] = {
    "evaluate": "evaluate {words} {table} --by {column}",
    "classify": "classify {words} {table} --target {column}",
    "score": "score {words} {table} --tokens",
    "explain": "explain {words} --text {text} --between {oslo} {nice} --page {page}",
    "contexts": "contexts {words} --words --page {page}",
    "generate": "generate {words} --each {column} --min-tokens 3",
    "stream": "generate {words} --context {oslo} --stream --min-tokens 9",
    "complete": "complete {letters} {prefix} --history {text} --explain",
    "report": "report {words} {letters} --out {page}",
    "advise": "advise {table} --context {column}",
    "rescore": "rescore {words} {lists} --context {oslo}",
    "resume": "train {table} --dev {table} --context {column} --out {words} {small} --resume",
    "baseline": "baseline ngram {table} --out {fresh}",
}
SLOW: dict[str, str] = {
    "tune-online": "tune-online {letters} {table} --time at --rows-per-user 2 --optimizer sgd --seconds 0.05",
    "replay": "replay {letters} {table} --compare plain,online --user {column} --time at --out {fresh} --seconds 0.05",
    "finetune": "finetune {words} {table} --dev {table} --out {fresh} --epochs 1 --evaluations 1",
    "tune": "tune {table} --dev {table} --context {column} --out {fresh} --trials 1 {small}",
    "compare": "compare {table} --dev {table} --test {table} --context {column} --out {fresh} {small}",
}
UNTHREADED = ("report", "baseline")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hostile name: a hostile table, lists of hypotheses, and two runs."""
    folder = tmp_path_factory.mktemp("hostile") / f"a{HOSTILE_TEXTS['screen'].replace('/', '')}\u202e{NOT_UTF8}"
    folder.mkdir()
    rows = [
        {"text": text, COLUMN: city, OTHER: str(number % 2), "at": number}
        for number, (text, city) in enumerate((text, city) for text in TEXTS * 4 for city in CITIES)
    ]
    files.write_rows(folder / TABLE, rows)
    hypotheses = [{"text": TEXTS[0], "lm": -1.0}, {"text": TEXTS[1], "lm": -1.5}]
    files.write_rows(
        folder / LISTS,
        [{"id": f"u{hostile_text}", "hypotheses": hypotheses} for hostile_text in HOSTILE_TEXTS.values()],
    )
    options_of_run = {
        WORDS: ["--context", COLUMN],
        LETTERS: ["--user", COLUMN, "--tokenizer", "char", "--max-tokens", "60"],
    }
    for name, more in options_of_run.items():
        table = str(folder / TABLE)
        assert main(["train", table, "--dev", table, "--out", str(folder / name), *more, *SIZES, *MIN_COUNTS]) == 0
    return folder


def command_words(command: str, folder: Path, fresh: Path) -> list[str]:
    """Return the words of a command with its placeholders filled."""
    command_name = command.split()[0]
    values = {
        "table": folder / TABLE,
        "lists": folder / LISTS,
        "words": folder / WORDS,
        "letters": folder / LETTERS,
        "column": COLUMN,
        "oslo": f"{COLUMN}={CITIES[0]}",
        "nice": f"{COLUMN}={CITIES[1]}",
        "text": TEXTS[0],
        "prefix": "the sea \x1b",
        "page": fresh / f"page\x1b{NOT_UTF8}.html",
        "fresh": fresh / f"fresh\x1b{NOT_UTF8}",
    }
    words = [word for word in command.split() if word != "{small}"]
    small = [*SIZES, *MIN_COUNTS[:-2]] if "{small}" in command else []
    return (
        [word.format(**values) for word in words]
        + small
        + (["--threads", "1"] if command_name not in UNTHREADED else [])
    )


@pytest.mark.parametrize("name", [*COMMANDS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_nothing_hostile_reaches_the_terminal(
    name: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command_words({**COMMANDS, **SLOW}[name], folder, tmp_path)) == 0, capsys.readouterr().err
    captured = capsys.readouterr()
    assert not unescaped_characters(captured.out + captured.err)
    if name != "complete":  # suggested texts have no invisible characters
        assert r"\x" in captured.out + captured.err or r"\u" in captured.out + captured.err, "nothing hostile was shown"
    for path in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.md")):
        assert not unescaped_characters(read_exactly(path)), path.name


@pytest.mark.parametrize("name", ["evaluate", "classify", "score", "explain", "complete"])
def test_rows_are_json_with_hostile_values(
    name: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*command_words(COMMANDS[name], folder, tmp_path), "--json"]) == 0
    captured = capsys.readouterr().out
    assert not unescaped_characters(captured)
    rows = [json.loads(line) for line in captured.splitlines()]
    assert rows
    if name not in ("evaluate", "complete"):
        assert "\x1b" in "".join(map(str, strings(rows)))


def strings(value: object) -> list[str]:
    """Return all strings in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in inner for text in strings(item)]


ESCAPES = ("\x1b[2J", "\x9b2J", "\u202eexe", "\r\nfactorcell: done", "a\u2028b", "\udc9b", "\x1b]0;x\x07")


@pytest.mark.parametrize("hostile_text", ESCAPES, ids=ascii)
@pytest.mark.parametrize(
    "words",
    [
        ["{}"],
        ["baseline", "{}"],
        ["evaluate", "no{}where", "x"],
        ["evaluate", "a", "b", "c{}"],
        ["train", "{}.jsonl", "--out", "x"],
        ["evaluate", "a", "b", "--device", "{}"],
        ["complete", "{words}", "{}"],
        ["classify", "{words}", "{table}", "--target", "{}"],
        ["generate", "{words}", "--context", "{}=1"],
        ["explain", "{words}", "{}"],
    ],
    ids=" ".join,
)
def test_mistakes_with_hostile_arguments_give_one_line(
    words: Sequence[str],
    hostile_text: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"{words}": str(folder / WORDS), "{table}": str(folder / TABLE)}
    arguments = [places.get(word, word).replace("{}", hostile_text) for word in words]
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(str(error.code))
    captured = capsys.readouterr()
    assert code == 2
    assert not unescaped_characters(captured.out + captured.err)
    (captured.out + captured.err).encode()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("factorcell")


def test_cards_hold_nothing_hostile(folder: Path) -> None:
    for name in (WORDS, LETTERS):
        card = read_exactly(folder / name / "README.md")
        assert not unescaped_characters(card)
        assert r"ci\\x1b\[2Jty\\u202e (" in card


def test_warnings_show_nothing_hostile(capsys: pytest.CaptureFixture[str]) -> None:
    import logging
    import warnings

    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with terminal.logging_to_standard_error(verbose=False):
            warnings.warn("a\x1b[2J\nb", stacklevel=1)
            logging.getLogger("factorcell.nn").warning("%s cannot be loaded", "li\x9bb")
    assert warnings.showwarning is before
    captured = capsys.readouterr().err.splitlines()
    assert r"UserWarning: a\x1b[2J\nb" in captured
    assert r"li\x9bb cannot be loaded" in captured


def test_only_colour_codes_reach_the_terminal(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(command_words(COMMANDS["explain"], folder, tmp_path)) == 0
    captured = capsys.readouterr().out
    assert "\x1b[0m" in captured
    for part in captured.split("\x1b")[1:]:
        assert part[0] == "["
        assert set(part[1 : part.index("m")]) <= set("0123456789;")
    assert terminal.coloured("\x1b[2J", "1") == "\x1b[1m\\x1b[2J\x1b[0m"
