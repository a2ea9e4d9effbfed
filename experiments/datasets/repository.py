"""A commit of a public repository, read with git: nothing of it is checked out, nothing of it is run."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from factorcell.config import UserError

QUIET = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # never ask for a password; errors in English


class Repository:
    """The `commit` of the repository `name` (owner/name), which lies in `folder`, a clone with or without files."""

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
        """The paths of all files that begin with `under`, sorted. `UserError` where there is none."""
        paths = sorted(path for path in self._blobs if path.startswith(under) and path.endswith(ending))
        if not paths:
            raise UserError(f"{self}: there is no file {under}*{ending}")
        return paths

    def read(self, path: str) -> bytes:
        """What a file holds. `UserError` where there is none, or a clone without contents lacks it."""
        if path not in self._blobs:
            raise UserError(f"{self}: there is no file {path}")
        reader = self._opened()
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(f"{self._blobs[path]}\n".encode())
        reader.stdin.flush()
        answer = reader.stdout.readline().split()  # name, kind, size; or name, "missing"
        if len(answer) != 3:
            raise UserError(f"{self}: the clone lacks what {path} holds; fetch it whole")
        content = reader.stdout.read(int(answer[2]))
        reader.stdout.read(1)
        return content

    def text(self, path: str) -> str:
        """A file of UTF-8, a mark of the order of bytes left out. `UserError` where it is anything else."""
        try:
            return self.read(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{self}: {path} is no UTF-8 (byte {error.start})") from None

    def log(self, form: str) -> Iterator[str]:
        """What `git log` tells of every commit that is no merge, oldest first; `form` is that of `--format`."""
        output = self._git("log", "--no-merges", "--reverse", "-z", f"--format={form}", self.commit)
        yield from (entry for entry in output.decode("utf-8", "replace").split("\0") if entry)

    @cached_property
    def _blobs(self) -> dict[str, str]:
        """The names that git gives to the contents of all files, by their paths."""
        listed = os.fsdecode(self._git("ls-tree", "-r", "-z", "--full-tree", self.commit)).split("\0")
        entries = (entry.partition("\t") for entry in listed if entry)
        return {path: facts.split()[2] for facts, _, path in entries if facts.split()[1] == "blob"}

    def __str__(self) -> str:
        return f"{self.name} at {self.commit[:12]}"

    def _opened(self) -> "subprocess.Popen[bytes]":
        """A process of git that answers with the contents of one file after the other."""
        if self._reader is None:
            command = ["git", f"--git-dir={self._folder}", "cat-file", "--batch"]
            surroundings = {**os.environ, **QUIET, "GIT_NO_LAZY_FETCH": "1"}
            self._reader = self._stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=surroundings,
                )
            )
        return self._reader

    def _git(self, *arguments: str) -> bytes:
        return git(f"--git-dir={self._folder}", *arguments, about=self.name)


def open_repository(name: str, commit: str, origin: str, clones: Path, history: bool = False) -> Repository:
    """A `commit` of the repository at `origin`: the folder of a clone, or an address.

    What comes from an address is kept in a folder of `clones`: the files of the commit alone, or, with `history`, all
    commits before it and no files. `commit` may be "HEAD".
    """
    if Path(origin).is_dir():
        return Repository(name, Path(origin), commit)
    clone = clones / name.replace("/", "+")
    if clone.is_dir() and commit != "HEAD":
        try:
            return Repository(name, clone, commit)
        except UserError:  # kept from another commit
            shutil.rmtree(clone)
    fetch_commit(name, commit, origin, clone, history)
    return Repository(name, clone, "FETCH_HEAD")


def fetch_commit(name: str, commit: str, origin: str, folder: Path, history: bool) -> None:
    """Fetch a commit into the new `folder`, which is there only when all of it is."""
    half = folder.with_name(folder.name + ".partial")
    shutil.rmtree(half, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    half.mkdir(parents=True)
    git("init", "--quiet", "--bare", str(half), about=name)
    least = ["--filter=tree:0"] if history else ["--depth=1"]
    try:
        git(f"--git-dir={half}", "fetch", "--quiet", "--no-tags", *least, "--", origin, commit, about=name)
    except UserError:
        shutil.rmtree(half)
        raise
    half.rename(folder)


def git(*arguments: str, about: str) -> bytes:
    """What git prints. `UserError` with what it says is fatal where it fails."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=True, env={**os.environ, **QUIET})
    except FileNotFoundError:
        raise UserError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().split("\n")
        fatal = next((line for line in lines if line.startswith("fatal: ")), lines[-1])
        raise UserError(f"{about}: {fatal.removeprefix('fatal: ') or 'git failed'}") from None
    return done.stdout
