"""The repository passes every check of layout.py, and each check finds its fault in a small tree."""

from pathlib import Path

import pytest

from tests import ROOT
from tests.layout import (
    BODY_LINES,
    CHECKS,
    MODULES,
    PACKAGE,
    PARAMETERS,
    ROOMS,
    Check,
    check_body_lengths,
    check_import_order,
    check_independent_rooms,
    check_opaque_states,
    check_parameters,
    check_prints,
    check_room_sizes,
    check_rooms,
    check_special_ids,
    check_test_folders,
    check_unsafe_code,
    check_vague_names,
    sources,
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_repository_passes(check: Check) -> None:
    assert list(sources(ROOT)), "no sources: the checks would have nothing to check"
    assert check(ROOT) == []


def function(name: str, parameters: int, lines: int = 1, first: str = "") -> str:
    """Return the source of a function with this many parameters with defaults, after `first`, and this many lines."""
    return f"def {name}({first}{', '.join(f'p{n}=1' for n in range(parameters))}):\n" + "    x = 1\n" * lines


VALID = {
    **{f"src/{PACKAGE}/{room}/__init__.py": "" for room in ROOMS},
    "tests/data/test_words.py": "",
    f"src/{PACKAGE}/__init__.py": "from factorcell.commands.main import main\n",
    f"src/{PACKAGE}/config/options.py": '"""Never pickle; print nothing."""\n' + function("f", PARAMETERS, BODY_LINES),
    f"src/{PACKAGE}/data/__init__.py": "from factorcell.data.words import split\nfrom . import tables\n",
    f"src/{PACKAGE}/data/words.py": "from factorcell import config\nfrom ..config import UserError\nimport numpy\n",
    f"src/{PACKAGE}/data/tables.py": "from .words import split\n",
    f"src/{PACKAGE}/nn/cells.py": "from factorcell.data.words import END\nx.hidden\n",
    f"src/{PACKAGE}/generation/beams.py": "model.eval()\nnumpy.load('a', allow_pickle=False)\nre.compile('a')\n",
    f"src/{PACKAGE}/completion/search.py": "from factorcell.data import split\n",
    f"src/{PACKAGE}/commands/main.py": function("main", PARAMETERS + 1, first="x, *, "),
    f"src/{PACKAGE}/commands/cli/__init__.py": "",
    f"src/{PACKAGE}/commands/cli/terminal.py": "print('done')\nsys.stderr.write('done')\n",
    **{f"src/{PACKAGE}/commands/part{number}.py": "" for number in range(MODULES - 1)},
}


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write a tree with the files of `VALID`, some of them replaced by `files`."""
    for name, content in (VALID | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_a_valid_tree_passes_every_check(tmp_path: Path) -> None:
    write_tree(tmp_path, {})
    assert [fault for check in CHECKS for fault in check(tmp_path)] == []


@pytest.mark.parametrize(
    ("check", "name", "content"),
    [
        (check_import_order, "config/options.py", "from factorcell.nn.cells import Cell\n"),
        (check_import_order, "config/options.py", "import factorcell.nn.cells as c\n"),
        (check_import_order, "config/options.py", "from .. import data\n"),
        (check_import_order, "data/words.py", "def f():\n    from ..nn import rows\n"),
        (check_import_order, "data/tables.py", "if TYPE_CHECKING:\n    from ..hf import Cell\n"),
        (check_import_order, "completion/search.py", "from factorcell import Run\n"),
        (check_independent_rooms, "completion/search.py", "from factorcell.generation.beams import Beam\n"),
        (check_room_sizes, "commands/more.py", ""),
        (check_body_lengths, "nn/cells.py", function("f", 0, BODY_LINES + 1)),
        (check_body_lengths, "data/tables.py", "async " + function("f", 0, BODY_LINES + 1)),
        (check_parameters, "config/options.py", function("f", PARAMETERS + 1)),
        (
            check_parameters,
            "data/words.py",
            function("main", PARAMETERS + 1, first="*, "),
        ),  # the function of this name in commands.main is public, this one is not
        (check_parameters, "commands/main.py", function("main", PARAMETERS + 1)),
        (check_vague_names, "data/tables.py", "def f(given=1):\n    return given\n"),
        (check_vague_names, "data/tables.py", "found = 1\n"),
        (check_prints, "data/tables.py", "print('x')\n"),
        (check_prints, "commands/main.py", "sys.stdout.write('x')\n"),
        (check_opaque_states, "completion/search.py", "def f(state):\n    return state.memory[0]\n"),
        (check_special_ids, "commands/main.py", "from ..data.words import split, START\n"),
        (check_unsafe_code, "config/options.py", "from pickle import loads\n"),
        (check_unsafe_code, "config/options.py", "import torch\ntorch.load('a')\n"),
        (check_unsafe_code, "config/options.py", "from torch import load\n"),
        (check_unsafe_code, "config/options.py", "eval('1')\n"),
        (check_unsafe_code, "config/options.py", "import numpy\nnumpy.load('a', allow_pickle=flag)\n"),
        (check_rooms, "serving/__init__.py", ""),
        (check_rooms, "helpers.py", ""),
        (check_test_folders, "../../tests/nowhere/test_x.py", ""),
    ],
)
def test_each_fault_is_found_only_by_its_check(check: Check, name: str, content: str, tmp_path: Path) -> None:
    write_tree(tmp_path, {f"src/{PACKAGE}/{name}": content})
    faults = {each: each(tmp_path) for each in CHECKS}
    assert [each.__name__ for each, lines in faults.items() if lines] == [check.__name__]
    assert len(faults[check]) == 1
