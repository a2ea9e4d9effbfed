"""Reading of files that the user names. Reading a device raises an error, because its data may never end."""

import codecs
import json
import stat
import tomllib
from pathlib import Path
from typing import Any

from factorcell.errors import UserError

MAX_BYTES = 1 << 30  # largest size of a file that is read at once; tables and lists are read in parts
SYSTEM_FILES = ("thumbs.db", "desktop.ini")  # files that Windows adds to folders
UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def check(path: str | Path) -> None:
    """Raise `UserError` unless `path` is an existing file or pipe."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: the path contains a null character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{path}: cannot be read ({reason})") from None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise UserError(f"{path}: expected a file, got a {'folder' if stat.S_ISDIR(mode) else 'device'}")


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file.

    Raises:
        UserError: The file cannot be read or is larger than `MAX_BYTES`.
    """
    check(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: expected a file of at most {MAX_BYTES >> 20:,} MiB, got a larger one")
    return data


def list_visible(folder: str | Path, pattern: str = "*") -> list[Path]:
    """Return the paths in a folder that match a glob pattern, sorted, without hidden files and system files.

    A path is hidden if a part of it begins with a dot, such as the .DS_Store of macOS.
    """
    folder = Path(folder)
    return sorted(
        path
        for path in folder.glob(pattern)
        if not any(part[:1] == "." or part.lower() in SYSTEM_FILES for part in path.relative_to(folder).parts)
    )


def decode(content: bytes, where: object, encoding: str = "utf-8") -> str:
    """Decode the text of a file, a stream or a line; drop the UTF-8 byte order mark that some editors write first.

    Args:
        content: The bytes, from the beginning of a file, a stream or a line.
        where: What error messages name, such as the path of the file.
        encoding: The encoding. Bytes that start with a UTF-8 byte order mark are decoded as UTF-8 instead.

    Raises:
        UserError: The bytes are not text in this encoding. The message says so if they are UTF-16.
    """
    if content.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    encoding_name = "UTF-8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding
    # In UTF-16, every second byte of ASCII characters is zero.
    is_utf_16_ascii = b"\0\0" in (content[0:4:2], content[1:4:2])
    if encoding_name == "UTF-8" and (content.startswith(UTF_16_MARKS) or is_utf_16_ascii):
        raise UserError(f"{where}: expected UTF-8, got UTF-16; convert it to UTF-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not {encoding_name} (byte {error.start})") from None


def read_text(path: str | Path) -> str:
    """Read a whole file of UTF-8 text; drop the byte order mark at its beginning, if there is one."""
    return decode(read_bytes(path), path)


def read_options_file(path: str | Path) -> Any:
    """Read a file of options, as JSON if its name ends in .json, otherwise as TOML.

    Raises:
        UserError: The file cannot be read or is not valid.
    """
    syntax = "JSON" if Path(path).suffix == ".json" else "TOML"
    text = read_text(path)
    try:
        return json.loads(text) if syntax == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # syntax errors, numbers that are too long, nesting that is too deep
        raise UserError(f"{path}: not valid {syntax} ({error})") from None
