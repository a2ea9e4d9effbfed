"""Files that are whole or not there, and as they were written: one writer, one reader; JSON, tensors and rows by them.

A file that is listed in the manifest of its folder is checked against it whenever it is read. A safetensors file cannot
execute code. Its header has a SHA-256 of the tensors and their metadata, so that truncation and damage are detected in
any folder.
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

Row = dict[str, Any]  # of a file of JSON lines

PARTIAL = ".partial"  # the end of the name of a file that is being written


def encoded(text: str) -> bytes:
    """Return `text` in UTF-8, with an escape for each lone surrogate, such as a byte of a file name that is not UTF-8.

    The escape is that of JSON, so a value in a JSON document is read back as it was.
    """
    return text.encode("utf-8", "backslashreplace")


def write(path: str | Path, content: bytes | str) -> None:
    """Replace `path` by `content` at once: what was there stays whole until the new file is on disk.

    Text is written as UTF-8 (`encoded`). If the manifest of the folder lists the file, it is updated first. A device or
    a pipe is written to; it stays what it is.
    """
    path = Path(path)
    if path.is_dir():  # also of no name: the folder of work
        raise UserError(f"{path}: cannot be saved (Is a directory)")
    content = encoded(content) if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        try:
            path.write_bytes(content)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        return
    listed = digests.read(path.parent)
    if path.name in listed:
        _replace(
            path.parent / digests.FILE, digests.encoded(digests.replacing(listed, path, digests.sha256_of(content)))
        )
    _replace(path, content)


def check_writable(path: str | Path, folder: bool = False) -> None:
    """`UserError` unless `path` can be written as a file, or made as a `folder`: before the work that it is for.

    Nothing remains of the attempt. A device or a pipe is not opened, since its reader would see it end.
    """
    path = Path(path)
    if path.is_dir() and not folder:
        raise UserError(f"{path}: cannot be saved (Is a directory)")
    if path.exists() and not (path.is_file() or folder):
        return
    place = path if folder else path.parent
    while folder and not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be saved ({error.strerror})") from None


def create_manifest(folder: str | Path, names: Iterable[str]) -> None:
    """Begin the manifest of a new `folder`: files of these `names` will be held against it."""
    _replace(Path(folder, digests.FILE), digests.encoded(dict.fromkeys(names, ())))


def read(path: str | Path) -> bytes:
    """What `path` holds. `UserError` where it cannot be read, or is not what the manifest of its folder lists."""
    path = Path(path)
    for _ in range(2):  # a writer may replace the file and its digest between the two reads
        content = input_files.content(path)
        if digests.accepts(path, digests.sha256_of(content)):
            return content
    raise UserError(f"{path}: altered since it was written (its SHA-256 is not that in {digests.FILE})")


def _replace(path: Path, content: bytes) -> None:
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
        kept = "; the last good one is kept" if path.exists() else ""
        raise UserError(f"{path}: cannot be saved ({error.strerror}){kept}") from None


def _sync(folder: Path) -> None:
    """Have the names in `folder` on disk, where the system can."""
    with suppress(OSError):  # Windows opens no folder, and some file systems synchronise none
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_new(folder: str | Path, beginning: Collection[str] = ()) -> bool:
    """Whether `folder` is not there, or holds nothing but what a command leaves that ends before it has made anything.

    That is a manifest, which is written first, and then files of `beginning`, by their names, or parts of files.
    Hidden files and folders right in `folder` do not count.
    """
    folder = Path(folder)
    if not folder.exists():  # the first question, since another process may make the folder before the next one
        return True
    if not folder.is_dir():
        return False
    paths = (path for top in input_files.list_visible(folder) for path in (top, *top.rglob("*")))
    names = {path.name for path in paths if not path.is_dir()} - {lock.FILE, digests.FILE + PARTIAL}
    if digests.FILE in names:
        names = {name for name in names if not name.endswith(PARTIAL)} - {digests.FILE, *beginning}
    return not names


def folder_exists_error(folder: str | Path, *, resumable: bool = False) -> UserError:
    """The error about a folder that is not new; whether the same work `resumable` goes on with it."""
    if not resumable:
        return UserError(f"{folder}: exists already; choose another folder")
    return UserError(f"{folder}: exists already", (("resume", True),), "to go on with it, or choose another folder")


def new_folder(folder: str | Path, beginning: Collection[str] = (), *, resumable: bool = False) -> None:
    """Make `folder`, empty but for a lock and hidden files; `UserError` (`occupied`) unless it `is_new`."""
    folder = Path(folder)
    if not is_new(folder, beginning):
        raise folder_exists_error(folder, resumable=resumable)
    try:
        paths = input_files.list_visible(folder)
        for path in sorted(paths, key=lambda path: path.name.startswith(digests.FILE)):  # the manifest last
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != lock.FILE:
                path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror})") from None


def write_json(path: str | Path, content: Any) -> None:
    """Replace `path` by `content` as JSON, null where a number is not finite."""
    write(path, to_json(content, indent=1) + "\n")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, or a `UserError` that names it."""
    content = read(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error})") from None


