"""The tree of the repository passes every check of layout.py, and each check finds its fault in a small tree."""

from pathlib import Path

import pytest

from tests import ROOT
from tests.layout import (
    BODY_LINES,
    CHECKS,
    FILE_LINES,
    PACKAGE,
    PARAMETERS,
    Check,
    backward_arrows,
    long_bodies,
    long_files,
    lost_tests,
    many_parameters,
    own_ids,
    peeks,
    prints,
    sources,
    strange_arrows,
    unsafe,
    wrong_order,
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_repository_passes(check: Check) -> None:
    assert list(sources(ROOT)), "no source found: the checks would pass on nothing"
    assert check(ROOT) == []


def function(name: str, parameters: int, lines: int = 1, more: str = "") -> str:
    """A function with this many parameters with defaults, after `more`, and this many lines."""
    return f"def {name}({more}{', '.join(f'p{n}=1' for n in range(parameters))}):\n" + "    x = 1\n" * lines


ARCHITECTURE = """
```order
config
data: words tables
model: cells
generation: beams
completion: search
commands: terminal main
```
"""
FINE = {
    "docs/architecture.md": ARCHITECTURE,
    "tests/data/test_words.py": "",
    f"src/{PACKAGE}/__init__.py": "from factorcell.commands.main import main\n",
    f"src/{PACKAGE}/config.py": '"""Never pickle; print nothing."""\n' + function("f", PARAMETERS, BODY_LINES),
    f"src/{PACKAGE}/data/__init__.py": "from factorcell.data.words import split\nfrom . import tables\n",
    f"src/{PACKAGE}/data/words.py": "from factorcell import config\nfrom ..config import UserError\nimport numpy\n",
    f"src/{PACKAGE}/data/tables.py": "from .words import split\n",
    f"src/{PACKAGE}/model/__init__.py": "",
    f"src/{PACKAGE}/model/cells.py": "from factorcell.data.words import END\nx.hidden\n" + "x = 1\n" * (FILE_LINES - 2),
    f"src/{PACKAGE}/generation/__init__.py": "",
    f"src/{PACKAGE}/generation/beams.py": "model.eval()\nnumpy.load('a', allow_pickle=False)\nre.compile('a')\n",
    f"src/{PACKAGE}/completion/__init__.py": "",
    f"src/{PACKAGE}/completion/search.py": "from factorcell.data import split\n",
    f"src/{PACKAGE}/commands/__init__.py": "",
    f"src/{PACKAGE}/commands/main.py": function("main", PARAMETERS + 1, more="given, *, "),
    f"src/{PACKAGE}/commands/terminal.py": "print('done')\nsys.stderr.write('done')\n",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    """A tree with the files of `FINE`, some of them replaced."""
    for name, content in (FINE | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_a_fine_tree_passes_every_check(tmp_path: Path) -> None:
    plant(tmp_path, {})
    assert [fault for check in CHECKS for fault in check(tmp_path)] == []


@pytest.mark.parametrize(
    ("check", "name", "content"),
    [
        (backward_arrows, "config.py", "from factorcell.model.cells import Cell\n"),
        (backward_arrows, "config.py", "import factorcell.model.cells as c\n"),
        (backward_arrows, "config.py", "from . import data\n"),
        (backward_arrows, "data/words.py", "from factorcell.data import tables\n"),
        (backward_arrows, "data/words.py", "def f():\n    from .tables import rows\n"),
        (backward_arrows, "data/tables.py", "if TYPE_CHECKING:\n    from ..model import Cell\n"),
        (backward_arrows, "completion/search.py", "from factorcell import Run\n"),
        (strange_arrows, "completion/search.py", "from factorcell.generation.beams import Beam\n"),
        (long_files, "model/cells.py", "x = 1\n" * (FILE_LINES + 1)),
        (long_bodies, "model/cells.py", function("f", 0, BODY_LINES + 1)),
        (long_bodies, "data/tables.py", "async " + function("f", 0, BODY_LINES + 1)),
        (many_parameters, "config.py", function("f", PARAMETERS + 1)),
        (many_parameters, "data/words.py", function("main", PARAMETERS + 1, more="*, ")),  # not the one that is offered
        (many_parameters, "commands/main.py", function("main", PARAMETERS + 1)),
        (prints, "data/tables.py", "print('x')\n"),
        (prints, "commands/main.py", "sys.stdout.write('x')\n"),
        (peeks, "completion/search.py", "def f(state):\n    return state.memory[0]\n"),
        (own_ids, "commands/main.py", "from ..data.words import split, START\n"),
        (unsafe, "config.py", "from pickle import loads\n"),
        (unsafe, "config.py", "import torch\ntorch.load('a')\n"),
        (unsafe, "config.py", "from torch import load\n"),
        (unsafe, "config.py", "eval('1')\n"),
        (unsafe, "config.py", "import numpy\nnumpy.load('a', allow_pickle=flag)\n"),
        (wrong_order, "data/helpers.py", ""),
        (wrong_order, "serving/__init__.py", ""),
        (lost_tests, "../../tests/nowhere/test_x.py", ""),
    ],
)
def test_a_planted_fault_is_found_by_its_check_alone(check: Check, name: str, content: str, tmp_path: Path) -> None:
    plant(tmp_path, {f"src/{PACKAGE}/{name}": content})
    faults = {each: each(tmp_path) for each in CHECKS}
    assert [each.__name__ for each, found in faults.items() if found] == [check.__name__]
    assert len(faults[check]) == 1
