"""Files that are whole or not there: tensors with a checksum, JSON lines, atomic replacement.

A safetensors file cannot execute code. Its header carries a SHA-256 of the tensors, so that a truncated or altered
file is found out before it is used.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from factorcell.config import UserError, check_format


def write(path: Path, content: bytes) -> None:
    """Replace `path` by `content` at once: what was there stays whole until the new file is on disk."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        kept = "; the last good one is kept" if path.exists() else ""
        raise UserError(f"{path}: cannot be saved ({error.strerror}){kept}") from None


def new_folder(folder: Path, advice: str) -> None:
    """Make `folder`; `UserError`, with `advice`, where it exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; {advice}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror})") from None


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by `content` as JSON."""
    write(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file, or a `UserError` that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error})") from None


def write_versioned(path: Path, content: Mapping[str, Any], number: int) -> None:
    """Replace `path` by `content` as JSON, after the number of its format."""
    write_json(path, {"format": number, **content})


def read_versioned(path: Path, newest: int, what: Path | None = None) -> dict[str, Any]:
    """What `write_versioned` wrote, without its number; files from before there were numbers have format 1.

    `UserError` for a format after the `newest` that is known of `what` (`path` itself, or the folder that it opens).
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged (it must hold an object, not a {type(content).__name__})")
    check_format(content.pop("format", 1), newest, what or path)
    return content


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace `path` by `tensors` and `facts` (plain values), with a checksum over both."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = json.dumps(facts, sort_keys=True)
    write(path, save(plain, {"facts": header, "sha256": _digest(plain, header)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote; a `UserError` where the file is missing, truncated or altered."""
    tensors, facts, _ = load_checked(path)
    return tensors, facts


def load_checked(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], bytes]:
    """The same, and the checksum (32 bytes) of both."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(f"{path}: truncated or not a safetensors file ({error})") from None
    facts = header.get("facts", "null")
    digest = _digest(tensors, facts)
    if header.get("sha256") != digest:
        raise UserError(f"{path}: altered since it was saved (its checksum does not match)")
    return tensors, json.loads(facts), bytes.fromhex(digest)


def _digest(tensors: Mapping[str, Tensor], header: str) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row to a file of JSON lines."""
    append_rows(path, [row])


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file of JSON lines."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a file of JSON lines; a last line that was cut off is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise UserError(f"{path} line {len(rows) + 1}: not a row of JSON") from None
    return rows


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace `path` by rows of JSON lines."""
    write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
