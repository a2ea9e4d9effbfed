"""The shape of the code, checked: arrows point one way, files, functions and signatures stay short, nothing loads code.

Each check takes the root of a tree and returns its faults as lines to read; test_layout.py holds each of them against
a small tree that has exactly that fault.
"""

import ast
import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = "factorcell"

# Rooms that do not know each other, although one stands above the other.
STRANGERS = (("generation", "completion"), ("training", "reports"), ("training", "service"), ("reports", "service"))
OUTSIDE = ("", "__main__")  # of the order: they may import all
PRINTERS = {"commands.terminal"}
WRITES = {"print", "sys.stdout.write", "sys.stderr.write"}
GROUPS = {"experiments", "faults", "wheels"}  # tests of what is not in the package
INSIDE = {"hidden", "memory", "matrix"}
SPECIAL_IDS = {"UNKNOWN", "START", "END"}
FILE_LINES, BODY_LINES, PARAMETERS = 400, 60, 7
KERNELS = "model.kernels"  # whose functions take array by array what compiled code, Triton and PyTorch take so
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# What can run code that comes out of a file: modules by their first name, calls by their full one.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "torch.jit.load"}


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file, which every check walks."""
    return ast.parse(text)


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """All that is in a tree."""
    return list(ast.walk(tree))


def sources(root: Path) -> Iterator[tuple[Path, str, ast.Module]]:
    """Every file of the package: its path under `root`, its dotted name without the package's, its tree.

    That of a room's `__init__` is the room's own; of the package itself it is empty.
    """
    package = root / "src" / PACKAGE
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield path.relative_to(root), name, parsed(path.read_text(encoding="utf-8"))


def imported(node: ast.AST, path: Path) -> Iterator[str]:
    """The full dotted names that an import statement of the file `path` asks for; none for other nodes."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = list(path.parts[1:-1])  # src/factorcell/serve/app.py lives in factorcell.serve
        base = package[: len(package) - node.level + 1] if node.level else []
        start = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{start}.{alias.name}" for alias in node.names)


