"""The shape of the code, checked: arrows point one way, files and functions stay short, nothing loads code.

Each check takes the root of a tree and returns its faults as lines to read; the tests below hold each of them
against a small tree that has exactly that fault.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "factorcell"

# A module imports from the layers before its own, and within its layer from the modules named before it.
ORDER = """
config store vocabulary tables schema context columns kinds tokens data counts | kernels recurrence gpu
gpu_recurrence gpu_softmax softmax dropout adapters cells encoder prefix biases output adaptive model devices run card
scoring | decoding beams gaps generation | completion compiled_search popularity slips forgiving online completer blend
assistant progressive systems replay_summary online_tuning | evaluation classification ngram baselines results nbest
list_weights rescoring speaker_learning likelihood_ratios hidden_units embeddings value_ngrams advice_texts advice
judging specificity | parallel start rows training fit compare finetuning separate mixture space tuning | maps plots
scatter replay_charts token_charts embedding_charts specificity_charts report trials replay_report rescoring_report
explain_report contexts_report specificity_report advice_report | serve | screen demo options domains baseline_verbs
interactive completion_verbs replay_verbs
generation_verbs rescoring_verbs explain_verbs contexts_verbs specificity_verbs advice_verbs cli
"""
PLACES = {name: place for place, name in enumerate(ORDER.replace("|", " ").split())}

PRINTERS = {"screen", "cli", "demo"}
FILE_LINES, BODY_LINES = 400, 60
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# What can run code that comes out of a file: modules by their first name, calls by their full one.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "torch.jit.load"}


def sources(root: Path) -> Iterator[tuple[Path, str, ast.Module]]:
    """Every file of the package: its path under `root`, the module it belongs to, its tree."""
    package = root / "src" / PACKAGE
    for path in sorted(package.rglob("*.py")):
        module = path.relative_to(package).parts[0].removesuffix(".py")
        yield path.relative_to(root), module, ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST, path: Path) -> Iterator[str]:
    """The full dotted names that an import statement of the file `path` asks for; none for other nodes."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = list(path.parts[1:-1])  # src/factorcell/serve/app.py lives in factorcell.serve
        base = package[: len(package) - node.level + 1] if node.level else []
        start = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{start}.{alias.name}" for alias in node.names)


def unknown_modules(root: Path) -> list[str]:
    """Modules that have no place in the order."""
    modules = {module for _, module, _ in sources(root)} - {"__init__", "__main__"}
    return [f"src/{PACKAGE}/{module}: not in the order of layers" for module in sorted(modules - PLACES.keys())]


def backward_arrows(root: Path) -> list[str]:
    """Imports of a module that does not come before the importing one; the package itself comes after all."""
    faults = []
    for path, module, tree in sources(root):
        if module in ("__init__", "__main__"):
            continue
        for node in ast.walk(tree):
            for name in imported(node, path):
                parts = name.split(".")
                target = parts[1] if len(parts) > 1 else "__init__"
                if parts[0] != PACKAGE or target == module:
                    continue
                if PLACES.get(target, len(PLACES)) >= PLACES.get(module, len(PLACES)):
                    faults.append(f"{path}:{getattr(node, 'lineno', 0)}: {module} must not import {name}")
    return faults


def long_files(root: Path) -> list[str]:
    """Python files of more than `FILE_LINES` lines, tests and benchmarks too."""
    faults = []
    for path, text in python_files(root):
        if (count := len(text.splitlines())) > FILE_LINES:
            faults.append(f"{path}: {count} lines, at most {FILE_LINES}")
    return faults


def long_bodies(root: Path) -> list[str]:
    """Functions whose body, from the first statement to the last line, takes more than `BODY_LINES` lines."""
    faults = []
    for path, text in python_files(root):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS):
                count = (node.end_lineno or 0) - node.body[0].lineno + 1
                if count > BODY_LINES:
                    faults.append(f"{path}:{node.lineno}: {node.name} has {count} lines, at most {BODY_LINES}")
    return faults


