"""Damage to the folders of every kind of model is refused in a line that names the file."""

import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import Run, UserError
from factorcell.completion import Blend, Popularity, User
from factorcell.completion.blend import FEATURES, BlendWeights
from factorcell.completion.online import LearningRule, learn_one
from factorcell.config import read_options
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.counts import POPULARITY
from factorcell.io import files
from factorcell.ngram.ngram import NGram
from factorcell.training import open_scorer
from factorcell.training.proximal import StartingPoint
from tests.model_folders import LETTERS, MODELS, make_models
from tests.small_runs import ROWS

DIGESTED = ("schema.json", "vocabulary.txt", "tokenizer.json", "special_tokens_map.json")


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models of every kind, one of them fine-tuned."""
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


def model_outputs(folder: Path) -> Any:
    """Return everything that the model in a folder computes: nats, and suggestions for a user."""
    model = open_scorer(folder)
    texts = [{"text": text, "city": "Oslo"} for text in LETTERS] if folder.name == "letters" else ROWS
    results: list[Any] = [model.nats(model.prepare(texts)).tobytes()]
    if folder.name == "letters":
        run = Run.open(folder)
        user = learn_one(run, User.new(run), "bake bread")
        blend = Blend(run, Popularity.from_run(run))
        results += [user.vector.tobytes(), LearningRule.load(run.folder), blend.complete("ba", user, k=3)]
    if folder.name == "tuned":
        start = StartingPoint.read(folder)
        assert start is not None
        results += [start.l1, start.parts, {name: value.numpy().tobytes() for name, value in start.values.items()}]
    return results


def model_files(folder: Path) -> Iterator[Path]:
    """Yield the files of the model in a folder whose digests are stored."""
    return (path for path in sorted(folder.rglob("*")) if path.name in DIGESTED)


def flip_bits(folder: Path, count: int, seed: int) -> None:
    """Flip `count` random bits one at a time, in every file of a folder in turn; open the model each time."""
    draw, expected = random.Random(seed), model_outputs(folder)
    paths = list(model_files(folder))
    for number in range(count):
        path = paths[number % len(paths)]
        whole = path.read_bytes()
        altered, bit = bytearray(whole), draw.randrange(8 * len(whole))
        altered[bit // 8] ^= 1 << bit % 8
        path.write_bytes(altered)
        with pytest.raises(UserError) as error:
            model_outputs(folder)
        assert str(path) in str(error.value) or "does not belong to this config, schema" in str(error.value), bit
        assert "\n" not in str(error.value)
        path.write_bytes(whole)
    assert model_outputs(folder) == expected


NAMES = (*(name for name in MODELS if name not in ("inner", "mixture")), "tuned")


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_refused_and_named(name: str, models_folder: Path) -> None:
    flip_bits(models_folder / name, 8, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_flipped_bits_are_refused_and_named(name: str, models_folder: Path) -> None:
    flip_bits(models_folder / name, 400, seed=3)


def test_missing_files_are_named(models_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(models_folder / "letters", tmp_path / "letters"))
    (copy / POPULARITY).unlink()
    Run.open(copy)
    (copy / "vocabulary.txt").unlink()
    with pytest.raises(UserError, match=r"vocabulary.txt: there is no such file"):
        Run.open(copy)


# File, values to write into its JSON with the package's own writer (so the digest is right), and reader.
Change = dict[str, Any]
NOT_NUMBERS: tuple[Any, ...] = (math.nan, math.inf, "1", None, True, [0.1])
RATES: list[Change] = [{name: value} for name in ("rate", "max_norm") for value in (*NOT_NUMBERS, -1.0)]
RULES: list[Change] = [*RATES, {"optimizer": "adam"}, {"optimizer": 3}, {"optimizer": []}, {"pace": 1}]
RULES = [{"rule": change} for change in RULES] + [{"rule": 3}, {"rule": None}, {"rule": []}, {"rule": "adagrad"}]
BLENDS: list[Change] = [{"weights": dict.fromkeys(FEATURES, value)} for value in NOT_NUMBERS]
BLENDS += [{"weights": 3}, {"weights": None}, {"weights": []}, {"weights": {}}]
BLENDS += [{"threshold": value} for value in NOT_NUMBERS]
ORDERS: list[Change] = [{"order": value} for value in (0, "3", True, 10**9, None)]
NGRAMS: list[Change] = [*ORDERS, {"data": []}, {"data": None}]
NO_LISTS: tuple[Any, ...] = (3, None, {}, [], "abc")
WEIGHTS: tuple[Any, ...] = (
    [], "x", [[1.0]], [[1], [1, 2]], [[math.nan] * 3] * 3, [[2.0, -1.0, 0.0]] * 3, [[0.5, 0.0, 0.0]] * 3,
)  # fmt: skip
COLUMNS: tuple[Any, ...] = (3, "x", {}, [], "lat")
MIXTURES: list[Change] = [
    *({"weights": value} for value in WEIGHTS),
    *({"models": value} for value in ([], 3, [1, 2, 3], None)),
    *({"by": value} for value in COLUMNS),
]
CHANGES: dict[str, tuple[list[Change], Callable[[Path], Any]]] = {
    "letters/completion.json": (
        [*RULES, *BLENDS],
        lambda folder: (LearningRule.load(folder), BlendWeights.load(folder)),
    ),
    "ngram/ngram.json": (NGRAMS, NGram.open),
    "mixture/mixture.json": (MIXTURES, open_scorer),
}
WRONG_VALUES = [(name, change, read) for name, (changes, read) in CHANGES.items() for change in changes]


@pytest.mark.parametrize(
    ("name", "change", "read"), WRONG_VALUES, ids=[f"{name}-{change}" for name, change, _ in WRONG_VALUES]
)
def test_wrong_values_are_refused_and_the_file_is_named(
    name: str, change: Change, read: Callable[[Path], Any], models_folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(models_folder, tmp_path / "copy"))
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


def test_weights_that_are_not_finite_are_refused(models_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(models_folder / "words", tmp_path / "words"))
    run = Run.open(copy)
    run.model.embedding[3, 1] = np.nan
    run.save_weights({})
    with pytest.raises(
        UserError, match=r"weights.safetensors: embedding contains NaN or infinity; train the run again"
    ):
        Run.open(copy)


@pytest.mark.parametrize("line", ["\\Uffffffff", "\\U00110000"])
def test_an_invalid_escape_in_the_vocabulary_is_damage(line: str, models_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(models_folder / "words", tmp_path / "words"))
    files.write(copy / "vocabulary.txt", (copy / "vocabulary.txt").read_bytes() + f"{line}\n".encode())
    with pytest.raises(UserError, match=r"vocabulary.txt: damaged"):
        Run.open(copy)


def test_a_copied_folder_is_the_same_model(models_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(models_folder / "words", tmp_path / "renamed"))
    assert model_outputs(copy) == model_outputs(models_folder / "words")


DEEPLY_NESTED = {
    ("a list", "config.json"): lambda depth: "[" * depth + "]" * depth,
    ("an object", "config.json"): lambda depth: '{"model": ' * depth + "1" + "}" * depth,
    ("an option", "config.json"): lambda depth: '{"model": {"adapt": ' + "[" * depth + "]" * depth + "}}",
    ("an array", "config.toml"): lambda depth: "[backbone]\nhidden_size = " + "[" * depth + "]" * depth,
    ("a table", "config.toml"): lambda depth: "[backbone]\nhidden_size = " + "{a = " * depth + "1" + "}" * depth,
    ("a key", "config.toml"): lambda depth: "[" + "a." * depth + "a]\nx = 1",
}


@pytest.mark.parametrize("depth", [500, 10_000])
@pytest.mark.parametrize("case", DEEPLY_NESTED, ids=" in ".join)
def test_deeply_nested_files_are_refused(case: tuple[str, str], depth: int, tmp_path: Path) -> None:
    path = tmp_path / case[1]
    path.write_text(DEEPLY_NESTED[case](depth))
    with pytest.raises(UserError) as error:
        read_options(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
