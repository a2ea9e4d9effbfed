"""Every option of every command with absurd values: it is accepted, or refused in one line.

The cases are derived from the parsers, so new options are covered automatically.
"""

import argparse
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

from factorcell.commands.cli import main as cli
from factorcell.commands.cli.parser import Parser
from factorcell.config import option_fields, section_types
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.options import limits
from factorcell.service.http import server
from factorcell.service.record import MAX_TIME

SECONDS = 60  # time limit of a case on a busy machine
NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e400", str(10**30), "")
TEXTS = ("", "folder", "missing/file", "/dev/null", "/dev/full", "binary", "two\nlines\x1b[31m", "\udcff")
SIZES = "--hidden-size 4 --embedding-size 4 --variable-size 2 --context-size 2 --rank 1"
SMALL = f"--epochs 0.1 --evaluations 1 --min-context-count 1 --min-count 1 --threads 1 --device cpu {SIZES}"
QUICK = "--epochs 0.1 --evaluations 1 --device cpu --threads 1"
COLUMNS = "--context city --context lat:number"
STORE_OPTION = "--store sqlite:///users.db"
STORES = (  # invalid, missing or unsuitable stores
    *("sqlite:", "sqlite:///", "sqlite:///folder", "sqlite:///binary", "sqlite:///missing/file", "sqlite:///a\0b"),
    *("sqlite:////dev/null", "sqlite:///two\nlines\x1b[31m", "sqlite:///\udcff", "mysql://root:secret@127.0.0.1"),
    *("://", "postgresql://[", "postgresql://\udcff@127.0.0.1:1/x", "postgresql://127.0.0.1:1/x\x1b[31m"),
    *("redis://", "redis://127.0.0.1:none", "redis://[", "redis://a\0b", "rediss://127.0.0.1:1"),
)

# A small call of each command.
COMMANDS = {
    "train": f"train.csv --out new {COLUMNS} {SMALL}",
    "compare": f"train.csv --dev train.csv --out new --models unadapted {COLUMNS} {SMALL}",
    "tune": f"train.csv --out new --trials 1 {COLUMNS} {SMALL}",
    "finetune": f"run train.csv --out new {QUICK}",
    "mix": "run run --dev train.csv --out new --threads 1",
    "report": "run --out new.html",
    "evaluate": "run train.csv --threads 1",
    "classify": "run train.csv --target city --threads 1",
    "score": "run train.csv --threads 1",
    "baseline ngram": "train.csv --out new",
    "baseline linear": "train.csv --test train.csv --target city",
    "advise": "train.csv --context city --threads 1",
    "rescore": "run lists.jsonl --threads 1",
    "complete": "letters a --seconds 0.1 --threads 1",
    "tune-online": "letters train.csv --rows-per-user 1 --seconds 0.01 --optimizer sgd --threads 1",
    "replay": "letters train.csv --compare plain --rows-per-user 1 --seconds 0.01 --out new --threads 1",
    "generate": "run --max-tokens 3 --threads 1",
    "export": "run new --to merged --threads 1",
    "explain": "run --text sea --between city=Oslo city=Nice --threads 1",
    "contexts": "run --threads 1",
}
COMMANDS |= {
    "serve": f"letters --port 0 --host localhost --keys keys.toml {STORE_OPTION}",
    "users list": STORE_OPTION,
    "users show": f"ann {STORE_OPTION}",
    "users export": f"ann {STORE_OPTION}",
    "users forget": f"ann nothing {STORE_OPTION}",
    "users delete": f"eve {STORE_OPTION}",
    "users import": "people.jsonl --store sqlite:///new",
    "users migrate": f"letters {STORE_OPTION}",
    "users key": "shop --keys new --scope complete",
}
# This takes minutes; other commands have the same options.
UNTESTED = {"demo"}
FIELDS = {field.name: field for section in section_types().values() for field in option_fields(section)}
QUICK_COMMANDS = {"generate", "complete", "report", "train", "users key"}  # numeric options of these are always tested


@cache
def parsers() -> dict[str, Parser]:
    """Return the parser of every command by its name."""
    return {command: cli.make_parser(command) for command in cli.COMMANDS}


