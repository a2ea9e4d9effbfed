"""Whether a model folder is whole: every file that decides results against its manifest, then all of it opened."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell import digests, files, inputs
from factorcell.completion.blend import BlendWeights
from factorcell.completion.online import LearningRule
from factorcell.config import UserError
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.training.mixture import Mixture, open_scorer
from factorcell.training.per_value import Separate
from factorcell.training.proximal import StartingPoint

RECORDS = ("log.jsonl", "results.jsonl")  # files of rows that no score is made of
FREE = ("README.md", digests.FILE)


@dataclass(frozen=True)
class Finding:
    """What was found of a file or folder `path`, and whether it is as it should be."""

    path: Path
    right: bool
    text: str


def check(folder: str | Path) -> list[Finding]:
    """What is right and wrong with the run, n-gram model, separate runs or mixture in `folder`, a finding per file.

    `UserError` where there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    found = list(_files(folder))
    try:
        model: Any = open_scorer(folder)
    except UserError as error:
        known = any(one.text == str(error) for one in found)  # a file that is wrong is named already
        return found if known else [*found, Finding(folder, False, str(error))]
    found.append(Finding(folder, True, "opens"))
    if isinstance(model, Separate | Mixture):
        parts = model.runs.values() if isinstance(model, Separate) else model.models
        return [*found, *(finding for part in parts for finding in check(part.folder))]
    return found


def _files(folder: Path) -> Iterator[Finding]:
    """Findings of the files of `folder` itself."""
    try:
        listed = digests.read(folder)
    except UserError as error:
        yield Finding(folder / digests.FILE, False, str(error))
        return
    if not listed:
        what = f"no {digests.FILE}: it was deleted"
        yield Finding(folder / digests.FILE, True, f"{what}; only tensors have a checksum")
    names = {path.name for path in inputs.visible(folder) if path.is_file()} - set(FREE)
    for name in sorted(names | {name for name, accepted in listed.items() if accepted}):
        yield _finding(folder / name, bool(listed.get(name)))


def _finding(path: Path, listed: bool) -> Finding:
    """Read a file as it is read when it is used."""
    if not path.exists():
        return Finding(path, True, "deleted since it was written")  # opening says whether it is needed
    try:
        _read(path)
    except UserError as error:
        return Finding(path, False, str(error))
    if listed:
        return Finding(path, True, "as it was written")
    if path.suffix == ".safetensors":
        return Finding(path, True, "as it was written")
    return Finding(path, True, "readable, not in the manifest" if path.name in READERS else "not in the manifest")


READERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys(RECORDS, files.read_rows),
    "training.json": files.read_json,
    "start.safetensors": lambda path: StartingPoint.read(path.parent),
    "online.json": lambda path: LearningRule.read(path.parent),
    "blend.json": lambda path: BlendWeights.read(path.parent),
    POPULARITY: TextCounts.open,
}


def _read(path: Path) -> None:
    """Read a file, by its own reader if it has one that opening the model does not call."""
    if reader := READERS.get(path.name):
        reader(path)
    elif path.suffix == ".safetensors":
        files.load_tensors(path)
    else:
        files.read(path)
