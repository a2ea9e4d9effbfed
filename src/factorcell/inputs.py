"""Files that the user names, read only if they are files: a device may have no end."""

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

from factorcell.limits import UserError

LARGEST = 1 << 30  # bytes of a file that is read at once; tables and lists are read in parts


def check(path: Path) -> None:
    """`UserError` unless `path` is a file or a pipe that is there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # no path at all: a zero inside
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{path}: cannot be read ({reason})") from None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise UserError(f"{path}: cannot be read (it is a {'folder' if stat.S_ISDIR(mode) else 'device'}, no file)")


def content(path: Path) -> bytes:
    """All of a file; `UserError` for one that cannot be read, or is too large to be read at once."""
    check(path)
    try:
        with path.open("rb") as file:
            found = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if len(found) > LARGEST:
        raise UserError(f"{path}: larger than {LARGEST >> 20:,} MiB; it must be smaller")
    return found


def text(path: Path) -> str:
    """The same of a file of UTF-8."""
    try:
        return content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start})") from None


def parsed(path: Path) -> Any:
    """The same of a file of options: JSON by its name, else TOML; `UserError` where it is not valid."""
    kind = "JSON" if path.suffix == ".json" else "TOML"
    found = text(path)
    try:
        return json.loads(found) if kind == "JSON" else tomllib.loads(found)
    except (ValueError, RecursionError) as error:  # of any parser: syntax, numbers too long, nested too deep
        raise UserError(f"{path}: not valid {kind} ({error})") from None
