"""Check a model folder: every file that decides results against the manifest, then open the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell import digests, files, input_files
from factorcell.completion.blend import BlendWeights
from factorcell.completion.online import LearningRule
from factorcell.config import UserError
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.training.mixture import Mixture, open_scorer
from factorcell.training.per_value import SeparateRuns
from factorcell.training.proximal import StartingPoint

READERS: dict[str, Callable[[Path], Any]] = {  # of files that opening the model does not read
    **dict.fromkeys(("log.jsonl", "results.jsonl"), files.read_rows),
    "training.json": files.read_json,
    "start.safetensors": lambda path: StartingPoint.read(path.parent),
    "online.json": lambda path: LearningRule.load(path.parent),
    "blend.json": lambda path: BlendWeights.load(path.parent),
    POPULARITY: TextCounts.open,
}


@dataclass(frozen=True)
class Finding:
    """A finding about a file or folder `path`, and whether it is `right`."""

    path: Path
    is_valid: bool
    text: str


def check(folder: str | Path) -> list[Finding]:
    """Check the run, n-gram model, separate runs or mixture in `folder`.

    Returns:
        A finding per file, and one for the folder.

    Raises:
        UserError: If the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    found = list(_files(folder))
    try:
        model: Any = open_scorer(folder)
    except UserError as error:
        known = any(one.text == str(error) for one in found)  # the finding of a file
        return found if known else [*found, Finding(folder, False, str(error))]
    found.append(Finding(folder, True, "opens"))
    parts = (
        model.runs.values() if isinstance(model, SeparateRuns) else model.models if isinstance(model, Mixture) else ()
    )
    return [*found, *(finding for part in parts for finding in check(part.folder))]


def _files(folder: Path) -> Iterator[Finding]:
    """Check the files of `folder` itself."""
    try:
        listed = digests.read(folder)
    except UserError as error:
        yield Finding(folder / digests.FILE, False, str(error))
        return
    if not listed:
        text = f"no {digests.FILE}: it was deleted; only tensors have a checksum"
        yield Finding(folder / digests.FILE, True, text)
    names = {path.name for path in input_files.list_visible(folder) if path.is_file()} - {"README.md", digests.FILE}
    for name in sorted(names | {name for name, accepted in listed.items() if accepted}):
        yield _finding(folder / name, bool(listed.get(name)))


def _finding(path: Path, listed: bool) -> Finding:
    if not path.exists():
        return Finding(path, True, "deleted since it was written")  # opening says whether it is needed
    tensors = path.suffix == ".safetensors"
    reader: Callable[[Path], Any] = READERS.get(path.name, files.load_tensors if tensors else files.read)
    try:
        reader(path)
    except UserError as error:
        return Finding(path, False, str(error))
    if listed or tensors:
        return Finding(path, True, "as it was written")
    return Finding(path, True, "readable, not in the manifest" if path.name in READERS else "not in the manifest")
