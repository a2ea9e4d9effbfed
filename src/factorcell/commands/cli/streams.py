"""Standard input, output and error: they may be closed, full, unable to encode a character, or read by no process."""

import codecs
import errno
import io
import os
import sys
from contextlib import suppress

from factorcell.errors import UserError
from factorcell.io import input_files
from factorcell.io.finite import to_json

STANDARD_INPUT = "standard input"  # its name in error messages
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def prepare() -> None:
    """Make the standard streams accept any text: characters that a stream cannot encode are escaped.

    If the locale specifies no encoding (the locale C), output is encoded in UTF-8, as files are.

    Raises:
        UserError: Standard output is closed.
    """
    is_output_closed = sys.stdout is None
    # Without replacements for closed streams, a file that is opened later would become a standard stream.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            is_unspecified = is_ascii and "PYTHONIOENCODING" not in os.environ
            stream.reconfigure(encoding="utf-8" if is_unspecified else None, errors="backslashreplace")
    if is_output_closed:
        raise UserError("standard output is closed: results would be lost")


def to_json_line(row: object) -> str:
    """Return a line of JSON with null for numbers that are not finite.

    If standard output cannot encode a character of the line, the line is in ASCII.
    """
    line = to_json(row)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return to_json(row, ensure_ascii=True)
    return line


def decode(content: bytes, where: str = STANDARD_INPUT) -> str:
    """Decode standard input, or one line of it, and remove the byte order mark; raise `UserError` if it is not text.

    Error messages begin with `where`.
    """
    return input_files.decode(content, where, sys.stdin.encoding)


def discard_output() -> None:
    """Discard buffered standard output; otherwise Python would try to write it again when the process exits."""
    with suppress(OSError, ValueError):
        null_descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_descriptor, sys.stdout.fileno())
        os.close(null_descriptor)


def describe_os_error(error: OSError) -> str:
    """Describe an error of the operating system in one line."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    problem = "the output cannot be written" if error.errno in WRITE_ERRORS else "reading or writing failed"
    return f"{problem} ({error.strerror or error})"
