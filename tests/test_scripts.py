"""What benchmarks and experiments import of the package is there: no other test runs all of them."""

import ast
import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from tests import ROOT


def imports() -> Iterator[tuple[str, str, str]]:
    """Script, module and name of every `from factorcell... import ...` in a script."""
    for path in sorted([*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("experiments/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "factorcell":
                yield from ((path.name, str(node.module), name.name) for name in node.names)


def test_scripts_import_what_there_is() -> None:
    found = list(imports())
    assert len(found) > 100
    missing = [
        (script, module, name)
        for script, module, name in found
        if not hasattr(importlib.import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert missing == []
