"""Atomic reading and writing of files: bytes, JSON, rows of JSON lines, and tensors.

After a crash, a file has either its old or its new content. If the manifest of a folder (`digests`) lists a file,
reading the file compares it with its digest. Tensors are stored as safetensors files, which cannot execute code. The
header of such a file contains a SHA-256 of its tensors and metadata, so reading detects damage in any folder.
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
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from factorcell import digests, input_files, lock
from factorcell.config import UserError, check_format
from factorcell.finite import to_json

Row = dict[str, Any]  # a row of a file of JSON lines

PARTIAL = ".partial"  # suffix of a file that is being written


def encode(text: str) -> bytes:
    """Return `text` in UTF-8, with an escape for each lone surrogate, such as a byte of a file name that is not UTF-8.

    The escape is the one of JSON, so that a JSON reader restores the surrogate.
    """
    return text.encode("utf-8", "backslashreplace")


def write(path: str | Path, content: bytes | str) -> None:
    """Replace the file `path` atomically: the old file stays until the new file is on disk.

    Text is written as UTF-8 (`encode`). If the manifest of the folder lists the file, the manifest is updated first.
    If `path` is a device or a pipe, the content is written to it directly.

    Raises:
        UserError: The file cannot be written.
    """
    path = Path(path)
    if path.is_dir():  # an empty path is the working directory
        raise UserError(f"{path}: cannot be saved (Is a directory)")
    content = encode(content) if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        try:
            path.write_bytes(content)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        return
    manifest = digests.read(path.parent)
    if path.name in manifest:
        manifest = digests.with_replacement(manifest, path, digests.sha256_of(content))
        _replace(path.parent / digests.FILE, digests.encode(manifest))
    _replace(path, content)


def check_writable(path: str | Path, folder: bool = False) -> None:
    """Check, before long work, that `path` can be written as a file or created as a `folder`; change nothing.

    Devices and pipes are not opened, because closing a pipe would end the input of its reader.

    Raises:
        UserError: `path` cannot be written.
    """
    path = Path(path)
    if path.is_dir() and not folder:
        raise UserError(f"{path}: cannot be saved (Is a directory)")
    if path.exists() and not (path.is_file() or folder):
        return
    parent = path if folder else path.parent
    while folder and not parent.exists() and parent != parent.parent:
        parent = parent.parent
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be saved ({error.strerror})") from None


def create_manifest(folder: str | Path, names: Iterable[str]) -> None:
    """Create the manifest of a new `folder`; it lists files with these `names`, still without digests."""
    _replace(Path(folder, digests.FILE), digests.encode(dict.fromkeys(names, ())))


def read(path: str | Path) -> bytes:
    """Return the content of the file `path`.

    Raises:
        UserError: The file cannot be read or does not match the manifest of its folder.
    """
    path = Path(path)
    for _ in range(2):  # a writer may replace the file and its digest between the two reads
        content = input_files.read_bytes(path)
        if digests.accepts(path, digests.sha256_of(content)):
            return content
    raise UserError(f"{path}: altered since it was written (its SHA-256 is not that in {digests.FILE})")


def _replace(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file on disk, then rename it to `path`; raise `UserError` if this fails."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        notice = "; the previous file is unchanged" if path.exists() else ""
        raise UserError(f"{path}: cannot be saved ({error.strerror}){notice}") from None


def _sync(folder: Path) -> None:
    """Write the directory entries of `folder` to disk, if the system supports it."""
    with suppress(OSError):  # Windows cannot open folders, and some file systems cannot synchronize them
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_new(folder: str | Path, first_files: Collection[str] = ()) -> bool:
    """Whether `folder` is absent, empty, or contains only files of a command that died before its first result.

    Such files are the manifest, files with names in `first_files`, and partly written files. Hidden files and hidden
    folders at the top level are ignored.
    """
    folder = Path(folder)
    if not folder.exists():  # checked first, because another process may create the folder before the next check
        return True
    if not folder.is_dir():
        return False
    paths = (path for top in input_files.list_visible(folder) for path in (top, *top.rglob("*")))
    names = {path.name for path in paths if not path.is_dir()} - {lock.FILE, digests.FILE + PARTIAL}
    if digests.FILE in names:
        names = {name for name in names if not name.endswith(PARTIAL)} - {digests.FILE, *first_files}
    return not names


def folder_exists_error(folder: str | Path, *, resumable: bool = False) -> UserError:
    """Return the error about a folder that exists already; its message suggests `resume` if `resumable`."""
    if not resumable:
        return UserError(f"{folder}: exists already; choose another folder")
    return UserError(f"{folder}: exists already", (("resume", True),), "to continue it, or choose another folder")


def new_folder(folder: str | Path, first_files: Collection[str] = (), *, resumable: bool = False) -> None:
    """Create `folder`, or empty it except for its lock and hidden files.

    Raises:
        UserError: The folder exists and is not new (`is_new`), or it cannot be created.
    """
    folder = Path(folder)
    if not is_new(folder, first_files):
        raise folder_exists_error(folder, resumable=resumable)
    try:
        paths = input_files.list_visible(folder)
        for path in sorted(paths, key=lambda path: path.name.startswith(digests.FILE)):  # delete the manifest last
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != lock.FILE:
                path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be created ({error.strerror})") from None


def write_json(path: str | Path, content: Any) -> None:
    """Replace the file `path` by `content` as JSON, with null for numbers that are not finite."""
    write(path, to_json(content, indent=1) + "\n")


def read_json(path: str | Path) -> Any:
    """Read the JSON file `path`; raise a `UserError` that names the file if the file is damaged."""
    content = read(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error})") from None


def write_versioned(path: str | Path, content: Mapping[str, Any], number: int) -> None:
    """Replace the file `path` by `content` as JSON, with the format `number` as its entry `format`."""
    write_json(path, {"format": number, **content})


def read_versioned(path: str | Path, newest: int, what: str | Path | None = None) -> dict[str, Any]:
    """Read a file that `write_versioned` wrote, and return its content without the format number.

    Args:
        path: The file.
        newest: The newest format that the caller can read.
        what: The name of the source in error messages about the format, such as the folder of the file; by default
            `path`.

    Raises:
        UserError: The file is damaged, or has a newer format.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged (it must hold an object, not a {type(content).__name__})")
    check_format(content.pop("format", None), newest, what or path)
    return content


