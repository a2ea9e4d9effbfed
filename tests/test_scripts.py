"""Benchmarks and experiments name only things that exist; no other test runs all of them."""

import ast
import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from benchmarks.planted_faults import FAULTS
from tests import ROOT


def imports() -> Iterator[tuple[str, str, str]]:
    """Yield script, module and name of every `from factorcell... import ...` in a script."""
    for path in sorted([*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("experiments/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "factorcell":
                yield from ((path.name, str(node.module), name.name) for name in node.names)


def test_scripts_import_existing_names() -> None:
    rows = list(imports())
    assert len(rows) > 100
    missing = [
        (script, module, name)
        for script, module, name in rows
        if not hasattr(importlib.import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert missing == []


def test_planted_faults_are_in_the_source() -> None:
    for fault in FAULTS:
        assert fault.text in (ROOT / "src" / "factorcell" / fault.path).read_text(encoding="utf-8"), fault
        assert all((ROOT / "tests" / name).exists() for name in fault.tests.split()), fault
