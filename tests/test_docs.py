"""The documentation: its code runs, its links and options are valid, and its lines are short.

Each check takes the root of a source tree and returns its faults as readable lines; the tests below run each check on a
small tree with exactly one fault. A block of code that is not run states the reason in a comment right before it:
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
from factorcell.commands.cli.main import COMMANDS, main, make_parser
from factorcell.config import EXTENSIBLE, Config
from factorcell.training import rules
from tests import docs_files

ROOT = Path(__file__).parent.parent
WIDTH, README_LINES = 120, 150
DEVELOPER_PAGES = ("architecture.md", "extending.md", "glossary.md")  # they name classes that users do not need

GENERATED = re.compile(r"^<!-- ([^\n]+) -->\n.*?^<!-- end of \1 -->$", re.MULTILINE | re.DOTALL)  # written by a program
REASON = re.compile(r"<!-- not run: .+ -->")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
REPOSITORY_FILE = re.compile(r"\b(?:src|examples|experiments|benchmarks|tests)/[a-z0-9_/*]+\.[a-z]+")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMAND_ROW = re.compile(r"^\| [^|]*\]\([^|]*\| (`[^|]*) \|$", re.MULTILINE)  # a purpose with a link, and its commands
OTHER_OPTIONS = {"--upgrade", "--index-url", "--extra-index-url", "--no-deps"}  # of pip
OTHER_OPTIONS |= {"--nproc-per-node", "--max-restarts", "--prefixes", "--names"}  # of torchrun and scripts
OTHER_OPTIONS |= {"--module", "--nnodes", "--node-rank", "--master-addr", "--master-port"}  # of torchrun
OTHER_OPTIONS |= {"--output-dir", "--num-train-epochs", "--activation-checkpointing"}  # of Trainer
OTHER_OPTIONS |= {"--use-cpu", "--fsdp"}  # of Trainer
OTHER_OPTIONS |= {"--system", "--home-dir", "--create-home", "--shell", "--now"}  # of useradd and systemctl
OTHER_OPTIONS |= {"--format", "--table", "--file", "--clean", "--if-exists", "--dbname", "--rdb"}  # of databases
OTHER_OPTIONS |= {"--data", "--results", "--docs"}  # of the scripts under experiments/ and benchmarks/
OTHER_OPTIONS |= {"--exclude", "--local-dir"}  # of hf
OTHER_OPTIONS |= {"--rm", "--detach", "--wait", "--entrypoint"}  # of docker compose
OTHER_OPTIONS |= {"--from-file", "--from-literal"}  # of kubectl
OTHER_OPTIONS |= {
    "--lora-init-without-apply",
    "--enable-lora",
    "--lora-modules",
    "--max-lora-rank",
    "--max-loras",
    "--lora",
}  # of vLLM, llama.cpp
OTHER_OPTIONS |= {"--task", "--master"}  # of the examples for Ray and Spark, and of spark-submit
OTHER_OPTIONS |= {"--fc-accent", "--fc-active", "--fc-radius"}  # colors and lengths of a web page


class Block(NamedTuple):
    """A fenced block of code; `has_reason`: it states why it is not run."""

    line: int
    language: str
    code: str
    has_reason: bool


def pages(root: Path) -> list[Path]:
    """Return the paths of the README and all pages."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, except directives such as `{toctree}`."""
    result, lines, begin = [], text.split("\n"), None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if begin is None:
            begin = number
            continue
        language = lines[begin].strip().removeprefix("```")
        if not language.startswith("{"):
            has_reason = bool(begin and REASON.fullmatch(lines[begin - 1]))
            result.append(Block(begin + 2, language, "\n".join(lines[begin + 1 : number]), has_reason))
        begin = None
    return result


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def slugs(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and the site generate them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(root: Path) -> list[str]:
    """Find links to files and headings that do not exist."""
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
    """Find repository files in code spans that do not exist; `x_*.toml` matches any such file."""
    return [
        f"{page.name}: no file {name}"
        for page in pages(root)
        for name in REPOSITORY_FILE.findall(" ".join(CODE.findall(prose(page.read_text(encoding="utf-8")))))
        if not list(root.glob(name))
    ]


def long_lines(root: Path) -> list[str]:
    """Find lines of more than `WIDTH` characters, except in generated tables, and a README that is too long."""
    faults = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        lines = GENERATED.sub(lambda match: re.sub(r"(?m)^\|.*$", "", match.group()), text).splitlines()
        if page.name == "README.md" and len(lines) > README_LINES:
            faults.append(f"README.md: {len(lines)} lines, at most {README_LINES}")
        faults += [f"{page.name}:{n}: {len(line)} characters" for n, line in enumerate(lines, 1) if len(line) > WIDTH]
    return faults


def unexplained_blocks(root: Path) -> list[str]:
    """Find blocks that no test runs and that state no reason, and code without a fence."""
    faults = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        faults += [
            f"{page.name}:{block.line}: {block.language or 'a block'} is not run and does not say why"
            for block in blocks(text)
            if not block.has_reason and block.language not in RUNNERS
        ]
        faults += [f"{page.name}: code without a fence: {line}" for line in re.findall(r"\n\n(    .+)", prose(text))]
    return faults


def unknown_options(root: Path, known: dict[str, set[str]]) -> list[str]:
    """Find options that no command has, or not the command in the same code; `known` is `options_of_commands`."""
    all_options, faults = OTHER_OPTIONS.union(*known.values()), []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        for code in [*CODE.findall(prose(text)), *(block.code for block in blocks(text))]:
            command = (code.removeprefix("factorcell ").split() or [""])[0]
            valid = known[command] if command in known and "\n" not in code else all_options
            unknown = [option for option in OPTION.findall(code) if option not in valid]
            faults += [f"{page.name}: {option} in {code[:60]!r}" for option in unknown]
    return faults


def wrong_commands(root: Path, known: dict[str, set[str]]) -> list[str]:
    """Find commands that the README's table lacks or invents."""
    rows = COMMAND_ROW.findall((root / "README.md").read_text(encoding="utf-8"))
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    return [f"{name}: not in the README's table" for name in sorted(known.keys() - set(listed))] + [
        f"{name}: only in the README's table" for name in sorted(set(listed) - known.keys())
    ]


def missing_make_commands(root: Path) -> list[str]:
    """Find what the README lacks: before pip, `make demo` and `make test` with their minutes; and unknown targets."""
    targets = set(
        re.findall(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0].split()
    )
    beginning, _, _ = (root / "README.md").read_text(encoding="utf-8").partition("pip install")
    in_code = {line for block in blocks(beginning) if block.language == "bash" for line in block.code.splitlines()}
    faults = [
        f"README.md: no line `make {name}    # N minutes` before pip"
        for name in ("demo", "test")
        if not any(re.fullmatch(rf"make {name} +# \d+ minutes.*", line) for line in in_code)
    ]
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        codes = [*CODE.findall(prose(text)), *(line for block in blocks(text) for line in block.code.splitlines())]
        called = {name for code in codes for name in re.findall(r"^make ([a-z-]+)\b(?!=)", code)}
        faults += [f"{page.name}: make {name} is not a target of the Makefile" for name in sorted(called - targets)]
    return faults


def undescribed_names(root: Path) -> list[str]:
    """Find public names that the reference lacks."""
    text = (root / "docs" / "reference.md").read_text(encoding="utf-8")
    return [name for name in factorcell.__all__ if not re.search(rf"::\s+factorcell\.{name}$", text, re.MULTILINE)]


def undescribed_classes(root: Path) -> list[str]:
    """Find classes of factorcell that pages for users call or whose members they name, but that the reference lacks."""
    reference = (root / "docs" / "reference.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "factorcell").rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", sources, re.MULTILINE))
    described = set(re.findall(r"^\.\. autoclass:: [\w.]*\b(\w+)$", reference, re.MULTILINE))
    return [
        f"{page.name}: {name} is not in reference.md"
        for page in pages(root)
        if page.name not in DEVELOPER_PAGES
        for code in CODE.findall(prose(page.read_text(encoding="utf-8")))
        for name in re.findall(r"^([A-Z]\w*)(?:\(|\.[a-z])", code)
        if name in classes - described
    ]


