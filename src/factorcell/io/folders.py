"""Errors about paths that a command does not accept; the messages say what the path contains."""

from pathlib import Path

from factorcell.errors import UserError
from factorcell.io import input_files

CONFIG = "config.json"  # the file that identifies a run folder

# Folders of other models, by the file that identifies them: a description, and the commands that accept the folder.
OTHER_MODELS = {
    "ngram.json": ("an n-gram model", "evaluate, rescore, mix and report"),
    "mixture.json": ("a mixture of models", "evaluate and mix"),
}


def not_a_run_error(folder: Path, expected: str = "a run folder") -> UserError:
    """Return the error about a path that is not what the caller expects.

    Args:
        folder: The path.
        expected: What the caller expects, with an article.

    Returns:
        An error that says what the path contains and which commands accept it.
    """
    return UserError(f"{folder}: expected {expected}, got {_describe(folder)}")


def _describe(folder: Path) -> str:
    if not folder.exists():
        return "a path that does not exist"
    if not folder.is_dir():
        return "a file"
    for file_name, (model, commands) in OTHER_MODELS.items():
        if (folder / file_name).is_file():
            return f"the folder of {model}, which {commands} accept"
    if config_files := input_files.list_visible(folder, f"*/{CONFIG}"):
        return f"a folder of runs, such as {config_files[0].parent}"
    return f"a folder without {CONFIG}"
