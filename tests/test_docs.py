"""The documentation, checked: its code runs, its links lead somewhere, its options exist, its lines are short.

Each check takes the root of a tree and returns its faults as lines to read; the tests below hold each of them against
a small tree that has exactly that fault. A block of code that is not run says why in a comment right before it:
`<!-- not run: it takes an hour -->`.
"""

import glob
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import factorcell
from factorcell.commands.main import ROOT_COMMAND, find_commands, main, make_parser
from factorcell.config import EXTENSIBLE, Config
from factorcell.training import rules
from tests import docs_files

ROOT = Path(__file__).parent.parent
WIDTH, README_LINES = 120, 160

MADE = re.compile(r"^<!-- ([^\n]+) -->\n.*?^<!-- end of \1 -->$", re.MULTILINE | re.DOTALL)  # by a program
REASON = re.compile(r"<!-- not run: .+ -->")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
OWN_FILE = re.compile(r"\b(?:src|experiments|benchmarks|tests)/[a-z0-9_/*]+\.[a-z]+")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
VERB_ROW = re.compile(r"^\| `([a-z-]+)` \|.*\]\(", re.MULTILINE)
FOREIGN = {"--upgrade", "--index-url", "--extra-index-url", "--no-deps"}  # not ours
FOREIGN |= {"--nproc-per-node", "--max-restarts", "--prefixes"}
FOREIGN |= {"--system", "--home-dir", "--create-home", "--shell", "--now"}  # of useradd and systemctl
FOREIGN |= {"--format", "--table", "--file", "--clean", "--if-exists", "--dbname", "--rdb"}  # of databases
FOREIGN |= {"--data", "--results"}  # of the scripts under experiments/
FOREIGN |= {"--fc-accent", "--fc-active", "--fc-radius"}  # colours and lengths of a web page


class Block(NamedTuple):
    """A fenced block: where its code begins, its language, its code, and whether a reason not to run it is given."""

    line: int
    language: str
    code: str
    excused: bool


def pages(root: Path) -> list[Path]:
    """README and every page."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, those of directives (`{toctree}`) left out."""
    found, lines, begin = [], text.split("\n"), None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if begin is None:
            begin = number
            continue
        language = lines[begin].strip().removeprefix("```")
        if not language.startswith("{"):
            excused = bool(begin and REASON.fullmatch(lines[begin - 1]))
            found.append(Block(begin + 2, language, "\n".join(lines[begin + 1 : number]), excused))
        begin = None
    return found


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def slugs(text: str) -> set[str]:
    """The anchors that GitHub and the site give the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(root: Path) -> list[str]:
    """Links to files and headings that are not there."""
    faults = []
    for page in pages(root):
        for target in LINK.findall(CODE.sub("", prose(page.read_text(encoding="utf-8")))):
            if target.startswith(("https://", "http://")):
                continue
            name, _, anchor = target.partition("#")
            path = page.parent / name if name else page
            if not path.exists():
                faults.append(f"{page.name}: no file {target}")
            elif anchor and anchor not in slugs(path.read_text(encoding="utf-8")):
                faults.append(f"{page.name}: no heading {target}")
    return faults


def missing_files(root: Path) -> list[str]:
    """Files of ours that code in a sentence names and that are not there; `x_*.toml` is any file of that kind."""
    return [
        f"{page.name}: no file {name}"
        for page in pages(root)
        for name in OWN_FILE.findall(" ".join(CODE.findall(prose(page.read_text(encoding="utf-8")))))
        if not list(root.glob(name))
    ]


def long_lines(root: Path) -> list[str]:
    """Lines of more than `WIDTH` characters, and a README that is no page any more.

    The lines of a table that is made from rows are as long as its figures are.
    """
    faults = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        lines = MADE.sub(lambda made: re.sub(r"(?m)^\|.*$", "", made.group()), text).splitlines()
        if page.name == "README.md" and len(lines) > README_LINES:
            faults.append(f"README.md: {len(lines)} lines, at most {README_LINES}")
        faults += [f"{page.name}:{n}: {len(line)} characters" for n, line in enumerate(lines, 1) if len(line) > WIDTH]
    return faults


def silent_blocks(root: Path) -> list[str]:
    """Blocks that no test runs and that do not say why; code without a fence."""
    faults = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        faults += [
            f"{page.name}:{block.line}: {block.language or 'a block'} is not run and does not say why"
            for block in blocks(text)
            if not block.excused and block.language not in RUNNERS
        ]
        faults += [f"{page.name}: code without a fence: {line}" for line in re.findall(r"\n\n(    .+)", prose(text))]
    return faults


def unknown_options(root: Path, known: dict[str, set[str]]) -> list[str]:
    """Options that no verb has, or not the verb that they are named with; `known` is `options_of_verbs`."""
    anywhere, faults = FOREIGN.union(*known.values()), []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        for code in [*CODE.findall(prose(text)), *(block.code for block in blocks(text))]:
            verb = (code.removeprefix("factorcell ").split() or [""])[0]
            of = known[verb] if verb in known and "\n" not in code else anywhere
            faults += [f"{page.name}: {option} in {code[:60]!r}" for option in OPTION.findall(code) if option not in of]
    return faults


def wrong_verbs(root: Path, known: dict[str, set[str]]) -> list[str]:
    """Verbs that the README's table omits or invents."""
    named = VERB_ROW.findall((root / "README.md").read_text(encoding="utf-8"))
    return [f"{verb}: not in the README's table" for verb in sorted(known.keys() - set(named))] + [
        f"{verb}: only in the README's table" for verb in sorted(set(named) - known.keys())
    ]


