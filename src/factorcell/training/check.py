"""Check a model folder: compare the files that determine results with the manifest (`digests`), then open the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell.completion.blend import BlendWeights
from factorcell.completion.online import SETTINGS, LearningRule
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.errors import UserError
from factorcell.io import digests, files, input_files
from factorcell.runs.run import Run
from factorcell.runs.training_state import NoWeightsYetError, describe_unfinished
from factorcell.training.mixture import MixedModels, open_scorer
from factorcell.training.proximal import StartingPoint

READERS: dict[str, Callable[[Path], Any]] = {  # readers, by file name, of the files that opening a model does not read
    **dict.fromkeys(("log.jsonl", "results.jsonl"), files.read_rows),
    "training.json": files.read_json,
    "start.safetensors": lambda path: StartingPoint.read(path.parent),
    SETTINGS: lambda path: (LearningRule.load(path.parent), BlendWeights.load(path.parent)),
    POPULARITY: TextCounts.open,
}


@dataclass(frozen=True)
class FileCheck:
    """The result of checking one file or folder.

    Attributes:
        path: The file or folder.
        is_valid: Whether no problem was found.
        text: A description of the result; if a problem was found, the error message.
    """

    path: Path
    is_valid: bool
    text: str


def check(folder: str | Path) -> list[FileCheck]:
    """Check the run, n-gram model or mixture in a folder.

    Args:
        folder: The folder of the model. If the model consists of other models, their folders are checked too.

    Returns:
        One result for each file, and one for each folder.

    Raises:
        UserError: If `folder` is not a folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: not a folder; expected the folder of a model")
    results = list(_check_files(folder))
    try:
        model: Any = open_scorer(folder)
    except NoWeightsYetError as error:
        return [*results, FileCheck(folder, is_valid=True, text=error.reason)]
    except UserError as error:
        is_reported = any(result.text == str(error) for result in results)
        return results if is_reported else [*results, FileCheck(folder, is_valid=False, text=str(error))]
    unfinished = describe_unfinished(folder) if isinstance(model, Run) else None
    results.append(FileCheck(folder, is_valid=True, text=f"opens; {unfinished}" if unfinished else "opens"))
    submodels = model.models if isinstance(model, MixedModels) else []
    return [*results, *(result for submodel in submodels for result in check(submodel.folder))]


def _check_files(folder: Path) -> Iterator[FileCheck]:
    """Check the files of a folder, without those of subfolders."""
    try:
        manifest = digests.read(folder)
    except UserError as error:
        yield FileCheck(folder / digests.FILE, is_valid=False, text=str(error))
        return
    if not manifest:
        text = f"no {digests.FILE}; only tensors have a checksum"
        yield FileCheck(folder / digests.FILE, is_valid=True, text=text)
    existing = {path.name for path in input_files.list_visible(folder) if path.is_file()} - {"README.md", digests.FILE}
    names_with_digest = {name for name, accepted_digests in manifest.items() if accepted_digests}
    for name in sorted(existing | names_with_digest):
        yield _check_file(folder / name, has_digest=name in names_with_digest)


def _check_file(path: Path, has_digest: bool) -> FileCheck:
    """Try to read a file; a deleted file is valid. `has_digest` is whether the manifest has a digest of the file."""
    if not path.exists():
        # If the model needs the file, opening the model reports an error.
        return FileCheck(path, is_valid=True, text="deleted since it was written")
    is_tensor_file = path.suffix == ".safetensors"
    reader: Callable[[Path], Any] = READERS.get(path.name, files.load_tensors if is_tensor_file else files.read)
    try:
        reader(path)
    except UserError as error:
        return FileCheck(path, is_valid=False, text=str(error))
    if has_digest or is_tensor_file:
        return FileCheck(path, is_valid=True, text="unchanged since it was written")
    text = "readable, not in the manifest" if path.name in READERS else "not in the manifest"
    return FileCheck(path, is_valid=True, text=text)
