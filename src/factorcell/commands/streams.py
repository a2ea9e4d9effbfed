"""Standard input, output and error as they are: closed, full, of few characters, or read by nobody any more."""

import codecs
import errno
import io
import os
import sys
from contextlib import suppress

from factorcell import input_files
from factorcell.config import UserError
from factorcell.finite import to_json

STANDARD_INPUT = "standard input"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def prepare() -> None:
    """Make the streams ready for any text. `UserError` where standard output is closed: results would be lost.

    What a stream cannot show is escaped. Where nothing is said of an encoding (the locale is C) it is UTF-8, as files.
    """
    closed = sys.stdout is None
    for name in ("stdin", "stdout", "stderr"):  # a file that is opened later must not become a standard stream
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            silent = codecs.lookup(stream.encoding).name == "ascii" and "PYTHONIOENCODING" not in os.environ
            stream.reconfigure(encoding="utf-8" if silent else None, errors="backslashreplace")
    if closed:
        raise UserError("standard output is closed: results would be lost")


def to_json_line(row: object) -> str:
    """One line of JSON, null where a number is not finite; what standard output cannot hold is escaped."""
    line = to_json(row)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return to_json(row, ensure_ascii=True)
    return line


def decode(content: bytes, where: str = STANDARD_INPUT) -> str:
    """Decode standard input or one line of it, without a byte order mark; `UserError` if it is not text."""
    return input_files.decode(content, where, sys.stdin.encoding)


def discard_output() -> None:
    """Drop what standard output did not take, which Python would try again at the end."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def describe_os_error(error: OSError) -> str:
    """What the system refused, in one line."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    what = "the output cannot be written" if error.errno in FULL else "reading or writing failed"
    return f"{what} ({error.strerror or error})"
