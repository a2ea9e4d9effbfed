"""Reading and atomic writing of files: bytes, JSON, rows of JSON lines, and tensors.

After a crash, a file has either its old or its new content. Tensors are stored as safetensors files, which cannot
execute code.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from factorcell.errors import UserError, check_format
from factorcell.io import input_files, lock
from factorcell.io.output import to_json

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, Any]  # a row of a file of JSON lines

PARTIAL = ".partial"  # suffix of a file that is being written


def encode(text: str) -> bytes:
    """Return `text` in UTF-8, with the escape of JSON for each lone surrogate, as in a file name that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace")


def write(path: str | Path, content: bytes | str) -> None:
    """Replace the file `path` atomically: the old file stays until the new file is on disk.

    If `path` is a device or a pipe, the content is written to it directly. Raise `UserError` if the file cannot be
    written.
    """
    path = Path(path)
    if path.is_dir():  # also true for an empty path, which means the working directory
        raise UserError(f"{path}: cannot be saved (Is a directory)")
    content = encode(content) if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        try:
            path.write_bytes(content)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        return
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        assurance = "; the previous file is unchanged" if path.exists() else ""
        raise UserError(f"{path}: cannot be saved ({error.strerror}){assurance}") from None


def check_writable(path: str | Path, is_folder: bool = False) -> None:
    """Raise `UserError`, before long work, if a file or, if `is_folder`, a folder cannot be written at `path`."""
    path = Path(path)
    if path.is_dir() and not is_folder:
        raise UserError(f"{path}: cannot be saved (Is a directory)")
    if path.exists() and not (path.is_file() or is_folder):
        return
    existing_folder = path if is_folder else path.parent
    while is_folder and not existing_folder.exists() and existing_folder != existing_folder.parent:
        existing_folder = existing_folder.parent
    try:
        with tempfile.TemporaryFile(dir=existing_folder):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be saved ({error.strerror})") from None


def is_new(folder: str | Path, first_files: Collection[str] = ()) -> bool:
    """Whether `folder` is absent, empty, or contains only files of a training that died before its first result.

    Such files are its lock, those in `first_files`, partly written files, and hidden ones.
    """
    folder = Path(folder)
    if not folder.exists():  # checked first, because another process may create the folder before the next check
        return True
    if not folder.is_dir():
        return False
    paths = (path for visible in input_files.list_visible(folder) for path in (visible, *visible.rglob("*")))
    names = {path.name for path in paths if not path.is_dir()}
    if lock.FILE in names:
        names = {name for name in names if not name.endswith(PARTIAL)} - {lock.FILE, *first_files}
    return not names


def check_new(folder: str | Path, first_files: Collection[str] = (), *, resumable: bool = False) -> None:
    """Raise `UserError` unless a folder is new; if `resumable`, the message suggests `resume`."""
    if not is_new(folder, first_files):
        if not resumable:
            raise UserError(f"{folder}: exists already; choose another folder")
        raise UserError(f"{folder}: exists already", (("resume", True),), "to continue it, or choose another folder")


def create_folder(folder: str | Path) -> Path:
    """Create `folder` unless it exists, and return its path; raise `UserError` if it cannot be created."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be created ({error.strerror})") from None
    return path


def create_new_folder(folder: str | Path, first_files: Collection[str] = (), *, resumable: bool = False) -> None:
    """Create `folder`, or empty it except for its lock and hidden files; raise `UserError` if it is not new."""
    folder = Path(folder)
    check_new(folder, first_files, resumable=resumable)
    try:
        for path in input_files.list_visible(folder):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != lock.FILE:
                path.unlink()
    except OSError as error:
        raise UserError(f"{folder}: cannot be created ({error.strerror})") from None
    create_folder(folder)


def write_json(path: str | Path, content: Any) -> None:
    """Replace the file `path` by `content` as JSON, with null for numbers that are not finite."""
    write(path, to_json(content, indent=1) + "\n")


def read_json(path: str | Path) -> Any:
    """Read the JSON file `path`; raise a `UserError` that names the file if the file is damaged."""
    content = input_files.read_bytes(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error})") from None


def write_versioned(path: str | Path, content: Mapping[str, Any], file_format: int) -> None:
    """Replace the file `path` by `content` as JSON, with the number `file_format` as the entry `format`."""
    write_json(path, {"format": file_format, **content})


def read_versioned(path: str | Path, newest: int, source: str | Path | None = None) -> dict[str, Any]:
    """Return the content of `write_versioned`; raise a `UserError`, about `source`, if it is damaged or newer."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged (expected an object, got a {type(content).__name__})")
    check_format(content.pop("format", None), newest, source or path)
    return content


def require_finite_number(value: Any, path: Path, entry: str) -> float:
    """Return the `value` of an `entry` of the file `path` as a float; raise `UserError` if it is not finite."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise UserError(f"{path}: {entry} is {value!r:.40}; it must be a finite number")
    return float(value)


def save_tensors(path: str | Path, tensors: Mapping[str, "Tensor"], facts: Mapping[str, Any]) -> None:
    """Replace the file `path` by a safetensors file of `tensors` and `facts` (values for JSON)."""
    from safetensors.torch import save

    cpu_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write(path, save(cpu_tensors, {"facts": json.dumps(facts, sort_keys=True)}))


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Return a context manager that opens a safetensors file, even if its name is not UTF-8."""
    with path.open("rb") as file:
        has_utf_8_name = encode(str(path)) == os.fsencode(path)
        name = str(path) if has_utf_8_name else f"/dev/fd/{file.fileno()}"  # safetensors requires a UTF-8 name
        with safe_open(name, framework="pt") as opened:
            yield opened


def load_tensors(path: str | Path) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """Return the tensors and facts of a file of `save_tensors`; raise `UserError` if it is missing or damaged."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: there is no such file")
    try:
        with open_tensors(path) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, json.loads((file.metadata() or {}).get("facts", "{}"))
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: truncated or not a safetensors file ({error})") from None


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the hexadecimal SHA-256 of each file, by name, which are facts about tensors that depend on the files."""
    return {name: hashlib.sha256(input_files.read_bytes(folder / name)).hexdigest() for name in names}


def check_digests(folder: Path, expected: Mapping[str, str]) -> None:
    """Raise `UserError` if one of the files has not the digest that `digests` returned for it earlier."""
    for name, digest in digests(folder, expected).items():
        if digest != expected[name]:
            raise UserError(f"{folder / name}: altered since the weights were saved")


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines after its last complete line, with null for numbers that are not finite."""
    path = Path(path)
    if path.is_symlink():  # in the cache of a hub, the target belongs to other snapshots too
        write(path, input_files.read_bytes(path))
    try:
        with path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read() not in (b"", b"\n"):  # a writer was killed within a row
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write(_encode_rows([row]))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return all rows of a file of JSON lines except an incomplete last row; no rows if the file does not exist."""
    path = Path(path)
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for line in input_files.read_bytes(path).split(b"\n")[:-1]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{path} line {len(rows) + 1}: not a row of JSON") from None
        if not isinstance(row, dict):
            raise UserError(f"{path} line {len(rows) + 1}: a row of JSON must be an object")
        rows.append(row)
    return rows


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file `path` by rows as JSON lines, with null for numbers that are not finite."""
    write(path, _encode_rows(rows))


def _encode_rows(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return encode("".join(to_json(row) + "\n" for row in rows))
