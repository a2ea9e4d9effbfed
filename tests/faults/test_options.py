"""Every option of every verb with values that nobody should give: one line says what is wrong, or it is taken.

The cases follow from the parsers, so a new option is tried as soon as it is there.
"""

import argparse
import dataclasses
import json
import math
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from factorcell import files, limits
from factorcell.commands import main as cli
from factorcell.commands.main import Command
from factorcell.commands.parser import Parser
from factorcell.config import section_types
from factorcell.service.http import server
from factorcell.service.record import MAX_TIME

SECONDS = 60  # that a case may take on a busy machine
NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e400", str(10**30), "")
TEXTS = ("", "folder", "missing/file", "/dev/null", "/dev/full", "binary", "two\nlines\x1b[31m", "\udcff")
SIZES = "--hidden-size 4 --embedding-size 4 --variable-size 2 --context-size 2 --number-size 2 --rank 1"
SMALL = f"--epochs 0.1 --evaluations 1 --min-context-count 1 --min-count 1 --threads 1 --device cpu {SIZES}"
QUICK = "--epochs 0.1 --evaluations 1 --device cpu --threads 1"
COLUMNS = "--context city --context lat:number"
KEPT = "--store sqlite:///users.db"
STORES = (  # that are none, are not there, or are something else
    *("sqlite:", "sqlite:///", "sqlite:///folder", "sqlite:///binary", "sqlite:///missing/file", "sqlite:///a\0b"),
    *("sqlite:////dev/null", "sqlite:///two\nlines\x1b[31m", "sqlite:///\udcff", "mysql://root:secret@127.0.0.1"),
    *("://", "postgresql://[", "postgresql://\udcff@127.0.0.1:1/x", "postgresql://127.0.0.1:1/x\x1b[31m"),
    *("redis://", "redis://127.0.0.1:none", "redis://[", "redis://a\0b", "rediss://127.0.0.1:1"),
)

# A small command of each verb.
COMMANDS = {
    "train": f"train.csv --out new {COLUMNS} {SMALL}",
    "compare": f"train.csv --dev train.csv --out new --models unadapted {COLUMNS} {SMALL}",
    "tune": f"train.csv --out new --trials 1 {COLUMNS} {SMALL}",
    "finetune": f"run train.csv --out new {QUICK}",
    "separate": f"train.csv --by city --out new {SMALL}",
    "mix": "run run --dev train.csv --out new --threads 1",
    "report": "run --out new.html",
    "check": "run",
    "audit": "audited train.csv --threads 1",
    "evaluate": "run train.csv --threads 1",
    "classify": "run train.csv --target city --threads 1",
    "score": "run train.csv --threads 1",
    "baseline ngram": "train.csv --out new",
    "baseline bayes": "train.csv --test train.csv --target city",
    "baseline linear": "train.csv --test train.csv --target city",
    "advise": "train.csv --context city --threads 1",
    "rescore": "run lists.jsonl --threads 1",
    "complete": "letters a --seconds 0.1 --threads 1",
    "tune-online": "letters train.csv --rows-per-user 1 --seconds 0.01 --optimiser sgd --threads 1",
    "replay": "letters train.csv --compare plain --rows-per-user 1 --seconds 0.01 --out new --threads 1",
    "generate": "run --max-tokens 3 --threads 1",
    "explain": "run --text sea --between city=Oslo city=Nice --threads 1",
    "contexts": "run --threads 1",
}
COMMANDS |= {
    "serve": f"letters --port 0 --host localhost --keys keys.toml {KEPT}",
    "users list": KEPT,
    "users show": f"ann {KEPT}",
    "users export": f"ann {KEPT}",
    "users forget": f"ann nothing {KEPT}",
    "users delete": f"eve {KEPT}",
    "users import": "people.jsonl --store sqlite:///new",
    "users migrate": f"letters {KEPT}",
    "users key": "shop --keys new --scope complete",
}
# Minutes, or what is not installed: their options are those of others.
LONG = {"demo", "baseline fasttext"}
FIELDS = {field.name: field for made in section_types().values() for field in dataclasses.fields(made)}
FAST = {"generate", "complete", "report", "train", "users key"}  # verbs whose numbers are tried each time


