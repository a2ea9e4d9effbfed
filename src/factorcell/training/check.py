"""Check a model folder: compare the files that determine results with the manifest (`digests`), then open the model."""

from collections.abc import Callable, Iterable, Iterator
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

READERS: dict[str, Callable[[Path], Any]] = {  # how to read the files that are not read when the model is opened
    **dict.fromkeys(("log.jsonl", "results.jsonl"), files.read_rows),
    "training.json": files.read_json,
    "start.safetensors": lambda path: StartingPoint.read(path.parent),
    "online.json": lambda path: LearningRule.load(path.parent),
    "blend.json": lambda path: BlendWeights.load(path.parent),
    POPULARITY: TextCounts.open,
}


@dataclass(frozen=True)
class Finding:
    """The result of checking one file or folder.

    Attributes:
        path: The file or folder.
        is_valid: Whether no problem was found.
        text: A description of the result; if a problem was found, the error message.
    """

    path: Path
    is_valid: bool
    text: str


def check(folder: str | Path) -> list[Finding]:
    """Check the run, n-gram model, separate runs or mixture in a folder.

    Args:
        folder: The folder of the model. The folders of the models that it consists of are checked too.

    Returns:
        One finding for each file, and one for each folder.

    Raises:
        UserError: If the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    findings = list(_check_files(folder))
    try:
        model: Any = open_scorer(folder)
    except UserError as error:
        is_reported = any(finding.text == str(error) for finding in findings)
        return findings if is_reported else [*findings, Finding(folder, False, str(error))]
    findings.append(Finding(folder, True, "opens"))
    parts: Iterable[Any] = ()
    if isinstance(model, SeparateRuns):
        parts = model.runs.values()
    elif isinstance(model, Mixture):
        parts = model.models
    return [*findings, *(finding for part in parts for finding in check(part.folder))]


def _check_files(folder: Path) -> Iterator[Finding]:
    """Check the files of a folder, without those of subfolders."""
    try:
        listed = digests.read(folder)
    except UserError as error:
        yield Finding(folder / digests.FILE, False, str(error))
        return
    if not listed:
        text = f"no {digests.FILE}: it was deleted; only tensors have a checksum"
        yield Finding(folder / digests.FILE, True, text)
    names = {path.name for path in input_files.list_visible(folder) if path.is_file()} - {"README.md", digests.FILE}
    for name in sorted(names | {name for name, is_listed in listed.items() if is_listed}):
        yield _check_file(folder / name, bool(listed.get(name)))


def _check_file(path: Path, is_listed: bool) -> Finding:
    """Try to read a file; a deleted file is valid. `is_listed` is whether the manifest has a digest of the file."""
    if not path.exists():
        # If the model needs the file, opening the model reports an error.
        return Finding(path, True, "deleted since it was written")
    has_tensors = path.suffix == ".safetensors"
    reader: Callable[[Path], Any] = READERS.get(path.name, files.load_tensors if has_tensors else files.read)
    try:
        reader(path)
    except UserError as error:
        return Finding(path, False, str(error))
    if is_listed or has_tensors:
        return Finding(path, True, "as it was written")
    return Finding(path, True, "readable, not in the manifest" if path.name in READERS else "not in the manifest")
