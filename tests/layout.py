"""Checks of the code structure: order of imports, length of functions, number of parameters, unsafe calls.

Each check takes the root of a source tree and returns its faults as readable lines; test_layout.py runs every check on
a small tree with exactly one fault.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = "factorcell"

# The packages and modules of factorcell, from low to high; each imports only from lower ones.
ROOMS = (
    *("errors", "bootstrap", "options", "io", "config", "data", "adapters", "nn", "hf", "ngram", "runs"),
    *("generation", "completion", "evaluation", "training", "reports", "service", "sklearn", "commands"),
)
# Rooms that must not import each other: the lower and the higher one.
INDEPENDENT = (("generation", "completion"), ("training", "reports"), ("training", "service"), ("reports", "service"))
MODELS = ("data", "adapters", "nn", "hf", "ngram", "runs")  # rooms that may know special ids and states of backbones
UNORDERED = ("", "__main__")  # modules that may import everything
PRINTERS = {"commands.cli.terminal", "hf.context_model"}  # `print_trainable_parameters` prints numbers, as in PEFT
WRITES = {"print", "sys.stdout.write", "sys.stderr.write"}
GROUPS = {"experiments", "faults", "wheels", "web"}  # folders of tests without a package of that name
STATE_ATTRIBUTES = {"hidden", "memory", "matrix"}
SPECIAL_IDS = {"UNKNOWN", "START", "END"}
BODY_LINES, PARAMETERS, MODULES = 60, 7, 16
KERNELS = "nn.kernels"  # its functions have as many array parameters as compiled code, Triton and PyTorch require
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Names that a reader must decode. `written` is missing: it may name a file that was just written.
VAGUE_NAMES = {
    *(
        "told",
        "given",
        "found",
        "one",
        "own",
        "held",
        "wanted",
        "asked",
        "said",
        "kept",
        "here",
        "there",
        "ours",
        "some",
    ),
    *("turned", "made", "got", "named", "seen", "gone", "meant"),
}
CODE_FOLDERS = ("src", "tests", "experiments", "examples", "benchmarks", "docs")

# Modules (by top-level name) and calls (by full name) that can run code from a file.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "torch.jit.load"}


@cache
def parsed(text: str) -> ast.Module:
    """Parse the text of a file; cached, because every check needs it."""
    return ast.parse(text)


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Return all nodes of a tree."""
    return list(ast.walk(tree))


def sources(root: Path) -> Iterator[tuple[Path, str, ast.Module]]:
    """Yield the path under `root`, the module name relative to factorcell, and the tree of every file of the package.

    The name of an `__init__` is that of its package, and empty for factorcell itself.
    """
    package = root / "src" / PACKAGE
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield path.relative_to(root), name, parsed(path.read_text(encoding="utf-8"))


def imported(node: ast.AST, path: Path) -> Iterator[str]:
    """Yield the full names that an import statement in the file `path` imports; nothing for other nodes."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = list(path.parts[1:-1])  # src/factorcell/serve/app.py is in factorcell.serve
        base = package[: len(package) - node.level + 1] if node.level else []
        start = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{start}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str:
    """Return the room of a module: its package, or the module itself if it is directly in factorcell."""
    return module.split(".")[0]


def internal_imports(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each import within factorcell: its location, the importing module, and the room of the imported name."""
    for path, module, tree in sources(root):
        for node in nodes(tree) if module not in UNORDERED else ():
            for full_name in imported(node, path):
                first, *parts = full_name.split(".")
                if first == PACKAGE:
                    yield f"{path}:{getattr(node, 'lineno', 0)}", module, parts[0] if parts else ""


def check_rooms(root: Path) -> list[str]:
    """Find packages and modules of factorcell that are not in `ROOMS`, and rooms that do not exist."""
    names = dict.fromkeys(room_of(module) for _, module, _ in sources(root) if module not in UNORDERED)
    missing = [f"src/{PACKAGE}/{name}: not in ROOMS of tests/layout.py" for name in names if name not in ROOMS]
    return missing + [f"tests/layout.py: no room {name}" for name in ROOMS if name not in names]


def check_import_order(root: Path) -> list[str]:
    """Find imports from a higher room, or of factorcell itself."""
    order = {name: number for number, name in enumerate(ROOMS)}
    return [
        f"{where}: {module} must not import {room or PACKAGE}"
        for where, module, room in internal_imports(root)
        if order.get(room, len(order)) > order.get(room_of(module), len(order))
    ]


def check_independent_rooms(root: Path) -> list[str]:
    """Find imports between independent rooms."""
    return [
        f"{where}: {module} must not import {room}"
        for where, module, room in internal_imports(root)
        if any(room_of(module) == high and room == low for low, high in INDEPENDENT)
    ]


def check_room_sizes(root: Path) -> list[str]:
    """Find folders of more than `MODULES` modules."""
    counts = Counter(path.parent for path, _, _ in sources(root) if path.name != "__init__.py")
    return [f"{folder}: {count} modules, at most {MODULES}" for folder, count in counts.items() if count > MODULES]