def write_versioned(path: str | Path, content: Mapping[str, Any], number: int) -> None:
    """Replace `path` by `content` as JSON, after the number of its format."""
    write_json(path, {"format": number, **content})


def read_versioned(path: str | Path, newest: int, what: str | Path | None = None) -> dict[str, Any]:
    """What `write_versioned` wrote, without its number.

    `UserError` for a format after the `newest` that is known of `what` (`path` itself, or the folder that it opens).
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged (it must hold an object, not a {type(content).__name__})")
    check_format(content.pop("format", None), newest, what or path)
    return content


def finite_number(value: Any, path: Path, what: str) -> float:
    """A `value` that `path` holds as `what`. `UserError` unless it is a finite number."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise UserError(f"{path}: {what} is {value!r:.40}; it must be a finite number")
    return float(value)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace `path` by `tensors` and `facts` (plain values), with a checksum over both."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = json.dumps(facts, sort_keys=True)
    write(path, _ordered(save(plain, {"facts": header, "sha256": _digest(plain, header)})))


def _ordered(content: bytes) -> bytes:
    """A safetensors file with its metadata by name: safetensors has them in another order each time."""
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors are aligned
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[begin:]))


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file, whose library takes only names that are UTF-8."""
    with path.open("rb") as file:
        name = str(path) if encoded(str(path)) == os.fsencode(path) else f"/dev/fd/{file.fileno()}"
        with safe_open(name, framework="pt") as opened:
            yield opened


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file by `save_tensors`; a `UserError` if it is missing, truncated or altered."""
    return load_checked(path)[:2]


def load_checked(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any], bytes]:
    """Tensors and facts of a file by `save_tensors`, and the checksum (32 bytes) of both."""
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
        flat = tensor.contiguous().reshape(-1).as_strided((tensor.numel(),), (1,))  # one number may have any stride
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Add one row to a file of JSON lines."""
    append_rows(path, [row])


def append_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file of JSON lines, after its last whole one; null where a number is not finite."""
    path = Path(path)
    added, end = _lines(rows), None
    try:
        with path.open("ab+") as file:
            end = _whole(file)
            file.write(added)
    except OSError as error:
        if end is not None:
            with suppress(OSError):  # no part of a row stays, of which closing the file may have written one more
                os.truncate(path, end)
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def _whole(file: BinaryIO) -> int:
    """The end of the last whole line of `file`, which is cut there: the writer of the rest was killed."""
    end = file.seek(0, os.SEEK_END)
    back = min(end, 1)
    file.seek(end - back)
    if file.read(back) in (b"", b"\n"):
        return end
    file.seek(0)
    end = file.read().rfind(b"\n") + 1
    file.truncate(end)
    return end


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """All whole rows of a file of JSON lines; a last line that was cut off is ignored."""
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
    """Replace `path` by rows of JSON lines; null where a number is not finite."""
    write(path, _lines(rows))


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return encoded("".join(to_json(row) + "\n" for row in rows))
