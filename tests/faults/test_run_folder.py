"""Damage to the folders of every kind of model: refused in a line that names the file."""

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import Blend, Completer, Popularity, Run, User, UserError, digests, files, open_scorer
from factorcell.completion.blend import FEATURES, BlendWeights
from factorcell.completion.online import LearningRule, learn_one
from factorcell.config import Config
from factorcell.data.counts import POPULARITY
from factorcell.data.schema import ContextSchema
from factorcell.evaluation.ngram import NGram
from factorcell.training import search_space
from factorcell.training.check import check
from factorcell.training.proximal import StartingPoint
from tests.model_folders import LETTERS, MODELS, make_models
from tests.small_runs import ROWS

# Files that scoring does not read.
UNHEARD = ("training.lock", "training.json", "README.md", "log.jsonl", "results.jsonl", "checkpoint.safetensors")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models of every kind, and one of a fine-tuning."""
    folder = tmp_path_factory.mktemp("world") / "models"
    make_models(folder)
    shutil.copytree(folder / "words", folder / "tuned")
    run = Run.open(folder / "tuned")
    StartingPoint(run.model.saved_tensors(), ("backbone",), 0.5).write(folder / "tuned")
    for path in (folder / name for name in ("words", "letters", "tuned")):
        run = Run.open(path)
        run.save_weights({"step": 1})
        files.append_row(path / "log.jsonl", {"step": 1, "split": "dev", "perplexity": 1.5})
        files.append_row(path / "results.jsonl", {"kind": "evaluate"})
        (path / "README.md").write_text("a card", encoding="utf-8")
    return folder


def answers(folder: Path) -> Any:
    """All that the model in a folder says: nats, and what it suggests to whom."""
    model = open_scorer(folder)
    asked = [{"text": text, "city": "Oslo"} for text in LETTERS] if folder.name == "letters" else ROWS
    said: list[Any] = [model.nats(model.prepare(asked)).tobytes()]
    if folder.name == "letters":
        run = Run.open(folder)
        user = learn_one(run, User.new(run), "bake bread")
        blend = Blend(Completer(run), Popularity.from_run(run))
        said += [user.vector.tobytes(), LearningRule.load(run.folder), blend.complete("ba", user, k=3)]
    if folder.name == "tuned":
        start = StartingPoint.read(folder)
        assert start is not None
        said += [start.l1, start.parts, {name: value.numpy().tobytes() for name, value in start.values.items()}]
    return said


def parts(folder: Path) -> Iterator[Path]:
    """The files that a folder's model is made of."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in UNHEARD)


def flip(folder: Path, count: int, seed: int) -> None:
    """Flip `count` bits at random places, one at a time, of every file of a folder in turn; ask the model each time."""
    draw, expected = random.Random(seed), answers(folder)
    found = list(parts(folder))
    for number in range(count):
        path = found[number % len(found)]
        whole = path.read_bytes()
        altered, bit = bytearray(whole), draw.randrange(8 * len(whole))
        altered[bit // 8] ^= 1 << bit % 8
        path.write_bytes(altered)
        with pytest.raises(UserError) as error:
            answers(folder)
        assert str(path) in str(error.value), bit
        assert "\n" not in str(error.value)
        assert any(str(path) in finding.text for finding in check(folder) if not finding.is_valid), (path, bit)
        path.write_bytes(whole)
    assert answers(folder) == expected


NAMES = (*(name for name in MODELS if name != "mixture"), "tuned")


@pytest.mark.parametrize("name", [*NAMES, "mixture"])
def test_a_flipped_bit_is_refused_and_named(name: str, world: Path) -> None:
    flip(world / name, 8, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "mixture"])
def test_many_flipped_bits_are_refused_and_named(name: str, world: Path) -> None:
    flip(world / name, 400, seed=3)