def require_finite_number(value: Any, path: Path, what: str) -> float:
    """Return `value`, the entry `what` of the file `path`, as a float; raise `UserError` unless it is finite."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise UserError(f"{path}: {what} is {value!r:.40}; it must be a finite number")
    return float(value)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace the file `path` by a safetensors file with `tensors`, `facts` (plain values), and a checksum of both."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = json.dumps(facts, sort_keys=True)
    write(path, _sort_metadata(save(plain, {"facts": header, "sha256": _digest(plain, header)})))


def _sort_metadata(content: bytes) -> bytes:
    """Sort the metadata of a safetensors file by name; safetensors writes them in a random order."""
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors after the header must be aligned to 8 bytes
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[begin:]))


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Return a context manager that opens a safetensors file, even if its name is not UTF-8."""
    with path.open("rb") as file:
        name = str(path) if encode(str(path)) == os.fsencode(path) else f"/dev/fd/{file.fileno()}"
        with safe_open(name, framework="pt") as opened:
            yield opened


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a file that `save_tensors` wrote.

    Raises:
        UserError: The file is missing, truncated or altered.
    """
    return load_checked(path)[:2]


def load_checked(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any], bytes]:
    """Return the tensors and facts of a file that `save_tensors` wrote, and their checksum (32 bytes).

    Raises:
        UserError: The file is missing, truncated or altered.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: there is no such file")
    try:
        with open_tensors(path) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(f"{path}: truncated or not a safetensors file ({error})") from None
    facts, checksum = header.get("facts", "null"), header.get("sha256", "")
    if checksum != _digest(tensors, facts):
        raise UserError(f"{path}: altered since it was saved (its checksum does not match)")
    return tensors, json.loads(facts), bytes.fromhex(checksum)


def _digest(tensors: Mapping[str, Tensor], header: str) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # A contiguous tensor of one element may have any stride, but `view` requires a stride of 1.
        flat = tensor.contiguous().reshape(-1).as_strided((tensor.numel(),), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append one row to a file of JSON lines."""
    append_rows(path, [row])


def append_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a file of JSON lines after its last complete line, with null for numbers that are not finite."""
    path = Path(path)
    content, end = _lines(rows), None
    try:
        with path.open("ab+") as file:
            end = _cut_incomplete_line(file)
            file.write(content)
    except OSError as error:
        if end is not None:
            with suppress(OSError):  # remove rows that were written in part, perhaps only when the file was closed
                os.truncate(path, end)
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def _cut_incomplete_line(file: BinaryIO) -> int:
    """Truncate `file` after its last complete line, in case a writer was killed; return the new size in bytes."""
    end = file.seek(0, os.SEEK_END)
    tail_size = min(end, 1)
    file.seek(end - tail_size)
    if file.read(tail_size) in (b"", b"\n"):
        return end
    file.seek(0)
    end = file.read().rfind(b"\n") + 1
    file.truncate(end)
    return end


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return all rows of a file of JSON lines except an incomplete last row; no rows if the file does not exist."""
    path = Path(path)
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for line in read(path).split(b"\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            raise UserError(f"{path} line {len(rows) + 1}: not a row of JSON") from None
        if not isinstance(rows[-1], dict):
            raise UserError(f"{path} line {len(rows)}: a row of JSON must be an object")
    return rows


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file `path` by rows as JSON lines, with null for numbers that are not finite."""
    write(path, _lines(rows))


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return encode("".join(to_json(row) + "\n" for row in rows))