def options(command: str) -> list[argparse.Action]:
    """Return the tested options of a command; those of the config, which all commands share, only for `train`."""
    return [
        action
        for action in parsers()[command].actions
        if action.nargs != 0
        and not str(action.metavar).startswith("{")
        and (command == "train" or action.default != argparse.SUPPRESS)
    ]


def is_number(action: argparse.Action) -> bool:
    """Return whether an argument is a number."""
    reader = getattr(action.type, "args", [None])[0]
    return isinstance(getattr(reader, "__self__", None), limits.Limits)


def cases(numbers: bool) -> Iterator[tuple[str, str, str]]:
    """Yield command, option and value, for numeric options or for all others."""
    for command in COMMANDS:
        for action in options(command):
            name = action.option_strings[-1] if action.option_strings else f"<{action.dest}>"
            if is_number(action) == numbers:
                more = STORES if name == "--store" and command in ("serve", "users list") else ()
                yield from ((command, name, value) for value in (NUMBERS if numbers else TEXTS + more))


def command_words(command: str, name: str, value: str) -> list[str]:
    """Return the words of a command with a `value` for an option, or in place of a `<positional>`."""
    arguments = COMMANDS[command].split()
    if name.startswith("<"):
        places = [action.dest for action in parsers()[command].actions if not action.option_strings]
        arguments[places.index(name.strip("<>"))] = value
        return [*command.split(), *arguments]
    action = next(action for action in parsers()[command].actions if name in action.option_strings)
    if action.nargs is None:
        return [*command.split(), *arguments, f"{name}={value}"]
    return [*command.split(), *arguments, name, *[value] * (action.nargs if isinstance(action.nargs, int) else 1)]


@pytest.fixture(scope="module")
def folder_with_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the commands name."""
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
        assert cli.main(["train", "train.csv", "--out", "letters", *letters.split(), *SMALL.split()]) == 0
        person = {"format": 1, "user": "ann", "paused": False, "texts": [{"text": "cold sea", "time": MAX_TIME}]}
        files.write_rows(folder / "people.jsonl", [person])
        files.write_rows(folder / "eve.jsonl", [{**person, "user": "eve"}])
        assert cli.main(["users", "import", "people.jsonl", *STORE_OPTION.split()]) == 0
        assert cli.main(["users", "key", "all", "--keys", "keys.toml", "--scope", "admin"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _stop_servers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a server as soon as it could answer; start no worker processes."""

    def run(uvicorn_server: uvicorn.Server, _sockets: object) -> None:
        with TestClient(uvicorn_server.config.app):  # type: ignore[arg-type]
            pass

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(server, "supervise", lambda options, port: None)


