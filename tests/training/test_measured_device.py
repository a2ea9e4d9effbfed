"""The device "auto" is replaced by the faster one, and a training on a GPU can be resumed without one."""

from pathlib import Path
from typing import Any

import pytest

from factorcell.config import Config
from factorcell.model import devices
from factorcell.training import plan as plans
from factorcell.training import rules, speed
from factorcell.training import trainer as trainers
from factorcell.training.fit import fit
from factorcell.training.plan import Budget, plan, resumed_plan
from tests.small_runs import ROWS
from tests.training.test_plan import OPTIONS, read


@pytest.mark.parametrize("faster", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["config", "options", "minutes"])
def test_the_faster_device_is_measured(faster: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    monkeypatch.setattr(plans, "find_device", lambda name: devices.CPU)
    monkeypatch.setattr(trainers, "find_device", lambda name: devices.CPU)
    monkeypatch.setattr(rules, "MIN_GPU_STEPS", 1)
    monkeypatch.setattr(speed, "MEASURED_SECONDS", 0.05)
    monkeypatch.setattr(speed, "FIRST_TEXTS", 2)
    tokens: dict[str, int] = {}

    def choose(works: dict[str, Any]) -> str:
        tokens.update({name: work() for name, work in works.items()})
        return faster

    monkeypatch.setattr(devices, "choose_device", choose)
    options = {**OPTIONS, "training": {"threads": 1, "precision": "float32"}}
    config = Config.from_dict(options) if kind == "config" else options
    complete = plan(config, *read(), Budget(minutes=0.05) if kind == "minutes" else None)
    assert complete.config.training.device == faster
    assert sum("the faster device when tried; --device sets it" in line for line in complete.notices()) == 1
    if kind != "config":
        cpu_plan = plan({**options, "training": {**options["training"], "device": "cpu"}}, *read())
        assert not cpu_plan.is_device_measured
        is_larger = complete.config.training.batch_tokens > cpu_plan.config.training.batch_tokens
        assert is_larger == (faster == "cuda")
    assert set(tokens) == {"cuda", "cpu"}
    assert min(tokens.values()) > 0
    run = fit(ROWS, ROWS, complete.with_training(epochs=1.0), tmp_path / "run")
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    monkeypatch.setattr(trainers, "find_device", devices.find_device)
    resumed = resumed_plan({}, run.config).config.training
    assert resumed.device == "auto"
    resumed_run = fit(ROWS, ROWS, OPTIONS, tmp_path / "run", resume=True)
    assert resumed_run.config.training.device == "auto"
