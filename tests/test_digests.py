"""The manifest of a folder: what is listed is found out when it was altered, wherever a writer was killed."""

import json
from pathlib import Path

import pytest
import torch

from factorcell import digests, files, input_files
from factorcell.config import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that lists three files, of which one is not there."""
    files.create_manifest(tmp_path, ("a.json", "rows.jsonl", "later.json"))
    files.write_json(tmp_path / "a.json", {"a": [1.5, 2.5]})
    files.write_rows(tmp_path / "rows.jsonl", [{"count": 3}, {"count": 4}])
    return tmp_path


def flipped(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def read_all(folder: Path) -> None:
    """Read the listed files."""
    files.read_json(folder / "a.json")
    files.read_rows(folder / "rows.jsonl")


def refused(folder: Path, name: str) -> str:
    """The line by which reading the listed files is refused."""
    with pytest.raises(UserError) as error:
        read_all(folder)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{folder / name}: ")
    return message


@pytest.mark.parametrize("name", ["a.json", "rows.jsonl"])
def test_flipped_bits_are_found_in_the_file_that_has_them(name: str, folder: Path) -> None:
    whole = (folder / name).read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        flipped(folder / name, bit)
        assert "altered since it was written" in refused(folder, name)
        (folder / name).write_bytes(whole)
    assert files.read_json(folder / "a.json") == {"a": [1.5, 2.5]}


def test_flipped_bits_of_the_manifest_are_found(folder: Path) -> None:
    whole = (folder / digests.FILE).read_bytes()
    for bit in range(0, 8 * len(whole), 29):
        flipped(folder / digests.FILE, bit)
        refused(folder, digests.FILE)
        (folder / digests.FILE).write_bytes(whole)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff", b"[" * 10**6, b'{"format": 1, "files": [], "sha256": 1}']
)
def test_a_manifest_that_is_none_is_refused(content: bytes, folder: Path) -> None:
    (folder / digests.FILE).write_bytes(content)
    refused(folder, digests.FILE)
    with pytest.raises(UserError, match=digests.FILE):
        files.write_json(folder / "a.json", {})


def test_a_manifest_of_a_newer_format_says_what_to_do(folder: Path) -> None:
    content = files.read_json(folder / digests.FILE)
    (folder / digests.FILE).write_text(json.dumps({**content, "format": 2}))
    assert "its format is 2, this factorcell reads up to 1; upgrade" in refused(folder, digests.FILE)


def test_other_files_and_folders_are_free(folder: Path, tmp_path: Path) -> None:
    for name in ("README.md", "later.json"):
        (folder / name).write_text("mine")
        assert files.read(folder / name) == b"mine"
    (folder / digests.FILE).unlink()
    (folder / "a.json").write_text("[]")
    assert files.read_json(folder / "a.json") == []
    files.write_json(folder / "a.json", [1])
    assert not (folder / digests.FILE).exists()


def test_killed_at_any_file_it_holds_the_old_or_the_new(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    replace, before = Path.replace, {"a.json": {"a": [1.5, 2.5]}, "later.json": None}
    for name, old in before.items():
        for count in range(3):
            left = [count]

            def deadly(self: Path, target: Path, left: list[int] = left) -> Path:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return replace(self, target)

            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", deadly)
                if count < 2:
                    with pytest.raises(Killed):
                        files.write_json(folder / name, count)
                else:
                    files.write_json(folder / name, count)
            found = files.read_json(folder / name) if (folder / name).exists() else None
            assert found == (old if count < 2 else count), (name, count)


def test_a_reader_beside_a_writer_accuses_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_json(folder / "a.json", 1)
    content = input_files.content

    def overtaken(path: Path) -> bytes:
        monkeypatch.undo()
        found = content(path)
        files.write_json(path, 2)
        files.write_json(path, 3)
        return found

    monkeypatch.setattr(input_files, "content", overtaken)
    assert files.read_json(folder / "a.json") == 3


def test_equal_tensors_make_equal_files(tmp_path: Path) -> None:
    tensors = {"odd": torch.ones(3, dtype=torch.uint8), "a": torch.randn(3, 4), "步": torch.tensor(7.0)}
    contents = set()
    for _ in range(20):
        files.save_tensors(tmp_path / "w", tensors, {"step": 1, "name": "Málaga"})
        contents.add((tmp_path / "w").read_bytes())
    assert len(contents) == 1
    assert all(torch.equal(tensors[name], tensor) for name, tensor in files.load_tensors(tmp_path / "w")[0].items())