def run_in_time(folder_with_inputs: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command with a time limit; return its exit code and messages. Devices must stay unchanged."""

    def fail(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"{arguments} exceeds the time limit")

    before, handler = os.environ.copy(), signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder_with_inputs)
            code = cli.main(arguments)
    except SystemExit as end:
        code = int(str(end.code))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        os.environ.clear()
        os.environ.update(before)
        for name in ("new", "new-wal", "new-shm", "new.html"):
            subprocess.run(["rm", "-rf", str(folder_with_inputs / name)], check=True)
    assert all(stat.S_ISCHR(os.stat(name).st_mode) for name in ("/dev/null", "/dev/full"))
    message = capfd.readouterr().err
    assert "Traceback" not in message
    return code, message


def assert_refused_or_accepted(
    folder_with_inputs: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> str:
    """Check that a command succeeds, or fails with one line of factorcell."""
    code, message = run_in_time(folder_with_inputs, arguments, capfd)
    assert code in (0, 2), message
    if code == 2:
        assert message.splitlines()[-1].startswith("factorcell"), message
    return "refused" if code else "accepted"


@pytest.mark.parametrize(
    "case", [case for case in cases(numbers=True) if case[0] in QUICK_COMMANDS - {"train"}], ids=repr
)
def test_numbers_of_quick_commands(
    folder_with_inputs: Path, case: tuple[str, str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused_or_accepted(folder_with_inputs, command_words(*case), capfd)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in cases(numbers=True) if case[0] not in QUICK_COMMANDS - {"train"}], ids=repr
)
def test_numbers_of_all_commands(
    folder_with_inputs: Path, case: tuple[str, str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused_or_accepted(folder_with_inputs, command_words(*case), capfd)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*cases(numbers=False)], ids=repr)
def test_texts_and_files_of_all_commands(
    folder_with_inputs: Path, case: tuple[str, str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused_or_accepted(folder_with_inputs, command_words(*case), capfd)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.split()[0] in ("serve", "users")])
def test_commands_of_the_service_work(
    folder_with_inputs: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    importing = ["users", "import", "eve.jsonl", *STORE_OPTION.split()]
    run_in_time(folder_with_inputs, importing, capfd)  # `users delete` deletes this user
    code, message = run_in_time(folder_with_inputs, [*command.split(), *COMMANDS[command].split()], capfd)
    assert code == 0, message


def test_every_number_has_limits() -> None:
    for command, parser in parsers().items():
        for action in parser.actions:
            has_number = isinstance(action.default, int | float) and not isinstance(action.default, bool)
            assert not has_number or is_number(action), f"{command} {action.dest}"
    for name, field in FIELDS.items():
        assert (field.metadata.get("limits") is not None) == (field.type in (int, float)), name
    assert set(parsers()) == set(COMMANDS) | UNTESTED


@pytest.mark.parametrize("name", [*limits.NUMBER_LIMITS])
def test_values_beyond_the_limits_are_refused(name: str) -> None:
    limit = limits.NUMBER_LIMITS[name]
    for value in (*([] if limit.excluded == "low" else [limit.low]), limit.high):
        limits.check(**{name: int(value) if limit.whole else value})
    wrong: list[Any] = [math.nan, limit.low - 1, limit.high + max(1, limit.high / 1000), True, "3"]
    for number in wrong if limit.high < math.inf else wrong[:2]:
        with pytest.raises(UserError, match=f"^{name} is"):
            limits.check(**{name: number})


STREAMS = [
    ("score run train.csv >&-", 2, "factorcell: standard output is closed: results would be lost"),
    ("score run train.csv > /dev/full", 2, "factorcell: reading or writing failed: No space left on device"),
    ("--help >&-", 2, "factorcell: standard output is closed: results would be lost"),
    ("score run train.csv 2>&- | head -n 1", 0, ""),
    ("score run train.csv <&- >/dev/null", 0, ""),
    ("report run --out /dev/full", 2, "factorcell: /dev/full: cannot be written (No space left on device)"),
    ("report run --out /dev/stdout > /dev/null", 0, "report: /dev/stdout"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code", "message"), STREAMS)
def test_closed_and_full_streams(folder_with_inputs: Path, line: str, code: int, message: str) -> None:
    shell = f"set -o pipefail; '{sys.executable}' -m factorcell {line}"
    done = subprocess.run(["bash", "-c", shell], cwd=folder_with_inputs, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert (done.returncode, "\n".join(lines)) == (code, message)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [None, "ascii", "latin-1"])
def test_output_in_encodings_without_some_characters(folder_with_inputs: Path, encoding: str | None) -> None:
    (folder_with_inputs / "café.csv").write_text("text,city,lat\nčafé sun,Oslo,50\n", encoding="utf-8")
    neutral = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    environment = {**neutral, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment |= {"PYTHONIOENCODING": encoding} if encoding else {}
    for more in ((), ("--json",)):
        command = [sys.executable, "-m", "factorcell", "explain", "run", "--text", "čafé", *more]
        command += ["--between", "city=Oslo", "city=Nice", "--threads", "1", "--verbose"]
        done = subprocess.run(
            [os.fsencode(word) for word in command],
            cwd=folder_with_inputs,
            env=environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert b"training saw none of its words" in done.stderr
        assert b"Traceback" not in done.stderr
    assert "ca" in json.dumps(json.loads(done.stdout.decode(encoding or "utf-8").splitlines()[0]))