def check_body_lengths(root: Path) -> list[str]:
    """Find functions whose body, from the first statement to the last line, has more than `BODY_LINES` lines."""
    faults = []
    for path, text in python_files(root):
        for node in nodes(parsed(text)):
            if isinstance(node, FUNCTIONS):
                count = (node.end_lineno or 0) - node.body[0].lineno + 1
                if count > BODY_LINES:
                    faults.append(f"{path}:{node.lineno}: {node.name} has {count} lines, at most {BODY_LINES}")
    return faults


def check_parameters(root: Path) -> list[str]:
    """Find functions with more than `PARAMETERS` parameters, without `self` and options of public functions."""
    public = public_names(root)
    return [
        f"{path}:{node.lineno}: {node.name} has {count} parameters, at most {PARAMETERS}"
        for path, module, tree in sources(root)
        if not f"{module}.".startswith(f"{KERNELS}.")
        for node in nodes(tree)
        if isinstance(node, FUNCTIONS)
        for is_public in [node in tree.body and f"{PACKAGE}.{module}.{node.name}" in public]
        if (count := count_parameters(node.args, is_public)) > PARAMETERS
    ]


def public_names(root: Path) -> set[str]:
    """Return the full names of everything that the `__init__` of factorcell or of a room imports."""
    inits = [(path, tree) for path, _, tree in sources(root) if path.name == "__init__.py"]
    return {name for path, tree in inits for node in nodes(tree) for name in imported(node, path)}


def count_parameters(arguments: ast.arguments, is_public: bool) -> int:
    """Count parameters without `self`; in public functions also without keyword-only parameters with a default."""
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    keyword_only = [default for default in arguments.kw_defaults if default is None or not is_public]
    variadic = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return len(positional) + len(keyword_only) + len(variadic) - (positional[:1] in (["self"], ["cls"]))


def python_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path under `root` and the text of every Python file."""
    for folder in ("src", "tests", "benchmarks", "examples", "experiments"):
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root), path.read_text(encoding="utf-8")


def check_prints(root: Path) -> list[str]:
    """Find calls of `WRITES` outside the modules that may print."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node.func)} outside of {', '.join(PRINTERS)}"
        for path, module, tree in sources(root)
        if module not in PRINTERS
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in WRITES
    ]


def check_vague_names(root: Path) -> list[str]:
    """Find functions, parameters, variables and attributes whose name is in `VAGUE_NAMES`."""
    return [
        f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}: {name} is not a descriptive name"
        for folder in CODE_FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for node in nodes(parsed(path.read_text(encoding="utf-8")))
        for name in defined_names(node)
        if name in VAGUE_NAMES
    ]


def defined_names(node: ast.AST) -> list[str]:
    """Return the names that a node defines or assigns."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
    return []


def check_unsafe_code(root: Path) -> list[str]:
    """Find code that could run code from a file: `UNSAFE_MODULES`, `UNSAFE_CALLS`, `allow_pickle` other than False."""
    faults = []
    for path, _, tree in sources(root):
        for node in nodes(tree):
            names = [name for name in imported(node, path) if is_unsafe(name)]
            if isinstance(node, ast.Call):
                names += [name for name in [ast.unparse(node.func)] if is_unsafe(name)]
                names += ["allow_pickle" for keyword in node.keywords if allows_pickle(keyword)]
            faults += [f"{path}:{getattr(node, 'lineno', 0)}: {name} is not safe" for name in names]
    return faults


def is_unsafe(name: str) -> bool:
    """Whether the module or function with this full name can run code from a file."""
    return name.split(".")[0] in UNSAFE_MODULES or name.removeprefix("builtins.") in UNSAFE_CALLS


def allows_pickle(keyword: ast.keyword) -> bool:
    """Whether a keyword argument is `allow_pickle` with a value other than the constant False."""
    return keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"


def check_test_folders(root: Path) -> list[str]:
    """Find folders of tests that do not match a package."""
    folders = sorted({path.parent for path in (root / "tests").rglob("test_*.py")})
    names = [folder.relative_to(root / "tests") for folder in folders]
    return [
        f"tests/{folder}: no package of this name"
        for folder in names
        if not (root / "src" / PACKAGE / folder).is_dir() and str(folder) not in GROUPS
    ]


def check_special_ids(root: Path) -> list[str]:
    """Find imports of the ids of special tokens outside `MODELS`."""
    return [
        f"{path}:{getattr(node, 'lineno', 0)}: use the special ids of the tokenizer or the model instead of {name}"
        for path, module, tree in sources(root)
        if room_of(module) not in MODELS
        for node in nodes(tree)
        for name in imported(node, path)
        if name.startswith(f"{PACKAGE}.data.") and name.split(".")[-1] in SPECIAL_IDS
    ]


def check_opaque_states(root: Path) -> list[str]:
    """Find code outside `MODELS` that reads attributes of the state or the conditions of a backbone."""
    return [
        f"{path}:{node.lineno}: .{node.attr} is an attribute of an opaque state"
        for path, module, tree in sources(root)
        if room_of(module) not in MODELS
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and node.attr in STATE_ATTRIBUTES
    ]


Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [
    check_rooms,
    check_import_order,
    check_independent_rooms,
    check_room_sizes,
    check_test_folders,
    check_body_lengths,
    check_parameters,
    check_prints,
    check_vague_names,
    check_opaque_states,
    check_special_ids,
    check_unsafe_code,
]
