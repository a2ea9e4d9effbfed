"""Tests of size estimates, and that models which do not fit into memory are rejected."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell.config import ADAPTERS, CELLS, OUTPUT_BIASES, Config
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.errors import UserError
from factorcell.io import files, memory
from factorcell.nn import sizes
from factorcell.nn.language_model import LanguageModel
from factorcell.runs.run import Run
from paper_kinds import SizedSoftmaxOptions
from tests.small_runs import make_run

NUMBERS = (0.0,) * 6
VARIABLES = (
    Variable("city", "category", values=("<unknown>", "Oslo", "Nice"), counts=(0, 2, 1)),
    Variable("stars", "category", values=("<unknown>", "1"), counts=(1, 1)),
    Variable("lat", "number"),
    Variable("hour", "hour", period=24.0, means=NUMBERS, deviations=(1.0,) * 6),
    Variable("title", "text", values=("a", "b", "c"), shares=(0.5, 0.3, 0.2)),
    Variable("topics", "vector", means=NUMBERS[:4], deviations=(1.0,) * 4),
)
SCHEMAS = [(), VARIABLES, VARIABLES[:1], VARIABLES[2:3], VARIABLES[3:]]
SMALL = {"embedding_size": 5, "hidden_size": 7, "context_size": 3, "variable_size": 2, "rank": 2}
OPTIONS: list[dict[str, Any]] = [
    *({"cell": cell, "layer_norm": norm, "layers": 2} for cell, norm in itertools.product(CELLS, (False, True))),
    *({"adapt": (name,), "output_bias": ()} for name in ADAPTERS),
    *({"adapt": (), "output_bias": (name,)} for name in OUTPUT_BIASES),
    {"adapt": ADAPTERS, "output_bias": OUTPUT_BIASES, "layers": 3},
    {"adapt": (), "output_bias": ()},
    {"rank": 0},
    {"context_layer": "relu"},
    {"bloom_size": 0, "output_bias": ("hash",)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: json.dumps(options)[:60])
def test_tensor_shapes_equal_those_of_the_model(options: dict[str, Any]) -> None:
    config = Config.of(**{**SMALL, "head": SizedSoftmaxOptions.kind, "hash_size": 50, "bloom_size": 500, **options})
    for variables in SCHEMAS:
        model, before = LanguageModel(config, 60, schema := ContextSchema(variables)), torch.get_rng_state()
        shapes = sizes.tensor_shapes(config, 60, schema)
        assert torch.equal(torch.get_rng_state(), before)
        assert shapes == {name: tuple(tensor.shape) for name, tensor in model.saved_tensors().items()}


@pytest.mark.parametrize(
    "model",
    [
        {"rank": 1_000_000, "hidden_size": 200, "embedding_size": 150, "context_size": 16},
        {"layers": 100, "hidden_size": 40_000},
        {"hidden_size": 1_000_000},
    ],
)
def test_model_that_does_not_fit_into_memory_is_rejected(tmp_path: Path, model: dict[str, Any]) -> None:
    with pytest.raises(
        UserError, match=r"parameters would take about [\d,.]+ GiB of memory; this machine has [\d.]+ GiB"
    ):
        make_run(tmp_path / "run", **model)
    assert not (tmp_path / "run").exists()


def test_tensor_size_that_overflows_is_rejected(tmp_path: Path) -> None:
    huge: dict[str, Any] = {
        "embedding_size": 1_000_000,
        "hidden_size": 1_000_000,
        "context_size": 1_000_000,
        "rank": 1_000_000,
    }
    with pytest.raises(UserError, match=r"more than 2\^63 bytes; reduce its sizes"):
        make_run(tmp_path / "run", **huge)
    assert not (tmp_path / "run").exists()


def test_memory_limit_of_the_user_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run").save_weights({})
    Run.open(tmp_path / "run")
    monkeypatch.setenv(memory.LIMIT_VARIABLE, "1e-6")
    with pytest.raises(
        UserError, match=r"a model of .* parameters would take about 0 MiB of memory; the limit is 0 MiB"
    ):
        Run.open(tmp_path / "run")
    for invalid in ("much", "nan", "-1", "0"):
        monkeypatch.setenv(memory.LIMIT_VARIABLE, invalid)
        with pytest.raises(UserError, match=r"FACTORCELL_MAX_MEMORY is|max_memory is"):
            memory.memory_limit()


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "5000"}, 5000),
        ("0::/", {"memory.max": "7000"}, 7000),
        ("0::/a", {}, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
    ],
)
def test_memory_limit_of_a_control_group_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, files: dict[str, str], expected: int
) -> None:
    for name, content in {"group": group, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n", encoding="utf-8")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "CONTROL_GROUP_OF_PROCESS", tmp_path / "group")
    assert memory.machine_memory() == expected


def test_config_that_does_not_match_its_weights_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run").save_weights({})
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["backbone"]["hidden_size"] = 1_000_000
    files.write_json(path, content)
    monkeypatch.setattr(torch, "rand", None)  # fails if weights are drawn
    with pytest.raises(
        UserError,
        match=r"does not belong to this config, schema and vocabulary \(backbone.cells.0.linear.weight: expected",
    ):
        Run.open(tmp_path / "run")
