"""Standard input, output and error in every state: closed, full, unable to encode a character, or without a reader."""

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
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def prepare() -> None:
    """Make the standard streams accept any text: characters that a stream cannot encode are escaped.

    If the locale specifies no encoding (the locale C), it is UTF-8, as for files.

    Raises:
        UserError: Standard output is closed.
    """
    closed = sys.stdout is None
    for name in ("stdin", "stdout", "stderr"):  # so that a file opened later does not become a standard stream
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            unspecified = codecs.lookup(stream.encoding).name == "ascii" and "PYTHONIOENCODING" not in os.environ
            stream.reconfigure(encoding="utf-8" if unspecified else None, errors="backslashreplace")
    if closed:
        raise UserError("standard output is closed: results would be lost")


def to_json_line(row: object) -> str:
    """Return a line of JSON with null for numbers that are not finite, in ASCII if standard output requires it."""
    line = to_json(row)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return to_json(row, ensure_ascii=True)
    return line


def decode(content: bytes, where: str = STANDARD_INPUT) -> str:
    """Decode standard input or one line of it and drop a byte order mark; `UserError` if it is not text."""
    return input_files.decode(content, where, sys.stdin.encoding)


def discard_output() -> None:
    """Discard buffered output, which Python would otherwise try to write again when it exits."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def describe_os_error(error: OSError) -> str:
    """Return an error of the operating system as one line."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    problem = "the output cannot be written" if error.errno in WRITE_ERRORS else "reading or writing failed"
    return f"{problem} ({error.strerror or error})"
