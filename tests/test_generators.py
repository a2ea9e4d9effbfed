"""Functions that return generators check their arguments when they are called, not at the first item."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import factorcell
from factorcell import Completer, Learner, Run, UserError, evaluate, generate
from factorcell.generation import GenerationOptions, stream
from factorcell.runs.run import CHECKPOINT
from factorcell.training import finetune, mix, train
from tests.small_runs import ROWS, make_run

PACKAGES = ["factorcell", *(f"factorcell.{module.name}" for module in pkgutil.iter_modules(factorcell.__path__))]


def public_functions() -> Iterator[tuple[str, Any]]:
    """Yield the functions that packages export, and the public methods of the classes that they export."""
    for package in PACKAGES:
        module = import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type):
                for method_name in dir(value):
                    method = inspect.getattr_static(value, method_name)
                    if not method_name.startswith("_"):
                        yield f"{package}.{name}.{method_name}", getattr(method, "__func__", method)
            else:
                yield f"{package}.{name}", value


def test_no_public_function_is_a_generator_function() -> None:
    """A generator function runs nothing, and so checks nothing, before the first item is requested."""
    functions = dict(public_functions())
    assert {"factorcell.generate", "factorcell.training.train"} <= functions.keys()
    are_late = [
        name
        for name, function in functions.items()
        if isinstance(function, FunctionType)
        and function.__module__.startswith("factorcell")
        and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function))
    ]
    # Its argument is a corpus, of which nothing is checked.
    assert are_late == ["factorcell.Run.batches"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("generators") / "run")


BEAM = GenerationOptions("beam", width=1_000_000, max_tokens=1_000_000)
ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"contexts": {"nope": 1}}, "unknown context column 'nope'"),
    ({"contexts": [{"city": "Oslo"}] * 200 + [{"nope": 1}]}, "unknown context column 'nope'"),
    ({"contexts": {"city": "Atlantis"}}, "Atlantis"),
    ({"contexts": {"city": "Oslo"}, "unknown": "nope"}, "nope"),
    ({"contexts": {0: "Rome"}}, "unknown context column 0"),
    ({"contexts": {None: "Rome"}}, "unknown context column None"),
    ({"contexts": {0: "Rome", "city": "Oslo", None: 1}}, "unknown context column 0"),
    *[({"contexts": {"city": "Oslo"}, "unknown": value}, "unknown policy") for value in (None, 5, ["error"], "")],
    *[({"contexts": {}, "prompt": value}, "prompt: expected a text, got ") for value in (5, None, ["a"], b"a")],
    ({"contexts": {}, "number": None}, "number is None"),
    ({"contexts": {}, "first": None}, "first is None"),
    ({"contexts": {}, "number": 0}, "number is 0"),
    ({"contexts": {}, "first": -1}, "first is -1"),
    ({"contexts": {}, "number": 2, "options": GenerationOptions("greedy")}, "greedy texts"),
    ({"contexts": {}, "options": BEAM}, "of memory"),
]


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS)
def test_generate_checks_its_arguments_at_the_call(run: Run, arguments: dict[str, Any], message: str) -> None:
    for function in (lambda **options: generate(run, **options), run.generate):
        with pytest.raises(UserError, match=message):
            function(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": {"nope": 1}}, "unknown context column 'nope'"),
        ({"context": {"city": "Atlantis"}}, "Atlantis"),
        ({"context": {}, "unknown": "nope"}, "nope"),
        ({"context": {0: "Rome", "city": "Oslo"}}, "unknown context column 0"),
        *[({"context": {}, "prompt": value}, "prompt: expected a text, got ") for value in (5, None, ["a"], b"a")],
        ({"context": {}, "options": GenerationOptions("beam")}, "does not write from left to right"),
    ],
)
def test_stream_checks_its_arguments_at_the_call(run: Run, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        stream(run, **arguments)


@pytest.mark.parametrize("unknown", ["nope", "", None, 5, ["error"]])
def test_the_policy_for_unknown_values_is_checked_at_the_call(unknown: Any, tmp_path: Path) -> None:
    rows = [{"text": text, "user": user} for text in ("abc", "cab") for user in "AB"]
    letters = {"user": "user", "tokenizer": "char", "min_user_count": 1}
    run = make_run(tmp_path / "run", (), letters, rows)
    missing = tmp_path / "missing.csv"
    calls: list[Callable[[], Any]] = [
        lambda: Learner(run, unknown=unknown),
        lambda: Completer(run, unknown=unknown),
        lambda: finetune(run, missing, out=tmp_path / "tuned", unknown=unknown),
        lambda: mix([run.folder], missing, tmp_path / "mix", unknown=unknown),
        lambda: evaluate(run, rows, unknown=unknown),
        lambda: generate(run, {}, unknown=unknown),
    ]
    if unknown is not None:  # the default of `score_rows`
        calls.append(lambda: run.score_rows(rows, unknown=unknown))
    for call in calls:
        with pytest.raises(UserError, match="unknown policy for unknown values"):
            call()
    assert not (tmp_path / "tuned").exists()


def test_a_training_checks_its_run_at_the_call(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    corpus = run.prepare(ROWS)
    (run.folder / CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(UserError, match=CHECKPOINT):
        train(run, corpus, corpus, resume=True)