def run_shell(text: str, names: dict[str, Any], where: str) -> None:
    """Run every command of a block with small sizes; its output folder is removed first."""
    for line in text.replace("\\\n", " ").splitlines():
        words = [name for word in shlex.split(line, comments=True) for name in (sorted(glob.glob(word)) or [word])]
        if not words:
            continue
        assert words[0] == "factorcell", f"{where}: {words[0]} is not factorcell; state why it is not run"
        if "--out" in words and "--resume" not in words:
            out = Path(words[words.index("--out") + 1])
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        try:
            code = main(docs_files.with_small_sizes(words[1:]))
        except SystemExit as stop:  # raised by argparse
            code = int(stop.code or 0)
        assert code == 0, f"{where}: {line}"


def run_python(code: str, names: dict[str, Any], where: str) -> None:
    """Run a block with the names of earlier blocks on its page, and small configs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, "from_dict", docs_files.small_config)
        exec(compile(code, where, "exec"), names)


def run_toml(code: str, names: dict[str, Any], where: str) -> None:
    """Write a block into the file that its first line names, for later commands."""
    tomllib.loads(code)
    Path(code.split("\n")[0].removeprefix("# ")).write_text(code, encoding="utf-8")


def run_json(code: str, names: dict[str, Any], where: str) -> None:
    """Parse a block."""
    json.loads(code)


RUNNERS = {"bash": run_shell, "python": run_python, "toml": run_toml, "json": run_json}


@pytest.fixture(scope="session")
def docs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the pages use."""
    folder = tmp_path_factory.mktemp("docs_folder")
    docs_files.write_tables(folder)
    docs_files.write_lists(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        docs_files.write_runs(folder, main)
    return folder


@pytest.fixture(scope="session")
def options_of_commands() -> dict[str, set[str]]:
    """The options of every command, including those of its subcommands and of a Transformer as backbone."""
    options: dict[str, set[str]] = {}
    kinds = ((), ("--architecture", "llama"))
    for command in COMMANDS:
        flags = {flag for words in kinds for flag in make_parser(command, words).flags}
        options.setdefault(command.split()[0], set()).update(flags)
    return options


WITH_CODE = [page for page in pages(ROOT) if not all(b.has_reason for b in blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_of_the_page_runs(page: Path, docs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(docs_folder, tmp_path / "docs_folder")
    monkeypatch.chdir(folder)
    for registry in EXTENSIBLE.values():
        monkeypatch.setattr(registry, "registered", {})
    for name in ("MAX_PASSES", "MAX_WORD_PASSES"):
        monkeypatch.setattr(rules, name, 0.1)  # for blocks that do not set the number of passes
    names: dict[str, Any] = {"__name__": page.stem}
    if docs_files.BASE in page.read_text(encoding="utf-8"):
        docs_files.write_base(folder / docs_files.BASE)
    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.has_reason:
            RUNNERS[block.language](block.code, names, f"{page.name}:{block.line}")


def test_blocks_links_files_lines_and_names_are_valid() -> None:
    faults = unexplained_blocks(ROOT) + broken_links(ROOT) + missing_files(ROOT)
    faults += missing_make_commands(ROOT)
    assert faults + long_lines(ROOT) + undescribed_names(ROOT) + undescribed_classes(ROOT) == []


def test_commands_and_options_exist(options_of_commands: dict[str, set[str]]) -> None:
    assert wrong_commands(ROOT, options_of_commands) + unknown_options(ROOT, options_of_commands) == []


def test_the_options_page_matches_the_config() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "options.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"]()


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site needs the extra docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run([*command, ROOT / "docs", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    built = {str(path.relative_to(tmp_path)): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    assert "<math" in built["adaptations.html"]
    assert not [name for name, text in built.items() if re.search(r"<(script|link|img)[^>]*(src|href)=.https?:", text)]


def write_pages(folder: Path, readme: str = "", page: str = "") -> Path:
    """Write a tree with a README and one page."""
    (folder / "docs").mkdir(parents=True)
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
        ("\n" * 151, "", long_lines, "README.md: 151 lines, at most 150"),
        ("", "```text\nx\n```", unexplained_blocks, "page.md:2: text is not run and does not say why"),
        ("", "a\n\n    x = 1", unexplained_blocks, "page.md: code without a fence:     x = 1"),
    ],
)
def test_faults_are_found(tmp_path: Path, readme: str, page: str, check: Any, fault: str) -> None:
    assert check(write_pages(tmp_path, readme, page)) == [fault]


def test_classes_that_the_reference_lacks_are_found(tmp_path: Path) -> None:
    root = write_pages(tmp_path, page="`Learner.learn`, `LearningRule()`, `Run.open`, `Learner`, `Numpy.array`")
    (root / "docs" / "reference.md").write_text(".. autoclass:: factorcell.Run\n", encoding="utf-8")
    faults = [f"page.md: {name} is not in reference.md" for name in ("Learner", "LearningRule")]
    assert undescribed_classes(root) == faults


GOOD_README = "```bash\nmake demo  # 4 minutes\nmake test  # 6 minutes: tests\n```\n```bash\npip install .\n```\n"


@pytest.mark.parametrize(
    ("readme", "page", "fault"),
    [
        (GOOD_README.replace("make demo", "make x"), "", "README.md: no line `make demo    # N minutes` before pip"),
        (GOOD_README.replace("6 minutes", "tests"), "", "README.md: no line `make test    # N minutes` before pip"),
        (f"pip install\n{GOOD_README}", "", "README.md: no line `make demo    # N minutes` before pip"),
        (GOOD_README.replace("```", "~~~"), "", "README.md: no line `make demo    # N minutes` before pip"),
        (GOOD_README, "`make love`", "page.md: make love is not a target of the Makefile"),
        (GOOD_README, "```bash\nmake love VENV=x\n```", "page.md: make love is not a target of the Makefile"),
    ],
)
def test_missing_commands_of_make_are_found(tmp_path: Path, readme: str, page: str, fault: str) -> None:
    root = write_pages(tmp_path, readme, page)
    (root / "Makefile").write_text(".PHONY: demo test x\n", encoding="utf-8")
    assert fault in missing_make_commands(root)
    write_pages(tmp_path / "other", GOOD_README, "`make test ARGS=x`, `make VENV=y`")
    (tmp_path / "other" / "Makefile").write_text(".PHONY: demo test\n", encoding="utf-8")
    assert missing_make_commands(tmp_path / "other") == []


def test_wrong_commands_and_options_are_found(tmp_path: Path) -> None:
    table, known = "| [x](y) | `train` |\n| [x](y) | `sing` |", {"train": {"--out"}, "score": {"--tokens"}}
    root = write_pages(tmp_path, table, "`--loud`, `train --out x`, `train --tokens`, `--tokens`")
    assert wrong_commands(root, known) == ["score: not in the README's table", "sing: only in the README's table"]
    assert unknown_options(root, known) == ["page.md: --loud in '--loud'", "page.md: --tokens in 'train --tokens'"]


def test_reasons_and_wrong_code_are_detected() -> None:
    (block,) = blocks("<!-- not run: no reason -->\n```bash\nrm x\n```")
    assert block == (3, "bash", "rm x", True)
    with pytest.raises(AssertionError, match="rm is not factorcell"):
        run_shell("rm x", {}, "page.md:3")
    with pytest.raises(AssertionError, match=r"page\.md:3: factorcell score gone x\.csv"):
        run_shell("factorcell score gone x.csv", {}, "page.md:3")
    with pytest.raises(NameError):
        run_python("gone", {}, "page.md:3")
    with pytest.raises(tomllib.TOMLDecodeError):
        run_toml("# x.toml\nx = ", {}, "page.md:3")
