"""Small git repositories and the files that public ones hold."""

import csv
import io
import os
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

Files = Mapping[str, str | bytes]
WHO = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "Ann", "GIT_COMMITTER_EMAIL": "a@b"}


def git(folder: Path, *arguments: str, **surroundings: str) -> str:
    """What git prints, nothing of this machine's settings at work."""
    quiet = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **surroundings}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=quiet, text=True
    ).stdout.strip()


def made(folder: Path, files: Files, subject: str = "All files", **surroundings: str) -> Path:
    """A repository, or one commit more of it, with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", f"--message={subject}", **surroundings)
    return folder


def table(*lines: Sequence[str]) -> str:
    """Lines of a CSV file."""
    out = io.StringIO()
    csv.writer(out).writerows(lines)
    return out.getvalue()


def packed(name: str, content: str) -> bytes:
    """An archive of one file, and what one computer adds to every archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, content)
        archive.writestr(f"__MACOSX/._{name}", "")
    return out.getvalue()
