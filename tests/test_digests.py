"""The manifest of a folder: altered files are detected, and a writer may be killed at any time."""

import json
from pathlib import Path

import pytest
import torch

from factorcell.errors import UserError
from factorcell.io import files, input_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose manifest lists three files, one of which does not exist."""
    files.create_manifest(tmp_path, ("a.json", "rows.jsonl", "later.json"))
    files.write_json(tmp_path / "a.json", {"a": [1.5, 2.5]})
    files.write_rows(tmp_path / "rows.jsonl", [{"count": 3}, {"count": 4}])
    return tmp_path


def flip_bit(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def read_all(folder: Path) -> None:
    files.read_json(folder / "a.json")
    files.read_rows(folder / "rows.jsonl")


def refusal(folder: Path, name: str) -> str:
    """Return the error message of reading the listed files, which must be one line about the file `name`."""
    with pytest.raises(UserError) as error:
        read_all(folder)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{folder / name}: ")
    return message


@pytest.mark.parametrize("name", ["a.json", "rows.jsonl"])
def test_flipped_bits_of_a_listed_file_are_detected(name: str, folder: Path) -> None:
    whole = (folder / name).read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        flip_bit(folder / name, bit)
        assert "altered since it was written" in refusal(folder, name)
        (folder / name).write_bytes(whole)
    assert files.read_json(folder / "a.json") == {"a": [1.5, 2.5]}


def test_flipped_bits_of_the_manifest_are_detected(folder: Path) -> None:
    whole = (folder / files.MANIFEST).read_bytes()
    for bit in range(0, 8 * len(whole), 29):
        flip_bit(folder / files.MANIFEST, bit)
        refusal(folder, files.MANIFEST)
        (folder / files.MANIFEST).write_bytes(whole)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff", b"[" * 10**6, b'{"format": 1, "files": [], "sha256": 1}']
)
def test_an_invalid_manifest_is_refused(content: bytes, folder: Path) -> None:
    (folder / files.MANIFEST).write_bytes(content)
    refusal(folder, files.MANIFEST)
    with pytest.raises(UserError, match=files.MANIFEST):
        files.write_json(folder / "a.json", {})


def test_a_manifest_of_a_newer_format_suggests_an_upgrade(folder: Path) -> None:
    content = files.read_json(folder / files.MANIFEST)
    (folder / files.MANIFEST).write_text(json.dumps({**content, "format": 2}))
    assert "its format is 2, but this version reads up to 1; upgrade" in refusal(folder, files.MANIFEST)


def test_unlisted_files_and_folders_without_a_manifest_are_not_checked(folder: Path, tmp_path: Path) -> None:
    for name in ("README.md", "later.json"):
        (folder / name).write_text("mine")
        assert files.read(folder / name) == b"mine"
    (folder / files.MANIFEST).unlink()
    (folder / "a.json").write_text("[]")
    assert files.read_json(folder / "a.json") == []
    files.write_json(folder / "a.json", [1])
    assert not (folder / files.MANIFEST).exists()


def test_a_killed_writer_leaves_the_old_or_the_new_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    replace, before = Path.replace, {"a.json": {"a": [1.5, 2.5]}, "later.json": None}
    for name, old in before.items():
        for count in range(3):
            remaining = [count]

            def replace_or_die(self: Path, target: Path, remaining: list[int] = remaining) -> Path:
                remaining[0] -= 1
                if remaining[0] < 0:
                    raise Killed
                return replace(self, target)

            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", replace_or_die)
                if count < 2:
                    with pytest.raises(Killed):
                        files.write_json(folder / name, count)
                else:
                    files.write_json(folder / name, count)
            result = files.read_json(folder / name) if (folder / name).exists() else None
            assert result == (old if count < 2 else count), (name, count)


def test_a_read_during_a_write_is_not_reported_as_an_alteration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_json(folder / "a.json", 1)
    content = input_files.read_bytes

    def content_before_a_write(path: Path) -> bytes:
        monkeypatch.undo()
        old = content(path)
        files.write_json(path, 2)
        files.write_json(path, 3)
        return old

    monkeypatch.setattr(input_files, "read_bytes", content_before_a_write)
    assert files.read_json(folder / "a.json") == 3


def test_equal_tensors_are_saved_as_equal_files(tmp_path: Path) -> None:
    tensors = {"odd": torch.ones(3, dtype=torch.uint8), "a": torch.randn(3, 4), "步": torch.tensor(7.0)}
    contents = set()
    for _ in range(20):
        files.save_tensors(tmp_path / "w", tensors, {"step": 1, "name": "Málaga"})
        contents.add((tmp_path / "w").read_bytes())
    assert len(contents) == 1
    assert all(torch.equal(tensors[name], tensor) for name, tensor in files.load_tensors(tmp_path / "w")[0].items())