def test_whole_folders_are_right(world: Path) -> None:
    for name in (*NAMES, "mixture"):
        found = check(world / name)
        assert [one.text for one in found if not one.is_valid] == []
        said = {one.path.name: one.text for one in found if one.path.parent == world / name}
        assert {text for file, text in said.items() if file.endswith(".json")} == {"as it was written"}
    found = check(world / "mixture")
    assert {one.path.parent.name for one in found} >= {"mixture", "words", "ngram", "separate", "value-0001"}
    words = {one.path.name: one.text for one in check(world / "words")}
    assert words["log.jsonl"] == "readable, not in the manifest"
    assert "README.md" not in words
    assert words["words"] == "opens"


def test_folders_without_a_manifest_open(world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world, tmp_path / "copy"))
    for path in copy.rglob(digests.FILE):
        path.unlink()
    for name in MODELS:
        found = check(copy / name)
        assert [one.text for one in found if not one.is_valid] == []
        assert found[0].text.startswith("no digests.json: it was deleted; ")


def test_what_else_is_wrong_with_a_folder_is_named(world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world / "letters", tmp_path / "letters"))
    (copy / POPULARITY).unlink()
    found = {one.path.name: one for one in check(copy)}
    assert (found[POPULARITY].is_valid, found[POPULARITY].text) == (True, "deleted since it was written")
    assert all(one.is_valid for one in found.values())
    (copy / "results.jsonl").write_text('{"kind": \n{}\n')
    (copy / "vocabulary.txt").unlink()
    wrong = [one for one in check(copy) if not one.is_valid]
    assert [one.path.name for one in wrong] == ["results.jsonl", "letters"]
    assert "results.jsonl line 1" in wrong[0].text
    assert "vocabulary.txt: there is no such file" in wrong[1].text
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        check(tmp_path / "nowhere")


# A file, what is put into its JSON by our own writer (so that its digest is right), and who reads it.
Change = dict[str, Any]
NOT_NUMBERS: tuple[Any, ...] = (math.nan, math.inf, "1", None, True, [0.1])
RATES: list[Change] = [{name: value} for name in ("rate", "reach") for value in (*NOT_NUMBERS, -1.0)]
RULES: list[Change] = [*RATES, {"optimiser": "adam"}, {"optimiser": 3}, {"optimiser": []}, {"pace": 1}]
BLENDS: list[Change] = [dict.fromkeys(FEATURES, value) for value in NOT_NUMBERS]
ORDERS: list[Change] = [{"order": value} for value in (0, "3", True, 10**9, None)]
NGRAMS: list[Change] = [*ORDERS, {"data": []}, {"data": None}]
NO_LISTS: tuple[Any, ...] = (3, None, {}, [], "abc")
SEPARATES: list[Change] = [{"values": value} for value in NO_LISTS]
WEIGHTS: tuple[Any, ...] = (
    [], "x", [[1.0]], [[1], [1, 2]], [[math.nan] * 3] * 3, [[2.0, -1.0, 0.0]] * 3, [[0.5, 0.0, 0.0]] * 3,
)  # fmt: skip
MIXTURES: list[Change] = [
    *({"weights": value} for value in WEIGHTS),
    *({"models": value} for value in ([], 3, [1, 2, 3], None)),
    *({"values": "x"}, {"counts": [1.5]}, {"by": 3}),
]
CHANGES: dict[str, tuple[list[Change], Callable[[Path], Any]]] = {
    "letters/online.json": (RULES, LearningRule.load),
    "letters/blend.json": (BLENDS, BlendWeights.load),
    "ngram/ngram.json": (NGRAMS, NGram.open),
    "separate/separate.json": (SEPARATES, open_scorer),
    "mixture/mixture.json": (MIXTURES, open_scorer),
}
WRONG = [(name, change, read) for name, (changes, read) in CHANGES.items() for change in changes]


@pytest.mark.parametrize(("name", "change", "read"), WRONG, ids=[f"{name}-{change}" for name, change, _ in WRONG])
def test_wrong_values_are_refused_and_the_file_is_named(
    name: str, change: Change, read: Callable[[Path], Any], world: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(world, tmp_path / "copy"))
    files.write_json(copy / name, {**files.read_json(copy / name), **change})
    with pytest.raises(UserError) as error:
        read((copy / name).parent)
    assert str(copy / name) in str(error.value)
    assert "\n" not in str(error.value)


