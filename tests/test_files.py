"""Atomic files: crashes, full disks and altered files."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from factorcell.errors import UserError
from factorcell.io import files

FULL = Path("/dev/full")  # a device that is always full


def tensors() -> dict[str, Tensor]:
    """Return tensors of several types and shapes, one of them not contiguous."""
    return {
        "matrix": torch.randn(3, 4),
        "transposed": torch.randn(2, 5).T,
        "step": torch.tensor(7.0),
        "ids": torch.arange(5),
        "empty": torch.zeros(0, 3),
    }


def check_message(error: pytest.ExceptionInfo[UserError], *words: str) -> None:
    """Check that the message is one line that contains all `words`."""
    message = str(error.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


def test_saved_tensors_and_facts_are_loaded_unchanged(tmp_path: Path) -> None:
    path, facts = tmp_path / "w.safetensors", {"step": 3, "best": float("inf"), "name": "Málaga"}
    saved_tensors = tensors()
    files.save_tensors(path, saved_tensors, facts)
    loaded, loaded_facts = files.load_tensors(path)
    assert loaded_facts == facts
    assert loaded.keys() == saved_tensors.keys()
    for name, tensor in saved_tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_tensor_of_one_element_and_any_stride_is_loaded_unchanged(tmp_path: Path) -> None:
    column = torch.zeros(1, 2, dtype=torch.double)[:, 1]
    assert column.stride() == (2,)
    files.save_tensors(tmp_path / "t.safetensors", {"x": column.as_strided((1,), (2,))}, {})
    assert files.load_tensors(tmp_path / "t.safetensors")[0]["x"].tolist() == [0.0]


def test_equal_tensors_are_saved_as_equal_files(tmp_path: Path) -> None:
    saved_tensors = {"odd": torch.ones(3, dtype=torch.uint8), "a": torch.randn(3, 4), "步": torch.tensor(7.0)}
    contents = set()
    for _ in range(20):
        files.save_tensors(tmp_path / "w", saved_tensors, {"step": 1, "name": "Málaga"})
        contents.add((tmp_path / "w").read_bytes())
    assert len(contents) == 1
    assert all(torch.equal(saved_tensors[name], x) for name, x in files.load_tensors(tmp_path / "w")[0].items())


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    files.save_tensors(whole, tensors(), {"step": 1})
    content = whole.read_bytes()
    for size in range(0, len(content), 7):
        cut.write_bytes(content[:size])
        with pytest.raises(UserError) as error:
            files.load_tensors(cut)
        check_message(error, str(cut), "truncated")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b"PK\x03\x04" + bytes(100)])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        files.load_tensors(path)
    check_message(error, str(path), "safetensors")


def test_errors_name_missing_files(tmp_path: Path) -> None:
    for read in (files.load_tensors, files.read_json):
        for path in (tmp_path / "none", tmp_path / "no" / "folder"):
            with pytest.raises(UserError) as error:
                read(path)
            check_message(error, str(path), "no such file")
    assert files.read_rows(tmp_path / "none") == []


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("before", [None, b"good"])
def test_a_full_disk_preserves_the_old_file(before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if before:
        path.write_bytes(before)
    (tmp_path / "file.partial").symlink_to(FULL)
    with pytest.raises(UserError) as error:
        files.write(path, b"new")
    check_message(error, str(path), os.strerror(errno.ENOSPC))
    assert ("previous file is unchanged" in str(error.value)) == bool(before)
    assert (path.read_bytes() if path.exists() else None) == before
    assert [file.name for file in tmp_path.iterdir()] == (["file"] if before else [])
    files.write(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_full_disk_preserves_earlier_rows(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path, rows = tmp_path / "rows.jsonl", [{"text": "x" * 80}] * 10
    files.write_rows(path, rows)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(UserError) as error:
            files.append_row(path, {"text": "y" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check_message(error, str(path), os.strerror(errno.EFBIG))
    files.append_row(path, {"text": "z"})
    assert files.read_rows(path) == [*rows, {"text": "z"}]


def test_a_crash_before_the_rename_preserves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write(path, b"good")

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            files.write(path, b"a longer new one")
    assert path.read_bytes() == b"good"
    files.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_synchronized_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(handle: int) -> None:
        order.append(f"sync {os.fstat(handle).st_size}")
        fsync(handle)

    def watched_replace(self: Path, target: Path) -> Path:
        order.append(f"rename {self.name} {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    files.write(tmp_path / "file", b"12345")
    assert order == ["sync 5", "rename file.partial file"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(rows=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4), tail=st.integers(0, 30))
def test_rows_are_read_unchanged_and_an_incomplete_last_row_is_ignored(
    rows: list[dict[str, Any]], tail: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "log.jsonl"
    for row in rows:
        files.append_row(path, row)
    assert files.read_rows(path) == rows
    with path.open("ab") as file:
        file.write(json.dumps({"step": 10, "loss": 1.25, "split": "train"}).encode()[:tail])
    assert files.read_rows(path) == rows
    files.write_rows(path, rows)
    assert files.read_rows(path) == rows


def test_errors_name_damaged_rows_and_json(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(UserError) as error:
        files.read_rows(path)
    check_message(error, f"{path} line 2")
    for content in (b'{"a": ', b"\xff\xfe", b""):
        path.write_bytes(content)
        with pytest.raises(UserError) as error:
            files.read_json(path)
        check_message(error, str(path), "damaged")


@pytest.mark.parametrize("name", ["r\udce9views", "\udfff", "a\ud800b", "\udc80\udcff"])
def test_lone_surrogates_are_escaped_and_json_returns_them(name: str, tmp_path: Path) -> None:
    content, path = {"name": name, name: [name, 1.5]}, tmp_path / "a"
    files.write_json(path, content)
    assert files.read_json(path) == content
    files.write_rows(path, [content])
    files.append_row(path, content)
    assert files.read_rows(path) == [content, content]
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0]) == content
    files.write(path, f"# {name}\n")
    assert path.read_text(encoding="utf-8") == f"# {name.encode('unicode_escape').decode()}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a system with such names")
def test_tensors_are_loaded_from_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "r\udce9n"
    folder.mkdir()
    files.save_tensors(folder / "\udcff.safetensors", tensors(), {"from": "r\udce9n"})
    loaded, facts = files.load_tensors(folder / "\udcff.safetensors")
    assert facts == {"from": "r\udce9n"}
    assert loaded.keys() == tensors().keys()


@pytest.mark.parametrize("method", ["exists", "is_dir"])
def test_a_folder_that_another_process_creates_meanwhile_is_new(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(Path, method)

    def call_then_create(path: Path) -> bool:
        result: bool = original(path)
        if not result:
            path.mkdir()
        return result

    monkeypatch.setattr(Path, method, call_then_create)
    assert files.is_new(tmp_path / "run")


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", ".git/HEAD", "empty"])
def test_a_folder_of_hidden_files_is_new_and_they_are_preserved(name: str, tmp_path: Path) -> None:
    if name == "empty":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"content")
    assert files.is_new(tmp_path)
    files.create_new_folder(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(name).name] * (name != "empty")


@pytest.mark.parametrize("name", ["file", "project/.git/HEAD", "sub/.DS_Store"])
def test_a_folder_of_other_files_is_not_new(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"content")
    assert not files.is_new(tmp_path)


@pytest.mark.parametrize("before", [None, b"good"])
def test_checking_a_writable_path_leaves_no_trace(before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if before:
        path.write_bytes(before)
    files.check_writable(path)
    assert (path.read_bytes() if path.exists() else None) == before
    assert [file.name for file in tmp_path.iterdir()] == (["file"] if before else [])
    files.check_writable(tmp_path / "a" / "b", is_folder=True)
    assert not (tmp_path / "a").exists()
    files.check_writable(FULL)  # a device is not opened, so its errors appear only when it is written


def test_a_path_that_cannot_be_written_is_detected_in_advance(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"good")
    for name in ("none/file", "folder", "file/below"):
        messages = []
        for attempt in (files.check_writable, lambda path: files.write(path, b"new")):
            with pytest.raises(UserError) as error:
                attempt(tmp_path / name)
            messages.append(str(error.value))
        assert messages[0] == messages[1] or "Not a directory" in messages[1]
    for name in ("file", "file/below/it"):
        with pytest.raises(UserError) as error:
            files.check_writable(tmp_path / name, is_folder=True)
        check_message(error, str(tmp_path / name), "cannot be saved (Not a directory)")
