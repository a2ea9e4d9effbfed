"""Lines that install software work from a clone or a wheel: the package is on no index."""

import ast
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from factorcell.data.tokenizers.bpe import import_library
from factorcell.io import extras
from factorcell.io.pretrained import transformers
from factorcell.service.stores.store import open_store
from factorcell.training.studies import import_optuna
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOLDERS = ("docs", "examples", "experiments", "benchmarks", "src", ".ci")
ENDINGS = (".md", ".py", ".ipynb", ".toml", ".txt", ".yml", ".yaml", ".sh", "Makefile", "run")
INSTALL = re.compile(r"(?:pip3?|uv(?: pip)?|pipx|uvx)\s+(?:install|add|run|sync)\b[^`\n]*|uvx [^`\n]*")
# A requirement: the name of a package or a path, and extras.
REQUIREMENT = re.compile(r"(?P<name>[^\[\]<>=!~@]+)(?:\[(?P<extras>[^\]]*)\])?(?:[<>=!~@].*)?")
OF_PIP = ("-c", "--constraint", "--index-url", "-i", "-r")  # options that have a value


def install_lines(root: Path) -> list[tuple[str, str]]:
    """Return the name of each file, and each command in it that installs software."""
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    lines = []
    for path in sorted([*root.glob("*.md"), *root.glob("*.toml"), *root.glob("Makefile"), *paths]):
        if path.is_file() and path.name.endswith(ENDINGS):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            text = text.replace("\\\n", " ")
            lines += [(path.name, command) for command in INSTALL.findall(text)]
            lines += [(path.name, line) for line in text.splitlines() if "--extra-index-url" in line]
    return lines


def faults_of(command: str) -> list[str]:
    """Return what is wrong with a command that installs software."""
    if "--extra-index-url" in command:
        is_warning = command.startswith("Do not use `--extra-index-url`")
        return [] if is_warning else ["--extra-index-url may install a package of another index"]
    faults = []
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # the end of a text in a program
        words = command.split()
    for option, word in zip(["", *words], words, strict=False):
        match = REQUIREMENT.fullmatch(word)
        if match is None or word.startswith("-") or option in OF_PIP:
            continue
        name, names = match["name"], match["extras"] or ""
        is_own = name.startswith((".", "/", "$", "dist/")) or "factorcell" in name
        if re.fullmatch(r"factorcell", name.strip("'\" ")):
            faults.append(f"{word}: factorcell is on no index")
        if is_own:
            faults += [f"{word}: no extra {extra!r}" for extra in filter(None, names.split(",")) if extra not in EXTRAS]
    return faults


def test_every_line_that_installs_software_works_from_a_clone_or_a_wheel() -> None:
    lines = install_lines(ROOT)
    files = {name for name, _ in lines}
    assert {"README.md", "install.md", "service.md", "production.md", "transformers.md", "tuning.md"} <= files
    assert [(name, fault) for name, command in lines for fault in faults_of(command)] == []
    texts = [(path, path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")]
    assert [path.name for path, text in texts if re.search(r"install[^\n]*factorcell", text)] == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("pip install factorcell", "factorcell: factorcell is on no index"),
        ("pip install --upgrade factorcell", "factorcell: factorcell is on no index"),
        ("pip install 'factorcell[serve]'", "factorcell[serve]: factorcell is on no index"),
        ("pip install 'factorcell>=0.1'  # x", "factorcell>=0.1: factorcell is on no index"),
        ("uv pip install factorcell[tune]", "factorcell[tune]: factorcell is on no index"),
        ("uv add factorcell", "factorcell: factorcell is on no index"),
        ("pip install '.[sreve]'", ".[sreve]: no extra 'sreve'"),
        ("pip install -e '.[dev,doc]'", ".[dev,doc]: no extra 'doc'"),
        ('pip install "$(ls dist/factorcell-*.whl)[tuned]"', "$(ls dist/factorcell-*.whl)[tuned]: no extra 'tuned'"),
        ("pip install torch --extra-index-url https://x", "--extra-index-url may install a package of another index"),
    ],
)
def test_wrong_lines_are_found(command: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"```bash\n{command}\n```\n", encoding="utf-8")
    cells = [{"cell_type": "code", "source": ["x\n", f"!{command}\n"]}]
    (tmp_path / "docs" / "page.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    for name in ("page.ipynb", "page.md"):
        faults = [text for file, line in install_lines(tmp_path) if file == name for text in faults_of(line)]
        assert fault in faults, name


@pytest.mark.parametrize(
    "command",
    [
        "pip install '.[serve]'",
        "pip install . numpy",
        "pip install dist/factorcell-0.1.0-*.whl",
        'pip install "$(ls dist/factorcell-*.whl)[tune,serve]"',
        "pip install -c /opt/clone/constraints.txt '/opt/clone[serve]'",
        "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu",
        "pip install --no-deps . && pip install httpx msgspec   # without PyTorch, which factorcell needs",
    ],
)
def test_lines_that_work_are_accepted(command: str) -> None:
    assert faults_of(command) == []


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"dev"}))
def test_the_command_of_an_extra_names_its_requirements(extra: str) -> None:
    program, verb, *requirements = shlex.split(extras.install_command(extra))
    assert (program, verb) == ("pip", "install")
    assert sorted(requirements) == sorted(requirement.partition(";")[0] for requirement in EXTRAS[extra])


def calls_of(name: str) -> list[list[Any]]:
    """Return the arguments that are literals of each call of the function `name` in src."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
    return [
        [argument.value if isinstance(argument, ast.Constant) else None for argument in call.args] for call in calls
    ]


def test_errors_about_missing_packages_name_existing_extras_and_their_packages() -> None:
    errors = [call for call in calls_of("missing_package_error") if call[2]]  # without that of `import_extra`
    errors += [[purpose, package, extra] for package, purpose, extra in calls_of("import_extra")]
    assert len(errors) >= 8
    for _, package, extra in errors:
        assert extra in EXTRAS
        assert package is None or any(requirement.startswith(package) for requirement in EXTRAS[extra])


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("tokenizers", import_library, "bpe"),
        ("optuna", import_optuna, "tune"),
        ("transformers", transformers, "transformers"),
        ("psycopg", lambda: open_store("postgresql://localhost/x"), "serve"),
        ("redis", lambda: open_store("redis://localhost"), "serve"),
    ],
)
def test_a_missing_package_gives_one_line_with_the_command(
    module: str, call: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("factorcell.service.stores.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match="which is not installed; pip install ") as caught:
        call()
    assert str(caught.value).endswith(extras.install_command(extra))
    assert module in str(caught.value)
    assert "\n" not in str(caught.value)