VALUES: dict[str, tuple[Any, ...]] = {
    "deviation": (-1.0, 0.0, math.nan, math.inf, "1", None, True),
    "mean": (math.nan, -math.inf, "1", None, [1.0]),
    "period": (-1.0, math.nan, "1"),
    "means": ([math.nan], ["1"], 3, "abc", [None]),
    "deviations": ([-1.0], [0.0], [math.inf]),
    "counts": ([-1], [1.5], ["1"], [True], 3, None),
    "values": ([1], [None], "abc", None),
    "name": (1, None, []),
    "column": (1, None),
    "kind": ("txt", None, 3, []),
    "rare_count": (-1, 1.5, "1"),
}
FIELDS = [(name, value) for name, values in VALUES.items() for value in values]


@pytest.mark.parametrize(("field", "value"), FIELDS, ids=str)
def test_wrong_schemas_are_refused_and_named(field: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    files.write_json(path, {"variables": [{"name": "x", "kind": "number", field: value}]})
    with pytest.raises(UserError) as error:
        ContextSchema.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_schemas_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "schema.json", {"name": "x", "kind": "number"}
    category = {"name": "x", "kind": "category"}
    contents: list[Any] = [
        {"variables": [x, x]},
        {"variables": [{**category, "values": ["a"], "counts": [1, 2]}]},
        {"variables": [{"name": "x", "kind": "text", "values": ["a"], "shares": []}]},
        {"variables": [{"name": "x", "kind": "vector", "means": [1.0], "deviations": []}]},
        *({"variables": [value]} for value in NO_LISTS),
        *({"variables": value} for value in (3, None)),
        *([], 3, None, "variables"),
    ]
    for content in contents:
        files.write_json(path, content)
        with pytest.raises(UserError, match=r"schema.json: "):
            ContextSchema.load(path)


def test_weights_that_are_no_numbers_are_refused(world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world / "words", tmp_path / "words"))
    run = Run.open(copy)
    run.model.embedding[3, 1] = np.nan
    run.save_weights({})
    with pytest.raises(
        UserError, match=r"weights.safetensors: embedding contains NaN or infinity; train the run again"
    ):
        Run.open(copy)


@pytest.mark.parametrize("line", ["\\Uffffffff", "\\U00110000"])
def test_a_token_that_is_no_character_is_damage(line: str, world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world / "words", tmp_path / "words"))
    files.write(copy / "vocabulary.txt", (copy / "vocabulary.txt").read_bytes() + f"{line}\n".encode())
    with pytest.raises(UserError, match=r"vocabulary.txt: damaged"):
        Run.open(copy)


def test_the_manifest_names_no_place(world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world / "words", tmp_path / "renamed"))
    assert answers(copy) == answers(world / "words")
    listed = json.loads((copy / digests.FILE).read_bytes())["files"]
    assert listed["config.json"] == [digests.sha256_of((copy / "config.json").read_bytes())]


DEEP = {
    ("a list", "config.json"): lambda depth: "[" * depth + "]" * depth,
    ("an object", "config.json"): lambda depth: '{"model": ' * depth + "1" + "}" * depth,
    ("an option", "config.json"): lambda depth: '{"model": {"adapt": ' + "[" * depth + "]" * depth + "}}",
    ("an array", "config.toml"): lambda depth: "[backbone]\nhidden_size = " + "[" * depth + "]" * depth,
    ("a table", "config.toml"): lambda depth: "[backbone]\nhidden_size = " + "{a = " * depth + "1" + "}" * depth,
    ("a key", "config.toml"): lambda depth: "[" + "a." * depth + "a]\nx = 1",
}


@pytest.mark.parametrize("depth", [500, 10_000])
@pytest.mark.parametrize("case", DEEP, ids=" in ".join)
def test_what_is_nested_deep_is_refused(case: tuple[str, str], depth: int, tmp_path: Path) -> None:
    path = tmp_path / case[1]
    path.write_text(DEEP[case](depth))
    for read in (Config.load, search_space.read) if path.suffix == ".toml" else (Config.load,):
        with pytest.raises(UserError) as error:
            read(path)
        assert str(error.value).startswith(f"{path}: ")
        assert "\n" not in str(error.value)
