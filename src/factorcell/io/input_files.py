"""Reading of files and folders that the user names. Reading a device raises an error: its data may never end."""

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

CONFIG = "config.json"  # the file that identifies a run folder

# Folders of other models, by the file that identifies them: a description, and the commands that accept the folder.
OTHER_MODELS = {
    "ngram.json": ("an n-gram model", "evaluate, rescore, mix and report"),
    "mixture.json": ("a mixture of models", "evaluate and mix"),
}


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
    """Return the content of a file; raise `UserError` if the file cannot be read or is larger than `MAX_BYTES`."""
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
    """Return the sorted paths in a folder that match a pattern and are neither hidden nor of the system."""
    folder = Path(folder)
    return sorted(
        path
        for path in folder.glob(pattern)
        if not any(part[:1] == "." or part.lower() in SYSTEM_FILES for part in path.relative_to(folder).parts)
    )


def decode(content: bytes, where: object, encoding: str = "utf-8") -> str:
    """Decode text, without a UTF-8 byte order mark; raise a `UserError`, which names `where`, for other bytes."""
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
    """Read a file of options, as JSON if its name ends in .json, otherwise as TOML; raise `UserError` if invalid."""
    syntax = "JSON" if Path(path).suffix == ".json" else "TOML"
    text = read_text(path)
    try:
        return json.loads(text) if syntax == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # syntax errors, numbers that are too long, nesting that is too deep
        raise UserError(f"{path}: not valid {syntax} ({error})") from None


def not_a_run_error(folder: Path, expected: str = "a run folder") -> UserError:
    """Return the error that a path is not what is `expected`; it says what the path contains."""
    return UserError(f"{folder}: expected {expected}, got {_describe(folder)}")


def _describe(folder: Path) -> str:
    """Describe what a path contains, and which commands accept it."""
    if not folder.exists():
        return "a path that does not exist"
    if not folder.is_dir():
        return "a file"
    for file_name, (model, commands) in OTHER_MODELS.items():
        if (folder / file_name).is_file():
            return f"the folder of {model}, which {commands} accept"
    if config_files := list_visible(folder, f"*/{CONFIG}"):
        return f"a folder of runs, such as {config_files[0].parent}"
    return f"a folder without {CONFIG}"