def verbs(path: tuple[Command, ...] = (cli.ROOT_COMMAND,)) -> Iterator[tuple[Command, ...]]:
    """Every verb, after those that it is a kind of."""
    for verb in path[-1].subcommands:
        yield from verbs((*path, verb)) if verb.subcommands else [(*path, verb)]


@cache
def parsers() -> dict[str, Parser]:
    """The parser of every verb, by its words."""
    return {" ".join(verb.name for verb in path[1:]): cli.make_parser(path) for path in verbs()}


def options(verb: str) -> list[argparse.Action]:
    """What is tried of a verb: fields of the config, which all share, only with `train`."""
    return [
        action
        for action in parsers()[verb].actions
        if action.nargs != 0
        and not str(action.metavar).startswith("{")
        and (verb == "train" or action.default != argparse.SUPPRESS)
    ]


def cases(numbers: bool) -> Iterator[tuple[str, str, str]]:
    """Verb, option and value: of numbers, or of all else."""
    for verb in COMMANDS:
        for action in options(verb):
            name = action.option_strings[-1] if action.option_strings else f"<{action.dest}>"
            if (action.type in (int, float)) == numbers:
                more = STORES if name == "--store" and verb in ("serve", "users list") else ()
                yield from ((verb, name, value) for value in (NUMBERS if numbers else TEXTS + more))


