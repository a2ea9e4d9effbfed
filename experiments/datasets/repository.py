"""Read a commit of a public repository with git; no file is checked out or executed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from factorcell.errors import UserError

QUIET = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # never ask for a password; errors in English


class Repository:
    """The `commit` of the repository `name` (owner/name), cloned to `folder` with or without a working tree."""

    def __init__(self, name: str, folder: Path, commit: str) -> None:
        self.name = name
        self._folder = folder / ".git" if (folder / ".git").exists() else folder
        self.commit = self._git("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}").decode().strip()
        self._stack = ExitStack()
        self._reader: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def paths(self, under: str = "", ending: str = "") -> list[str]:
        """Return the sorted paths of all files that begin with `under`. Raises `UserError` if there are none."""
        paths = sorted(path for path in self._blobs if path.startswith(under) and path.endswith(ending))
        if not paths:
            raise UserError(f"{self}: no file {under}*{ending}")
        return paths

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises `UserError` if it does not exist or the clone lacks it."""
        if path not in self._blobs:
            raise UserError(f"{self}: no file {path}")
        reader = self._start_reader()
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(f"{self._blobs[path]}\n".encode())
        reader.stdin.flush()
        answer = reader.stdout.readline().split()  # name, kind, size; or name, "missing"
        if len(answer) != 3:
            raise UserError(f"{self}: the clone lacks the content of {path}; make a complete clone")
        content = reader.stdout.read(int(answer[2]))
        reader.stdout.read(1)
        return content

    def text(self, path: str) -> str:
        """Return a UTF-8 file as text without byte order mark. Raises `UserError` if it is not UTF-8."""
        try:
            return self.read(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{self}: {path} is not UTF-8 (byte {error.start})") from None

    def log(self, form: str) -> Iterator[str]:
        """Yield an entry of `git log` for each commit except merges, oldest first; `form` is that of `--format`."""
        output = self._git("log", "--no-merges", "--reverse", "-z", f"--format={form}", self.commit)
        yield from (entry for entry in output.decode("utf-8", "replace").split("\0") if entry)

    @cached_property
    def _blobs(self) -> dict[str, str]:
        lines = os.fsdecode(self._git("ls-tree", "-r", "-z", "--full-tree", self.commit)).split("\0")
        entries = (entry.partition("\t") for entry in lines if entry)
        return {path: facts.split()[2] for facts, _, path in entries if facts.split()[1] == "blob"}

    def __str__(self) -> str:
        return f"{self.name} at {self.commit[:12]}"

    def _start_reader(self) -> "subprocess.Popen[bytes]":
        if self._reader is None:
            command = ["git", f"--git-dir={self._folder}", "cat-file", "--batch"]
            environment = {**os.environ, **QUIET, "GIT_NO_LAZY_FETCH": "1"}
            self._reader = self._stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
                )
            )
        return self._reader

    def _git(self, *arguments: str) -> bytes:
        return git(f"--git-dir={self._folder}", *arguments, about=self.name)


def open_repository(name: str, commit: str, origin: str, clones: Path, history: bool = False) -> Repository:
    """Open a `commit` (or "HEAD") of the clone or address `origin`; commits from addresses are stored in `clones`."""
    if Path(origin).is_dir():
        return Repository(name, Path(origin), commit)
    clone = clones / name.replace("/", "+")
    if clone.is_dir() and commit != "HEAD":
        try:
            return Repository(name, clone, commit)
        except UserError:  # the clone has another commit
            shutil.rmtree(clone)
    fetch_commit(name, commit, origin, clone, history)
    return Repository(name, clone, "FETCH_HEAD")


def fetch_commit(name: str, commit: str, origin: str, folder: Path, history: bool) -> None:
    partial_folder = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial_folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    git("init", "--quiet", "--bare", str(partial_folder), about=name)
    extent = ["--filter=tree:0"] if history else ["--depth=1"]
    try:
        git(f"--git-dir={partial_folder}", "fetch", "--quiet", "--no-tags", *extent, "--", origin, commit, about=name)
    except UserError:
        shutil.rmtree(partial_folder)
        raise
    partial_folder.rename(folder)


def git(*arguments: str, about: str) -> bytes:
    """Run git and return its output. Raises `UserError` with the fatal message if it fails."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=True, env={**os.environ, **QUIET})
    except FileNotFoundError:
        raise UserError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().split("\n")
        fatal = next((line for line in lines if line.startswith("fatal: ")), lines[-1])
        raise UserError(f"{about}: {fatal.removeprefix('fatal: ') or 'git failed'}") from None
    return done.stdout
