"""Text files of users: byte order marks, other encodings, hidden files, and paths as strings."""

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.completion.blend import BlendWeights
from factorcell.completion.online import LearningRule
from factorcell.config import read_options
from factorcell.data.columns.schema import ContextSchema
from factorcell.errors import UserError
from factorcell.evaluation.rescoring.nbest import read_nbest, with_references
from factorcell.evaluation.rescoring.rescore import read_weights
from factorcell.io import files, input_files
from factorcell.runs.run import Run
from factorcell.service.http import keys
from factorcell.service.privacy import BlockList
from factorcell.training.mixture import open_scorer
from tests.small_runs import make_run

ROW = {"id": "a", "hypotheses": [{"text": "so", "lm": -1.0}], "reference": "so"}
KEY = f'[[key]]\nname = "shop"\nhash = "{"0" * 64}"\nscopes = ["learn"]\n'


def read_kaldi(path: Path | str) -> Any:
    """Read a Kaldi folder in which both files have the content of `path`."""
    folder = Path(path).parent / "kaldi"
    folder.mkdir(exist_ok=True)
    content = Path(path).read_bytes()
    (folder / "words_text").write_bytes(content + b" w\n")
    (folder / "ac_cost").write_bytes(content)
    return nbest_values(folder)


def nbest_values(path: Path | str) -> Any:
    lists = read_nbest(path)
    return lists.score_names, [(item.id, item.texts, item.scores.tolist()) for item in lists.utterances]


def references(path: Path | str) -> Any:
    return [item.reference for item in with_references(read_nbest([ROW]), path).utterances]


# For each kind of text file: a file name, a content, and the function that reads it.
READERS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "options in TOML": ("x.toml", "[model]\nrank = 3\n", read_options),
    "options in JSON": ("x.json", '{"model": {"rank": 3}}', read_options),
    "search space": ("x.toml", "rank = [1, 2]\n", input_files.read_options_file),
    "keys": ("x.toml", KEY, keys.read_keys),
    "block list": ("x.txt", "bad\nworse\n", lambda path: BlockList.read(path).phrases),
    "n-best lists in JSON": ("x.jsonl", json.dumps(ROW) + "\n", nbest_values),
    "n-best list of SRILM": ("x.txt", "-1 -2 1 a\n", nbest_values),
    "n-best lists of Kaldi": ("x.txt", "a-1 17", read_kaldi),
    "references": ("x.txt", "a so it is\n", references),
}
WEIGHTS = '{"lm": 1, "model": 2}'


@pytest.mark.parametrize(("name", "content", "read"), READERS.values(), ids=READERS)
def test_a_byte_order_mark_is_ignored(name: str, content: str, read: Callable[[Any], Any], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    expected = read(path)
    path.write_text(content, encoding="utf-8-sig")
    assert read(path) == read(str(path)) == expected
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path.write_text(content, encoding=encoding)
        with pytest.raises(UserError, match="expected UTF-8, got UTF-16"):
            read(path)
    path.write_bytes(content[:2].encode() + b"\xe9" + content[2:].encode())
    with pytest.raises(UserError, match=r"not UTF-8 \(byte 2\)"):
        read(path)


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (WEIGHTS, read_weights),
        (WEIGHTS, files.read_json),
        (WEIGHTS + "\n", files.read_rows),
        (json.dumps({"format": 1, "a": 2}), lambda path: files.read_versioned(path, 1)),
    ],
)
def test_a_byte_order_mark_is_ignored_in_our_json_files(
    content: str, read: Callable[[Any], Any], tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    expected = read(path)
    path.write_text(content, encoding="utf-8-sig")
    assert read(path) == read(str(path)) == expected


def test_folders_may_be_strings(tmp_path: Path) -> None:
    make_run(tmp_path / "run").save_weights({})
    folder = str(tmp_path / "run")
    for opened in (Run.open(folder), open_scorer(folder)):
        assert opened.folder == tmp_path / "run"
    run = Run.open(folder)
    assert Run(folder, run.config, run.tokenizer, run.schema).folder == tmp_path / "run"
    assert LearningRule.load(folder) == LearningRule.load(run.folder)
    assert BlendWeights.load(folder) == BlendWeights.load(run.folder)
    assert ContextSchema.load(f"{folder}/schema.json") == run.schema  # type: ignore[arg-type]
    key = keys.add_key(f"{tmp_path}/keys.toml", "shop", ["learn"])
    assert keys.KeyRing(f"{tmp_path}/keys.toml").find(key)


def test_texts_to_explain_may_begin_with_a_byte_order_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, path = make_run(tmp_path / "run", ("stars:category",), adapt=["concat"]), tmp_path / "texts.txt"
    run.save_weights({})
    values = run.schema.variables[0].values[1:3]
    command = ["explain", str(run.folder), str(path), "--json", "--threads", "1"]
    command += ["--between", *(f"stars={value}" for value in values)]
    outputs = []
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text("the sea\ncold sand\n", encoding=encoding)
        assert main(command) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_hidden_files_are_not_listed(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "run"
    run = make_run(folder)
    run.save_weights({})
    names = {path.name for path in input_files.list_visible(folder)}
    assert names == {path.name for path in folder.iterdir()}
    for name in (".DS_Store", "._config.json", "Thumbs.db", "desktop.ini", ".git/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\xff")
    assert {path.name for path in input_files.list_visible(folder)} == names
    assert input_files.list_visible(folder, "*/config.json") == []
    Run.open(folder)


@pytest.mark.parametrize(
    ("content", "encoding", "text"),
    [
        (codecs.BOM_UTF8 + "é".encode(), "cp1252", "é"),  # the mark overrides the encoding
        (b"\xe9", "cp1252", "é"),
        (b"\x00a", "utf-8", "\x00a"),
        (b"a\x00b", "utf-8", "a\x00b"),
        (b"", "utf-8", ""),
        ("a\ufeffb".encode(), "utf-8", "a\ufeffb"),
    ],
)
def test_bytes_are_decoded(content: bytes, encoding: str, text: str) -> None:
    assert input_files.decode(content, "here", encoding) == text