def words(verb: str, name: str, value: str) -> list[str]:
    """The command of a verb, with a `value` for an option, or in place of a `<positional>`."""
    given = COMMANDS[verb].split()
    if name.startswith("<"):
        places = [action.dest for action in parsers()[verb].actions if not action.option_strings]
        given[places.index(name.strip("<>"))] = value
        return [*verb.split(), *given]
    action = next(action for action in parsers()[verb].actions if name in action.option_strings)
    if action.nargs is None:
        return [*verb.split(), *given, f"{name}={value}"]
    return [*verb.split(), *given, name, *[value] * (action.nargs if isinstance(action.nargs, int) else 1)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the commands name."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = ("sea and sun", "cold sea", "the sun", "a cold room", "no sun")
    cities = ("Oslo", "Nice")
    rows = [f"{texts[i % 5]},{cities[i % 2]},5{i % 7}.5,user {i % 3},2026-01-{i % 28 + 1:02}" for i in range(40)]
    (folder / "train.csv").write_text("\n".join(["text,city,lat,user,time", *rows, ""]), encoding="utf-8")
    (folder / "binary").write_bytes(bytes(range(256)) * 9)
    (folder / "folder").mkdir()
    (folder / "folder" / "file").touch()
    files.write_rows(
        folder / "lists.jsonl",
        [{"id": "1", "hypotheses": [{"text": text, "lm": -1.0, "am": -2.0} for text in texts[:2]]}],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["train", "train.csv", "--out", "run", *COLUMNS.split(), *SMALL.split()]) == 0
        letters = "--tokenizer char --user user --min-user-count 1"
        for name, more in (("letters", ()), ("audited", ("--canaries=2",))):
            assert cli.main(["train", "train.csv", "--out", name, *letters.split(), *SMALL.split(), *more]) == 0
        person = {"format": 1, "user": "ann", "paused": False, "texts": [{"text": "cold sea", "time": MAX_TIME}]}
        files.write_rows(folder / "people.jsonl", [person])
        assert cli.main(["users", "import", "people.jsonl", *KEPT.split()]) == 0
        assert cli.main(["users", "key", "all", "--keys", "keys.toml", "--scope", "admin"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _served_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends as soon as it could answer; of several processes none begins."""

    def run(own: uvicorn.Server, _sockets: object) -> None:
        with TestClient(own.config.app):  # type: ignore[arg-type]
            pass

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(server, "supervise", lambda options, port: None)


def attempt(world: Path, given: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and last line of messages of a command, which must end in time and leave devices as they are."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"{given} hangs")

    before, handler = os.environ.copy(), signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(world)
            code = cli.main(given)
    except SystemExit as end:
        code = int(str(end.code))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        os.environ.clear()
        os.environ.update(before)
        for name in ("new", "new-wal", "new-shm", "new.html"):
            subprocess.run(["rm", "-rf", str(world / name)], check=True)
    assert all(stat.S_ISCHR(os.stat(name).st_mode) for name in ("/dev/null", "/dev/full"))
    said = capfd.readouterr().err
    assert "Traceback" not in said
    return code, said


def refuse_or_take(world: Path, given: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """What came of a command: it goes through, or says in one line of factorcell what is wrong."""
    code, said = attempt(world, given, capfd)
    assert code in (0, 2), said
    if code == 2:
        assert said.splitlines()[-1].startswith("factorcell"), said
    return "clear error" if code else "accepted"


@pytest.mark.parametrize("case", [case for case in cases(numbers=True) if case[0] in FAST - {"train"}], ids=repr)
def test_numbers_of_quick_verbs(world: Path, case: tuple[str, str, str], capfd: pytest.CaptureFixture[str]) -> None:
    refuse_or_take(world, words(*case), capfd)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in cases(numbers=True) if case[0] not in FAST - {"train"}], ids=repr)
def test_numbers(world: Path, case: tuple[str, str, str], capfd: pytest.CaptureFixture[str]) -> None:
    refuse_or_take(world, words(*case), capfd)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*cases(numbers=False)], ids=repr)
def test_texts_and_files(world: Path, case: tuple[str, str, str], capfd: pytest.CaptureFixture[str]) -> None:
    refuse_or_take(world, words(*case), capfd)


@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb.split()[0] in ("serve", "users")])
def test_commands_of_the_service_as_they_stand(world: Path, verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, said = attempt(world, [*verb.split(), *COMMANDS[verb].split()], capfd)
    assert code == 0, said


def test_every_number_has_limits() -> None:
    for verb, parser in parsers().items():
        for action in parser.actions:
            known = action.dest in limits.NUMBER_LIMITS or action.dest in FIELDS
            assert action.type not in (int, float) or known, f"{verb} {action.dest}"
    for name, field in FIELDS.items():
        assert (field.metadata.get("limits") is not None) == (field.type in (int, float)), name
    assert set(parsers()) == set(COMMANDS) | LONG


@pytest.mark.parametrize("name", [*limits.NUMBER_LIMITS])
def test_the_limits_of_a_number(name: str) -> None:
    own = limits.NUMBER_LIMITS[name]
    limits.check(**{name: None})
    for value in (*([] if own.above else [own.low]), own.high):
        limits.check(**{name: int(value) if own.whole else value})
    wrong: list[Any] = [math.nan, own.low - 1, own.high + max(1, own.high / 1000), True, "3"]
    for number in wrong if own.high < math.inf else wrong[:2]:
        with pytest.raises(limits.UserError, match=f"^{name} is"):
            limits.check(**{name: number})


STREAMS = [
    ("score run train.csv >&-", 2, "factorcell: standard output is closed: results would be lost"),
    ("score run train.csv > /dev/full", 2, "factorcell: the output cannot be written (No space left on device)"),
    ("--help >&-", 2, "factorcell: standard output is closed: results would be lost"),
    ("score run train.csv 2>&- | head -n 1", 0, ""),
    ("score run train.csv <&- >/dev/null", 0, ""),
    ("report run --out /dev/full", 2, "factorcell: /dev/full: cannot be written (No space left on device)"),
    ("report run --out /dev/stdout > /dev/null", 0, "report: /dev/stdout"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code", "said"), STREAMS)
def test_streams(world: Path, line: str, code: int, said: str) -> None:
    shell = f"set -o pipefail; '{sys.executable}' -m factorcell {line}"
    done = subprocess.run(["bash", "-c", shell], cwd=world, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (code, said)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [None, "ascii", "latin-1"])
def test_characters_that_the_output_lacks(world: Path, encoding: str | None) -> None:
    (world / "café.csv").write_text("text,city,lat\nčafé sun,Oslo,50\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    own = {**kept, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    own |= {"PYTHONIOENCODING": encoding} if encoding else {}
    for more in ((), ("--json",)):
        command = [sys.executable, "-m", "factorcell", "explain", "run", "--text", "čafé", *more]
        command += ["--between", "city=Oslo", "city=Nice", "--threads", "1"]
        done = subprocess.run(
            [os.fsencode(word) for word in command], cwd=world, env=own, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert "ca" in json.dumps(json.loads(done.stdout.decode(encoding or "utf-8").splitlines()[0]))