def places(root: Path) -> dict[str, int]:
    """The place of every module, by its dotted name without the package's, and of every room: after its last module.

    As the order in docs/architecture.md has it: lines `room: its modules`, several for a long room, or modules of the
    package itself.
    A module imports from the rooms above its own, and in its own room from the modules named before it.
    """
    order = (root / "docs" / "architecture.md").read_text(encoding="utf-8").split("```order\n")[1].split("```")[0]
    numbers = itertools.count()
    found: dict[str, int] = {}
    for line in order.splitlines():
        room, _, modules = line.rpartition(":")
        parts = room.split(".") if room else []
        names = [".".join((*parts, name)) for name in modules.split()]
        rooms = [".".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
        found |= {name: next(numbers) for name in (*names, *rooms)}
    return found


def wrong_order(root: Path) -> list[str]:
    """Modules that have no place in the order, and places without a module."""
    names = {name: path for path, name, _ in sources(root) if name not in OUTSIDE}
    order = places(root)
    return [f"{path}: not in the order" for name, path in names.items() if name not in order] + [
        f"docs/architecture.md: {name} is in the order only" for name in order if name not in names
    ]


def arrows(root: Path) -> Iterator[tuple[str, str, str]]:
    """Every import of one module of ours by another: where it stands, who imports, and the module or room imported."""
    order = places(root)
    for path, name, tree in sources(root):
        for node in nodes(tree) if name not in OUTSIDE else ():
            for wanted in imported(node, path):
                first, *parts = wanted.split(".")
                known = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
                target = next((each for each in known if each in order), "")
                if first == PACKAGE and target != name:
                    yield f"{path}:{getattr(node, 'lineno', 0)}", name, target


def backward_arrows(root: Path) -> list[str]:
    """Imports of a module that does not come before the importing one; the package itself comes after all."""
    order = places(root)
    return [
        f"{where}: {name} must not import {target or PACKAGE}"
        for where, name, target in arrows(root)
        if order.get(target, len(order)) >= order.get(name, len(order))
    ]


def strange_arrows(root: Path) -> list[str]:
    """Imports between rooms that do not know each other."""
    order = places(root)
    return [
        f"{where}: {name} must not import {target}"
        for where, name, target in arrows(root)
        if any({name.split(".")[0], target.split(".")[0]} == set(pair) for pair in STRANGERS)
        and order[target] < order.get(name, len(order))
    ]


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
        for node in nodes(parsed(text)):
            if isinstance(node, FUNCTIONS):
                count = (node.end_lineno or 0) - node.body[0].lineno + 1
                if count > BODY_LINES:
                    faults.append(f"{path}:{node.lineno}: {node.name} has {count} lines, at most {BODY_LINES}")
    return faults


def many_parameters(root: Path) -> list[str]:
    """Functions of more than `PARAMETERS` parameters, `self` and the options of `offered` functions not counted."""
    public = offered(root)
    return [
        f"{path}:{node.lineno}: {node.name} has {count} parameters, at most {PARAMETERS}"
        for path, module, tree in sources(root)
        if not f"{module}.".startswith(f"{KERNELS}.")
        for node in nodes(tree)
        if isinstance(node, FUNCTIONS)
        for options in [node in tree.body and f"{PACKAGE}.{module}.{node.name}" in public]
        if (count := parameters(node.args, options)) > PARAMETERS
    ]


def offered(root: Path) -> set[str]:
    """The full dotted names of what the package offers at its top: all that its `__init__` imports."""
    path = Path("src", PACKAGE, "__init__.py")
    tree = parsed((root / path).read_text(encoding="utf-8"))
    return {name for node in nodes(tree) for name in imported(node, path)}


def parameters(given: ast.arguments, options: bool) -> int:
    """How many there are without `self`; with `options` those that can only be named, and have a default, are free."""
    placed = [one.arg for one in (*given.posonlyargs, *given.args)]
    named = [default for default in given.kw_defaults if default is None or not options]
    rest = [one for one in (given.vararg, given.kwarg) if one is not None]
    return len(placed) + len(named) + len(rest) - (placed[:1] in (["self"], ["cls"]))


def python_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Path under `root` and text of every Python file we write."""
    for folder in ("src", "tests", "benchmarks", "experiments"):
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root), path.read_text(encoding="utf-8")


def prints(root: Path) -> list[str]:
    """Calls of `WRITES` outside the module that talks to a person."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node.func)} outside of {', '.join(PRINTERS)}"
        for path, module, tree in sources(root)
        if module not in PRINTERS
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in WRITES
    ]


def unsafe(root: Path) -> list[str]:
    """What could run code out of a file: `UNSAFE_MODULES`, `UNSAFE_CALLS`, `allow_pickle` but for False."""
    faults = []
    for path, _, tree in sources(root):
        for node in nodes(tree):
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


def lost_tests(root: Path) -> list[str]:
    """Folders of tests that are no room of the package."""
    folders = sorted({path.parent for path in (root / "tests").rglob("test_*.py")})
    inside = [folder.relative_to(root / "tests") for folder in folders]
    return [
        f"tests/{folder}: no room of the package"
        for folder in inside
        if not (root / "src" / PACKAGE / folder).is_dir() and str(folder) not in GROUPS
    ]


def own_ids(root: Path) -> list[str]:
    """Imports of the ids of special tokens where a tokenizer or a model should be asked for them."""
    return [
        f"{path}:{getattr(node, 'lineno', 0)}: {name} is the tokenizer's or the model's to say"
        for path, module, tree in sources(root)
        if module.split(".")[0] not in ("data", "model")
        for node in nodes(tree)
        for name in imported(node, path)
        if name.startswith(f"{PACKAGE}.data.") and name.split(".")[-1] in SPECIAL_IDS
    ]


def peeks(root: Path) -> list[str]:
    """Places outside the room model that look inside the state of a backbone, or at what a context decided in it."""
    return [
        f"{path}:{node.lineno}: .{node.attr} is inside a backbone"
        for path, module, tree in sources(root)
        if module.split(".")[0] != "model"
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and node.attr in INSIDE
    ]


Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [
    wrong_order,
    backward_arrows,
    strange_arrows,
    lost_tests,
    long_files,
    long_bodies,
    many_parameters,
    prints,
    peeks,
    own_ids,
    unsafe,
]
