"""Tests of adapters and cells of another package: equations, gradients, sizes, and runs that use them."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.adapters.adapters import register_adapter
from factorcell.completion.compiled import CompiledEngine, new_engine
from factorcell.completion.completer import Completer
from factorcell.config import EXTENSIBLE, Config
from factorcell.data.columns.schema import ContextSchema
from factorcell.nn.backbones.cells import register_cell
from factorcell.nn.language_model import LanguageModel
from factorcell.runs.run import Run
from factorcell.runs.summary import render_card
from tests import adapter_plugins
from tests.completion import test_online
from tests.kernels import compiled
from tests.nn import oracles, test_cells, test_combinations, test_sizes
from tests.nn.oracles import Adapted, Array, Norm, Parameters, sigmoid
from tests.small_runs import ROWS, make_letters, make_run

FACTORS = ("scale", "factor")


def bottleneck(weights: Adapted, p: Parameters, c: Array) -> None:
    """The oracle of `Bottleneck`."""
    weights.bias += np.tanh(c @ p["down"]) @ p["up"]


def everything(weights: Adapted, p: Parameters, c: Array) -> None:
    """The oracle of `Everything`."""
    weights.matrix += sum(value * p["left"][k] for k, value in enumerate(c)).T @ p["right"]
    both = np.tanh(c @ p["both"])
    weights.bias += both
    weights.factors *= 1 + both[0]


def minimal(from_input: Array, from_hidden: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """The oracle of `Minimal`."""
    f = [sigmoid(value) for value in norm(0, from_input[0] + from_hidden[0])]
    n = norm(1, from_input[1] + np.array(f) * from_hidden[1])
    return np.array([(1 - f[j]) * h[j] + f[j] * math.tanh(n[j]) for j in range(len(h))]), m


def leaky(from_input: Array, from_hidden: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """The oracle of `Leaky`."""
    i, f, o = (norm(j, gate) for j, gate in enumerate(from_input + from_hidden))
    keep = [sigmoid(value + 1) for value in f]
    after = np.array([keep[j] * m[j] + (1 - keep[j]) * math.tanh(i[j]) / 2 for j in range(len(h))])
    normalized = norm(3, after)
    return np.array([math.tanh(normalized[j]) * sigmoid(o[j]) for j in range(len(h))]), after


@pytest.fixture(autouse=True)
def _register(monkeypatch: pytest.MonkeyPatch) -> None:
    for extensions in EXTENSIBLE.values():
        monkeypatch.setattr(extensions, "registered", dict(extensions.registered))
    for name, adapter in adapter_plugins.ADAPTERS.items():
        register_adapter(name, adapter)
    for name, cell in adapter_plugins.CELLS.items():
        register_cell(name, cell)
    for function in (bottleneck, everything):
        monkeypatch.setitem(oracles.ADAPTERS, function.__name__, function)
    for step in (minimal, leaky):
        monkeypatch.setitem(oracles.CELLS, step.__name__, step)
    combinations = [
        names for count in (1, 2, 4) for names in itertools.combinations((*adapter_plugins.ADAPTERS, *FACTORS), count)
    ]
    monkeypatch.setattr(test_cells, "COMBINATIONS", combinations)
    monkeypatch.setattr(test_combinations, "COMBINATIONS", combinations[-1:])


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("cell", ["coupled", *adapter_plugins.CELLS])
def test_adapters_and_cells_equal_their_equations(cell: str, layer_norm: bool) -> None:
    test_cells.test_forward_equals_the_equations(cell, layer_norm)
    test_cells.test_steps_equal_forward(("everything", "bottleneck"), cell)


@pytest.mark.parametrize("cell", ["coupled", *adapter_plugins.CELLS])
def test_gradients_equal_finite_differences(cell: str) -> None:
    test_cells.test_gradients_equal_finite_differences(("everything", "bottleneck"), cell)
    test_combinations.test_all_ways_of_computing_nats_agree(cell, layer_norm=True, layers=2)


@pytest.mark.parametrize("cell", adapter_plugins.CELLS)
def test_sizes_are_known_before_a_model_is_created(cell: str) -> None:
    for rank in (2, 0):
        test_sizes.test_tensor_shapes_equal_those_of_the_model(
            {"cell": cell, "adapt": tuple(adapter_plugins.ADAPTERS), "rank": rank}
        )
    config = Config.of(adapt=["everything", "bottleneck"], rank=0)
    model = LanguageModel(config, 10, ContextSchema(test_sizes.VARIABLES))
    assert {name.split(".")[5] for name in model.state_dict() if ".adapters." in name and "cells" in name} == {
        "bottleneck"
    }


@compiled
@pytest.mark.parametrize(
    ("options", "has_compiled_search"),
    [
        ({"adapt": ["bottleneck"]}, True),
        ({"adapt": ["bottleneck", "factor"]}, True),
        ({"adapt": ["everything"]}, False),
        ({"adapt": ["bottleneck"], "cell": "leaky"}, False),
        ({"cell": "minimal"}, False),
    ],
)
def test_compiled_code_is_used_if_it_supports_the_model(
    options: dict[str, Any], has_compiled_search: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_letters(**options)
    corpus = run.prepare([{"text": text, "city": city} for text in ("abc", "b") for city in ("Oslo", "Nice")])
    assert isinstance(new_engine(run.model, "float32"), CompiledEngine) == has_compiled_search
    batch, results = corpus.batch(np.arange(4)), []
    for kernel in (None, "off"):
        if kernel:
            monkeypatch.setenv("FACTORCELL_KERNEL", kernel)
        nats = run.model(batch)
        gradients = torch.autograd.grad(nats.sum(), list(run.model.parameters()))
        texts = Completer(run).complete("a", context={"city": "Oslo"}, k=4)
        results.append((nats.detach(), gradients, [suggestion.text for suggestion in texts]))
    torch.testing.assert_close(results[0][:2], results[1][:2], atol=1e-5, rtol=1e-4)
    assert results[0][2] == results[1][2]


@pytest.mark.parametrize("model", [{"adapt": ("bottleneck",)}, {"adapt": ("everything",), "cell": "minimal"}], ids=str)
def test_users_are_learned_online(model: dict[str, Any]) -> None:
    test_online.test_gradients_are_those_of_finite_differences({**model, "output_bias": ()})


def test_run_is_saved_and_opened(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["bottleneck", "everything"], cell="leaky")
    run.save_weights({})
    opened = Run.open(tmp_path / "run")
    assert np.array_equal(opened.nats(opened.prepare(ROWS)), run.nats(run.prepare(ROWS)))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["adapt"] == ["bottleneck", "everything"]
    assert "leaky" in render_card(opened)