def python_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Path under `root` and text of every Python file we write."""
    for folder in ("src", "tests", "benchmarks", "experiments"):
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root), path.read_text(encoding="utf-8")


def prints(root: Path) -> list[str]:
    """Calls of print outside the modules that talk to a person."""
    return [
        f"{path}:{node.lineno}: print in the library"
        for path, module, tree in sources(root)
        if module not in PRINTERS
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def unsafe(root: Path) -> list[str]:
    """What could run code out of a file: `UNSAFE_MODULES`, `UNSAFE_CALLS`, `allow_pickle` but for False."""
    faults = []
    for path, _, tree in sources(root):
        for node in ast.walk(tree):
            names = [name for name in imported(node, path) if is_unsafe(name)]
            if isinstance(node, ast.Call):
                names += [name for name in [ast.unparse(node.func)] if is_unsafe(name)]
                names += ["allow_pickle" for word in node.keywords if allows_pickle(word)]
            faults += [f"{path}:{getattr(node, 'lineno', 0)}: {name} is not safe" for name in names]
    return faults


def is_unsafe(name: str) -> bool:
    """Whether a full dotted name is one that can run code."""
    return name.split(".")[0] in UNSAFE_MODULES or name.removeprefix("builtins.") in UNSAFE_CALLS


def allows_pickle(word: ast.keyword) -> bool:
    """Whether a keyword argument is `allow_pickle` and anything but the constant False."""
    return word.arg == "allow_pickle" and ast.unparse(word.value) != "False"


def wrong_picture(root: Path) -> list[str]:
    """Files of the package that the layout in docs/architecture.md leaves out, and those it only imagines."""
    picture = (root / "docs" / "architecture.md").read_text(encoding="utf-8").split(f"```\nsrc/{PACKAGE}/\n")[1]
    drawn = {line.split()[0] for line in picture.split("\ntests/")[0].splitlines() if line.split()[0].endswith(".py")}
    there = {path.name for path in (root / "src" / PACKAGE).glob("*.py")}
    return [f"{name}: not in the picture" for name in sorted(there - drawn)] + [
        f"{name}: in the picture only" for name in sorted(drawn - there)
    ]


Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [unknown_modules, backward_arrows, long_files, long_bodies, prints, unsafe]


@pytest.mark.parametrize("check", CHECKS)
def test_our_tree_has_no_fault(check: Check) -> None:
    assert list(sources(ROOT)), "no source found: the checks would pass on nothing"
    assert check(ROOT) == []


def body(lines: int) -> str:
    """A function whose body has this many lines."""
    return "def f() -> None:\n" + "    x = 1\n" * lines


FINE = {
    "__init__.py": "from factorcell.cli import main\nfrom factorcell.run import Run\n",
    "config.py": '"""Never pickle; print nothing; torch.load is not used."""\n' + body(BODY_LINES),
    "vocabulary.py": "from factorcell import config\nfrom .config import UserError\nimport numpy as np\n",
    "cells.py": "from factorcell.vocabulary import END\n" + "x = 1\n" * (FILE_LINES - 1),
    "run.py": "model.eval()\nnumpy.load('a', allow_pickle=False)\nre.compile('a')\nblueprint(1)\n",
    "serve/__init__.py": "from factorcell.serve.app import go\nfrom . import app\n",
    "serve/app.py": "import factorcell.run\nfrom ..config import Config\nfrom .page import html\n",
    "serve/page.py": "html = 1\n",
    "cli.py": "from factorcell import serve, demo\nprint('done')\n",
    "demo.py": "print('done')\n",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    """A tree with the files of `FINE`, some of them replaced."""
    for name, content in (FINE | files).items():
        path = root / "src" / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_fine_tree_passes_every_check(tmp_path: Path) -> None:
    plant(tmp_path, {})
    assert [fault for check in CHECKS for fault in check(tmp_path)] == []


@pytest.mark.parametrize(
    ("check", "name", "content"),
    [
        (unknown_modules, "helpers.py", ""),
        (unknown_modules, "serving/app.py", ""),
        (backward_arrows, "config.py", "from factorcell.cells import Cell\n"),
        (backward_arrows, "config.py", "import factorcell.model as m\n"),
        (backward_arrows, "config.py", "from factorcell import config, training\n"),
        (backward_arrows, "config.py", "from . import vocabulary\n"),
        (backward_arrows, "config.py", "from .cli import main\n"),
        (backward_arrows, "serve/app.py", "from ..cli import main\n"),
        (backward_arrows, "serve/page.py", "from .. import cli\n"),
        (backward_arrows, "vocabulary.py", "def f():\n    from factorcell.tables import save\n"),
        (backward_arrows, "model.py", "if TYPE_CHECKING:\n    from factorcell.run import Run\n"),
        (backward_arrows, "run.py", "import factorcell\n"),
        (backward_arrows, "run.py", "from factorcell import Run\n"),
        (backward_arrows, "run.py", "from factorcell.helpers import x\n"),
        (long_files, "cells.py", "x = 1\n" * (FILE_LINES + 1)),
        (long_files, "serve/page.py", "\n" * (FILE_LINES + 1)),
        (long_bodies, "cells.py", body(BODY_LINES + 1)),
        (long_bodies, "cells.py", "class A:\n" + indent(body(BODY_LINES + 1), "    ")),
        (long_bodies, "serve/app.py", "async " + body(BODY_LINES + 1)),
        (prints, "config.py", "def f():\n    print('x')\n"),
        (prints, "serve/app.py", "print('x')\n"),
        (unsafe, "run.py", "import pickle\n"),
        (unsafe, "run.py", "from pickle import loads\n"),
        (unsafe, "cli.py", "import dill as d\n"),
        (unsafe, "run.py", "import torch\ntorch.load('a')\n"),
        (unsafe, "run.py", "from torch import load\n"),
        (unsafe, "run.py", "import torch\ntorch.save(1, 'a')\n"),
        (unsafe, "run.py", "eval('1')\n"),
        (unsafe, "run.py", "import builtins\nbuiltins.exec('1')\n"),
        (unsafe, "run.py", "import numpy\nnumpy.load('a', allow_pickle=True)\n"),
        (unsafe, "run.py", "import numpy\nnumpy.load('a', allow_pickle=flag)\n"),
    ],
)
def test_planted_fault_is_found(check: Check, name: str, content: str, tmp_path: Path) -> None:
    faults = {each: each(plant(tmp_path, {name: content})) for each in CHECKS}
    assert len(faults[check]) == 1
    assert f"src/{PACKAGE}/{name}".startswith(faults[check][0].split(":")[0])
    # One fault, one check: the others stay quiet.
    assert [each.__name__ for each, found in faults.items() if found] == [check.__name__]


def test_long_test_files_are_found_too(tmp_path: Path) -> None:
    plant(tmp_path, {})
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("x = 1\n" * (FILE_LINES + 1))
    assert long_files(tmp_path) == [f"tests/test_x.py: {FILE_LINES + 1} lines, at most {FILE_LINES}"]


def test_documented_order_is_the_checked_one() -> None:
    documented = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```order\n")[1]
    assert documented.split("```")[0].split() == ORDER.split()


def test_picture_of_the_layout_is_true(tmp_path: Path) -> None:
    assert wrong_picture(ROOT) == []
    (tmp_path / "docs").mkdir()
    (tmp_path / "src" / PACKAGE).mkdir(parents=True)
    (tmp_path / "src" / PACKAGE / "cells.py").touch()
    picture = f"# A\n\n```\nsrc/{PACKAGE}/\n  model.py  forward\n  assets/   data\ntests/  test_X.py\n```\n"
    (tmp_path / "docs" / "architecture.md").write_text(picture, encoding="utf-8")
    assert wrong_picture(tmp_path) == ["cells.py: not in the picture", "model.py: in the picture only"]
