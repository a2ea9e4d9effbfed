"""Help and shell completion: they are fast, complete and correct, and use colours only where appropriate."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import factorcell
from factorcell.commands.cli.main import COMMANDS, GROUPS, find_command, find_function, main, make_parser
from factorcell.commands.cli.options import COMMON_OPTIONS
from factorcell.completion.online import OPTIMIZERS
from factorcell.config import EXTENSIBLE, PAPER_MODELS, TRANSFORMER_OPTIONS, Config, HuggingFaceOptions, option_types
from factorcell.config import OPTION_KINDS as OPTION_KINDS
from factorcell.nn.backbones.backbone import register_backbone
from factorcell.options import limits
from factorcell.training.proximal import PARTS
from tests import ROOT
from tests.commands.leaf_commands import LEAVES, PATHS, parser
from tests.plugins import Growing, GrowingOptions

HEAVY = (
    "torch",
    "numpy",
    "matplotlib",
    "jinja2",
    "optuna",
    "pyarrow",
    "sklearn",
    "tqdm",
    "importlib.metadata",
)
SOURCES = ROOT / "src" / "factorcell"


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a terminal of 80 columns without colours."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def help_of(*words: str) -> str:
    """Return the help of a command with all options."""
    return parser(*words, shows_all=True).format_help()


def heavy_modules_after(code: str) -> str:
    """Return the heavy modules that are imported after running some code in a new process."""
    check = f"\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=True)
    return done.stderr.strip()


@pytest.mark.parametrize("name", [None, "Number", "UserError"])
def test_importing_the_package_imports_no_heavy_modules(name: str | None) -> None:
    assert heavy_modules_after("import factorcell" if name is None else f"from factorcell import {name}") == ""


def test_help_imports_no_heavy_modules() -> None:
    every = [["--help"], *([*words, "--help-all"] for words in PATHS)]
    code = (
        "import contextlib\nfrom factorcell.commands.cli.main import main\n"
        f"for words in {every}:\n    with contextlib.suppress(SystemExit):\n        main(words)"
    )
    assert heavy_modules_after(code) == ""


def test_only_reports_and_the_search_for_options_import_chart_libraries() -> None:
    with_charts = re.compile(r"from factorcell[.](reports[. ]|commands[.]demo |training import tuning)")
    imports = {
        ast.unparse(node)
        for path in (SOURCES / "commands").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    code = "\n".join(sorted(line for line in imports if not with_charts.match(line)))
    assert {"matplotlib", "optuna", "sklearn"}.isdisjoint(heavy_modules_after(code).split())


def lazy_packages() -> list[Path]:
    """Return the `__init__` of every package that imports names lazily."""
    return [
        path for path in sorted(SOURCES.rglob("__init__.py")) if "lazy_exports(" in path.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("path", lazy_packages(), ids=lambda path: path.parent.name)
def test_lazy_names_match_the_imports_for_type_checkers(path: Path) -> None:
    package_name = ".".join(["factorcell", *path.parent.relative_to(SOURCES).parts])
    package = importlib.import_module(package_name)
    imported = {
        alias.name: node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "factorcell.io.lazy")
        for alias in node.names
    }
    assert sorted(imported) == sorted(package.__all__) == sorted(set(package.__all__))
    for name, module in imported.items():
        assert getattr(package, name) is getattr(sys.modules[str(module)], name)
        assert name in dir(package)
        assert not (path.parent / f"{name}.py").exists()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_public_names_are_sorted() -> None:
    assert sorted(factorcell.__all__) == factorcell.__all__


def test_choices_match_the_names_in_the_library() -> None:
    assert tuple(OPTIMIZERS) == limits.ONLINE_OPTIMIZERS
    assert tuple(PARTS) == limits.MODEL_PARTS


def test_help_lists_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    parts = re.split(r"^(\S.*)\n(?=  )", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    shown = {
        title: re.findall(r"^  (\S+(?: \S+)?)  ", text, re.MULTILINE)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }
    assert shown == {title: list(commands) for title, (_, commands) in GROUPS.items()}
    assert len(COMMANDS) == sum(map(len, shown.values()))


@pytest.mark.parametrize("words", [[], ["baseline"]])
def test_a_missing_command_shows_the_list_of_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert main([*words, "--help"]) == 0
    assert shown == capsys.readouterr()


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"factorcell {factorcell.__version__}\n"
    assert main(["baseline", "--version"]) == 2


def test_every_command_has_a_function() -> None:
    for words in LEAVES:
        function = find_function(" ".join(words), "run")
        assert function.__name__ == "run_" + "_".join(words).replace("-", "_")


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_the_complete_help_lists_every_option_once_required_first(words: list[str]) -> None:
    text, actions = help_of(*words), parser(*words).actions
    usage, *lines = text.splitlines()
    assert usage.startswith(f"usage: factorcell {' '.join(words)} [options]")
    assert len(usage) <= 110
    assert not re.search("default: [)]|None|SUPPRESS", text)
    shown = [word for line in lines for word in re.findall(r"^  (--[a-z0-9-]+)", line)]
    flags = [
        next(name for name in action.option_strings if name.startswith("--"))
        for action in actions
        if action.option_strings
    ]
    assert sorted(shown) == sorted(flags)
    assert all(action.help for action in actions)
    required = [action.option_strings[0] for action in actions if action.option_strings and action.required]
    assert shown[: len(required)] == required


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_the_help_shows_few_options_and_counts_the_others(words: list[str]) -> None:
    command = parser(*words)
    short, complete = command.format_help(), help_of(*words)
    rare = [action.option_strings[0] for action in command.actions if action.help == "==SUPPRESS=="]
    assert len(command.actions) - len(rare) <= 26
    assert not [flag for flag in rare if re.search(rf"^  {flag}\b", short, re.MULTILINE)]
    count = f"factorcell {' '.join(words)} --help-all also shows {len(rare)} rarely needed options."
    assert short.rstrip().endswith(count) == bool(rare)
    assert (short == complete) == (not rare)


def test_the_help_of_train_shows_the_options_that_most_trainings_use() -> None:
    shown = re.findall(r"^  (--[a-z-]+)", parser("train").format_help(), re.MULTILINE)
    assert {
        "--out",
        "--dev",
        "--text",
        "--context",
        "--tokenizer",
        "--base",
        "--model",
        "--minutes",
        "--epochs",
    } <= set(shown)
    assert len(shown) <= 22


def test_the_common_options_exist() -> None:
    fields = {section if name == "kind" else name for section, names in Config().to_dict().items() for name in names}
    assert set(COMMON_OPTIONS) - {"base"} <= fields
    assert set(TRANSFORMER_OPTIONS) <= {*option_types(HuggingFaceOptions)}


def test_options_of_other_packages_are_shown_with_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in EXTENSIBLE.values():
        monkeypatch.setattr(registry, "registered", {})
    register_backbone("growing", Growing)
    command = make_parser("train", ["train", "--backbone", "growing"])
    plugin_flags = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(GrowingOptions)} - {"--kind"}
    assert plugin_flags
    assert plugin_flags <= set(re.findall(r"^  (--[a-z-]+)", command.format_help(), re.MULTILINE))


def defaults(text: str) -> dict[str, str]:
    """Return the default of each option in a help text."""
    values = {}
    for part in re.split(r"\n  (?=-)", text)[1:]:
        entry = " ".join(re.split(r"\n\n", part)[0].split())
        if default := re.search(r"[(;] ?default: ([^)]*)\)", entry):
            values[entry.split()[0].rstrip(",")] = default[1]
    return values


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train", {"--adapt": "automatic", "--rank": "automatic", "--max-tokens": "200", "--tokenizer": "word"}),
        ("finetune", {"--epochs": str(limits.SMALL_DATA_DEFAULTS["epochs"]), "--batch-tokens": "as in RUN"}),
        ("compare", {"--models": " ".join(PAPER_MODELS), "--seeds": "1"}),
        ("generate", {"--unknown": "error", "--precision": "auto"}),
        ("complete", {"--unknown": "error", "--precision": "auto"}),
        ("demo", {"--page": "demo.html"}),
    ],
)
def test_the_help_shows_the_defaults(words: str, expected: dict[str, str]) -> None:
    assert expected.items() <= defaults(help_of(words)).items()


def test_commands_are_found_by_their_words() -> None:
    assert find_command(["baseline", "ngram", "x"]) == "baseline ngram"
    assert find_command(["score", "run"]) == "score"
    assert not find_command(["sing"])
    assert not find_command(["baseline"])