def undescribed_names(root: Path) -> list[str]:
    """Public names that the reference omits."""
    text = (root / "docs" / "reference.md").read_text(encoding="utf-8")
    return [name for name in factorcell.__all__ if not re.search(rf"::\s+factorcell\.{name}$", text, re.MULTILINE)]


def run_shell(text: str, names: dict[str, Any], where: str) -> None:
    """Run every command of a block, made small; a folder that it writes anew is removed first."""
    for line in text.replace("\\\n", " ").splitlines():
        words = [name for word in shlex.split(line, comments=True) for name in (sorted(glob.glob(word)) or [word])]
        if not words:
            continue
        assert words[0] == "factorcell", f"{where}: {words[0]} is no command of ours; say why it is not run"
        if "--out" in words and "--resume" not in words:
            out = Path(words[words.index("--out") + 1])
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        try:
            code = main(docs_files.small(words[1:]))
        except SystemExit as stop:  # by argparse
            code = int(stop.code or 0)
        assert code == 0, f"{where}: {line}"


def run_python(code: str, names: dict[str, Any], where: str) -> None:
    """Run a block; it finds the names of those before it on its page, and configs are small where it says nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, "from_dict", docs_files.small_config)
        exec(compile(code, where, "exec"), names)


def run_toml(code: str, names: dict[str, Any], where: str) -> None:
    """Write a block into the file that its first line names, for the commands that follow."""
    tomllib.loads(code)
    Path(code.split("\n")[0].removeprefix("# ")).write_text(code, encoding="utf-8")


def run_json(code: str, names: dict[str, Any], where: str) -> None:
    """Read a block."""
    json.loads(code)


RUNNERS = {"bash": run_shell, "python": run_python, "toml": run_toml, "json": run_json}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the pages name."""
    folder = tmp_path_factory.mktemp("world")
    docs_files.write_tables(folder)
    docs_files.write_lists(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        docs_files.write_runs(folder, main)
    return folder


@pytest.fixture(scope="session")
def options_of_verbs() -> dict[str, set[str]]:
    """The options of every verb, those of its kinds among them."""
    found = {}
    for verb in ROOT_COMMAND.subcommands:
        kinds = [[verb.name, kind.name] for kind in verb.subcommands] or [[verb.name]]
        found[verb.name] = {option for words in kinds for option in make_parser(find_commands(words)).options}
    return found


WITH_CODE = [page for page in pages(ROOT) if not all(b.excused for b in blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs(page: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(world, tmp_path / "world")
    monkeypatch.chdir(folder)
    for more in EXTENSIBLE.values():
        monkeypatch.setattr(more, "registered", {})
    for most in ("MAX_PASSES", "MAX_WORD_PASSES"):
        monkeypatch.setattr(rules, most, 0.1)  # passes, where a block does not say how many
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.excused:
            RUNNERS[block.language](block.code, names, f"{page.name}:{block.line}")


def test_nothing_is_silent_broken_or_long() -> None:
    found = silent_blocks(ROOT) + broken_links(ROOT) + missing_files(ROOT)
    assert found + long_lines(ROOT) + undescribed_names(ROOT) == []


def test_verbs_and_options_exist(options_of_verbs: dict[str, set[str]]) -> None:
    assert wrong_verbs(ROOT, options_of_verbs) + unknown_options(ROOT, options_of_verbs) == []


def test_the_page_of_options_is_that_of_the_config() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "options.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"]()


@pytest.mark.slow
def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site needs the extra docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run([*command, ROOT / "docs", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    built = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.html")}
    assert "<math" in built["adaptations.html"]
    assert not [name for name, text in built.items() if re.search(r"<(script|link|img)[^>]*(src|href)=.https?:", text)]


def planted(folder: Path, readme: str = "", page: str = "") -> Path:
    """A tree of a README and a page."""
    (folder / "docs").mkdir()
    (folder / "README.md").write_text(readme, encoding="utf-8")
    (folder / "docs" / "page.md").write_text(page, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("readme", "page", "check", "fault"),
    [
        ("", "[x](gone.md)", broken_links, "page.md: no file gone.md"),
        ("[x](docs/page.md#b)", "# A", broken_links, "README.md: no heading docs/page.md#b"),
        ("", "see `src/gone.py`", missing_files, "page.md: no file src/gone.py"),
        ("", "x" * 121, long_lines, "page.md:1: 121 characters"),
        ("", f"<!-- a -->\n{'x' * 121}\n<!-- end of a -->", long_lines, "page.md:2: 121 characters"),
        ("", f"<!-- a -->\n| {'x' * 121}\n<!-- end of a -->\n| {'x' * 119}", long_lines, "page.md:4: 121 characters"),
        ("\n" * 161, "", long_lines, "README.md: 161 lines, at most 160"),
        ("", "```text\nx\n```", silent_blocks, "page.md:2: text is not run and does not say why"),
        ("", "a\n\n    x = 1", silent_blocks, "page.md: code without a fence:     x = 1"),
    ],
)
def test_faults_are_found(tmp_path: Path, readme: str, page: str, check: Any, fault: str) -> None:
    assert check(planted(tmp_path, readme, page)) == [fault]


def test_wrong_verbs_and_options_are_found(tmp_path: Path) -> None:
    table, known = "| `train` | x | [x](y) |\n| `sing` | x | [x](y) |", {"train": {"--out"}, "score": {"--tokens"}}
    root = planted(tmp_path, table, "`--loud`, `train --out x`, `train --tokens`, `--tokens`")
    assert wrong_verbs(root, known) == ["score: not in the README's table", "sing: only in the README's table"]
    assert unknown_options(root, known) == ["page.md: --loud in '--loud'", "page.md: --tokens in 'train --tokens'"]


def test_reasons_and_wrong_code_are_seen() -> None:
    (block,) = blocks("<!-- not run: no reason -->\n```bash\nrm x\n```")
    assert block == (3, "bash", "rm x", True)
    with pytest.raises(AssertionError, match="rm is no command of ours"):
        run_shell("rm x", {}, "page.md:3")
    with pytest.raises(AssertionError, match=r"page\.md:3: factorcell score gone x\.csv"):
        run_shell("factorcell score gone x.csv", {}, "page.md:3")
    with pytest.raises(NameError):
        run_python("gone", {}, "page.md:3")
    with pytest.raises(tomllib.TOMLDecodeError):
        run_toml("# x.toml\nx = ", {}, "page.md:3")
