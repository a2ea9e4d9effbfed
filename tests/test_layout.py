"""Our tree passes every check of layout.py, and each check finds the fault that it is for in a small tree."""

from pathlib import Path
from textwrap import indent

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
    many_parameters,
    own_ids,
    peeks,
    prints,
    sources,
    strange_arrows,
    unsafe,
)


@pytest.mark.parametrize("check", CHECKS)
def test_our_tree_has_no_fault(check: Check) -> None:
    assert list(sources(ROOT)), "no source found: the checks would pass on nothing"
    assert check(ROOT) == []


def body(lines: int) -> str:
    """A function whose body has this many lines."""
    return "def f() -> None:\n" + "    x = 1\n" * lines


def signature(count: int, before: str = "") -> str:
    """The parameters of a function: `before`, and this many with defaults."""
    return before + ", ".join(f"p{place}=1" for place in range(count))


MANY = PARAMETERS + 1
ARCHITECTURE = """
```order
config
data: words
data: tables
model.kernels: library
model: cells
generation: beams
completion: search
commands: terminal main
```
"""
FINE = {
    "docs/architecture.md": ARCHITECTURE,
    "tests/test_all.py": "",
    "tests/data/test_words.py": "",
    "tests/model/kernels/test_library.py": "",
    "src/factorcell/__init__.py": "from factorcell.commands.main import main\nfrom factorcell.model import Cell\n",
    "src/factorcell/__main__.py": "from factorcell.commands.main import main\n",
    "src/factorcell/config.py": '"""Never pickle; print nothing; no torch.load."""\n' + body(BODY_LINES),
    "src/factorcell/data/__init__.py": "from factorcell.data.words import split\nfrom . import tables\n",
    "src/factorcell/data/words.py": "from factorcell import config\nfrom ..config import UserError\nimport numpy\n",
    "src/factorcell/data/tables.py": "from .words import split\n"
    + f"class A:\n    def f({signature(PARAMETERS, 'self, ')}): ...\n",
    "src/factorcell/model/__init__.py": "from factorcell.model.cells import Cell\n",
    "src/factorcell/model/cells.py": "from factorcell.model.kernels import library\nx.hidden\n"
    + "x = 1\n" * (FILE_LINES - 2),
    "src/factorcell/model/kernels/__init__.py": "from .library import x\n",
    "src/factorcell/model/kernels/library.py": "from factorcell.data.words import END\nfrom ...config import Config\n"
    + f"def run({signature(MANY)}): ...\n",
    "src/factorcell/generation/__init__.py": "",
    "src/factorcell/generation/beams.py": "model.eval()\nnumpy.load('a', allow_pickle=False)\nre.compile('a')\n",
    "src/factorcell/completion/__init__.py": "blueprint(1)\n",
    "src/factorcell/completion/search.py": "from factorcell import model, data\nfrom factorcell.data import split\n",
    "src/factorcell/commands/__init__.py": "",
    "src/factorcell/commands/main.py": "from factorcell.completion import search\n"
    + f"def main({signature(MANY, 'given, *, ')}): ...\n",
    "src/factorcell/commands/terminal.py": "print('done')\nsys.stderr.write('done')\n",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    """A tree with the files of `FINE`, some of them replaced."""
    for name, content in (FINE | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_fine_tree_passes_every_check(tmp_path: Path) -> None:
    plant(tmp_path, {})
    assert [fault for check in CHECKS for fault in check(tmp_path)] == []


@pytest.mark.parametrize(
    ("check", "name", "content"),
    [
        (backward_arrows, "config.py", "from factorcell.model.cells import Cell\n"),
        (backward_arrows, "config.py", "import factorcell.model.cells as c\n"),
        (backward_arrows, "config.py", "from factorcell import model\n"),
        (backward_arrows, "config.py", "from . import data\n"),
        (backward_arrows, "config.py", "from .commands.main import main\n"),
        (backward_arrows, "data/words.py", "from factorcell.data.tables import rows\n"),
        (backward_arrows, "data/words.py", "from factorcell.data import tables\n"),
        (backward_arrows, "data/words.py", "from . import tables\n"),
        (backward_arrows, "data/words.py", "from .tables import rows\n"),
        (backward_arrows, "data/words.py", "from factorcell.data import rows\n"),
        (backward_arrows, "data/words.py", "def f():\n    from factorcell.data.tables import rows\n"),
        (backward_arrows, "data/tables.py", "if TYPE_CHECKING:\n    from ..model import Cell\n"),
        (backward_arrows, "data/__init__.py", "from factorcell.model import Cell\n"),
        (backward_arrows, "model/kernels/library.py", "from ..cells import Cell\n"),
        (backward_arrows, "model/kernels/library.py", "from factorcell.model.kernels import x\n"),
        (backward_arrows, "model/kernels/library.py", "from factorcell.model import Cell\n"),
        (backward_arrows, "completion/search.py", "import factorcell\n"),
        (backward_arrows, "completion/search.py", "from factorcell import Run\n"),
        (backward_arrows, "completion/search.py", "from ..helpers import x\n"),
        (strange_arrows, "completion/search.py", "from factorcell.generation.beams import Beam\n"),
        (strange_arrows, "completion/__init__.py", "from factorcell import generation\n"),
        (long_files, "model/cells.py", "x = 1\n" * (FILE_LINES + 1)),
        (long_files, "data/tables.py", "\n" * (FILE_LINES + 1)),
        (long_bodies, "model/cells.py", body(BODY_LINES + 1)),
        (long_bodies, "model/cells.py", "class A:\n" + indent(body(BODY_LINES + 1), "    ")),
        (long_bodies, "data/tables.py", "async " + body(BODY_LINES + 1)),
        (many_parameters, "config.py", f"def f({signature(MANY)}): ...\n"),
        (many_parameters, "model/cells.py", f"class A:\n    def f({signature(MANY, 'self, ')}): ...\n"),
        (many_parameters, "model/cells.py", f"async def f({signature(PARAMETERS - 1, 'a, *rest, ')}): ...\n"),
        (many_parameters, "data/words.py", f"def f({signature(PARAMETERS)}, **rest): ...\n"),
        (many_parameters, "data/words.py", f"def main({signature(MANY, '*, ')}): ...\n"),  # not the one that is offered
        (many_parameters, "commands/main.py", f"def main({signature(MANY)}): ...\n"),
        (many_parameters, "commands/main.py", f"def main({', '.join('*abcdefgh')}): ...\n"),
        (many_parameters, "commands/main.py", f"class A:\n    def main({signature(MANY, '*, ')}): ...\n"),
        (prints, "config.py", "def f():\n    print('x')\n"),
        (prints, "data/tables.py", "print('x')\n"),
        (prints, "commands/main.py", "print('x')\n"),
        (prints, "commands/main.py", "sys.stdout.write('x')\n"),
        (prints, "data/tables.py", "sys.stderr.write('x')\n"),
        (peeks, "completion/search.py", "state.hidden\n"),
        (peeks, "completion/__init__.py", "def f(state):\n    return state.memory[0]\n"),
        (peeks, "generation/beams.py", "weights.matrix = 1\n"),
        (own_ids, "completion/search.py", "from factorcell.data.words import END\n"),
        (own_ids, "commands/main.py", "from ..data.words import split, START\n"),
        (unsafe, "config.py", "import pickle\n"),
        (unsafe, "config.py", "from pickle import loads\n"),
        (unsafe, "commands/main.py", "import dill as d\n"),
        (unsafe, "config.py", "import torch\ntorch.load('a')\n"),
        (unsafe, "config.py", "from torch import load\n"),
        (unsafe, "config.py", "import torch\ntorch.save(1, 'a')\n"),
        (unsafe, "config.py", "eval('1')\n"),
        (unsafe, "config.py", "import builtins\nbuiltins.exec('1')\n"),
        (unsafe, "config.py", "import numpy\nnumpy.load('a', allow_pickle=True)\n"),
        (unsafe, "config.py", "import numpy\nnumpy.load('a', allow_pickle=flag)\n"),
    ],
)
def test_planted_fault_is_found(check: Check, name: str, content: str, tmp_path: Path) -> None:
    name = f"src/{PACKAGE}/{name}"
    faults = {each: each(plant(tmp_path, {name: content})) for each in CHECKS}
    assert len(faults[check]) == 1
    assert name.startswith(faults[check][0].split(":")[0])
    # One fault, one check: the others stay quiet.
    assert [each.__name__ for each, found in faults.items() if found] == [check.__name__]


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        (
            {"src/factorcell/data/helpers.py": ""},
            ["src/factorcell/data/helpers.py: not in the order"],
        ),
        (
            {"src/factorcell/serving/__init__.py": ""},
            ["src/factorcell/serving/__init__.py: not in the order"],
        ),
        (
            {"docs/architecture.md": ARCHITECTURE.replace("data: words", "data: verbs words")},
            ["docs/architecture.md: data.verbs is in the order only"],
        ),
        ({"tests/nowhere/test_x.py": ""}, ["tests/nowhere: no room of the package"]),
        ({"tests/model/test_x.py": "x = 1\n" * 401}, ["tests/model/test_x.py: 401 lines, at most 400"]),
    ],
)
def test_what_is_nowhere_or_only_imagined_is_found(files: dict[str, str], faults: list[str], tmp_path: Path) -> None:
    plant(tmp_path, files)
    assert [fault for check in CHECKS for fault in check(tmp_path)] == faults
