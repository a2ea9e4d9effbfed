"""Small git repositories with files in the form of the public sources."""

import csv
import io
import os
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

Files = Mapping[str, str | bytes]
AUTHOR = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(folder: Path, *arguments: str, **environment: str) -> str:
    """Run git without the settings of this machine and return its output."""
    settings = {**os.environ, **AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **environment}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=settings, text=True
    ).stdout.strip()


def commit_files(folder: Path, files: Files, subject: str = "All files", **environment: str) -> Path:
    """Commit files to a repository, which is created if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", f"--message={subject}", **environment)
    return folder


def table(*lines: Sequence[str]) -> str:
    """Return lines of a CSV file."""
    out = io.StringIO()
    csv.writer(out).writerows(lines)
    return out.getvalue()


def zip_file(name: str, content: str) -> bytes:
    """Return a ZIP archive of one file, with the extra entry that macOS adds."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, content)
        archive.writestr(f"__MACOSX/._{name}", "")
    return out.getvalue()
