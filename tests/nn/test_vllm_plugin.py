"""The plugin of vLLM, against the interface of vLLM 0.33: a resolver of LoRAs by their names."""

import abc
import asyncio
import gc
import platform
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from factorcell.errors import UserError
from factorcell.runs import vllm_plugin
from factorcell.runs.run import Run
from tests.nn.test_exporting import FACTOR, OSLO, ROME, assert_same, load_lora, random_run

# Exports of small runs warn that PEFT uses an old name.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


class LoRAResolver(abc.ABC):
    @abc.abstractmethod
    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any: ...


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


class Registry:
    def __init__(self) -> None:
        self.resolvers: dict[str, LoRAResolver] = {}

    def register_resolver(self, resolver_name: str, resolver: LoRAResolver) -> None:
        self.resolvers[resolver_name] = resolver


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return random_run(tmp_path, "llama", **FACTOR)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    modules: dict[str, dict[str, Any]] = {
        "vllm.lora.resolver": {"LoRAResolver": LoRAResolver, "LoRAResolverRegistry": registry},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return registry


def resolve(registry: Registry, name: str) -> LoRARequest | None:
    result: LoRARequest | None = asyncio.run(registry.resolvers["factorcell"].resolve_lora("base", name))
    return result


def test_a_request_gets_the_lora_of_its_context(
    run: Run, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save_weights({})
    monkeypatch.setenv("FACTORCELL_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("FACTORCELL_LORAS", str(tmp_path / "loras"))
    vllm_plugin.register()
    ids = set()
    for context in (OSLO, ROME):
        answer = resolve(registry, f"city={context['city']}")
        assert answer is not None
        assert answer.lora_name == f"city={context['city']}"
        assert_same(run, context, load_lora(tmp_path / "llama", Path(answer.lora_path)))
        ids.add(answer.lora_int_id)
    assert len(ids) == 2
    assert min(ids) > 0
    for name in ("another-adapter", "city=Atlantis", "town=Oslo", "city=Oslo;city=Rome", "../../etc=1"):
        assert resolve(registry, name) is None
    first = resolve(registry, "city=Oslo")
    vllm_plugin.register()  # as in another process
    second = resolve(registry, "city=Oslo")
    assert first is not None
    assert second is not None
    assert first.lora_path != second.lora_path
    assert Path(second.lora_path).is_dir()


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("stars=5;city=Oslo", {"stars": "5", "city": "Oslo"}),
        ("note=a%3Bb%3D%25;city=", {"note": "a;b=%", "city": ""}),
        ("city=New York", {"city": "New York"}),
        ("formula=a=b", {"formula": "a=b"}),
        ("=5", None),
        ("stars", None),
        ("stars=5;", None),
        ("stars=5;stars=4", None),
        ("note=" + "a" * 2000, None),
    ],
)
def test_names_describe_contexts(name: str, context: dict[str, str] | None) -> None:
    assert vllm_plugin.parse_name(name) == context


def test_folders_are_bounded_and_shared_by_names_of_one_context(run: Run, tmp_path: Path) -> None:
    run.save_weights({})
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / "loras" / f"factorcell-{int(ended.stdout)}@{platform.node()}-x").mkdir(parents=True)
    loras = vllm_plugin.ContextLoras(run.folder, tmp_path / "loras", count=2)
    first, second = loras.find("city=Oslo"), loras.find("city=Rome")
    assert loras.find(" city=Oslo") == first  # the second one is now the oldest
    assert loras.find("city=") not in (first, second, None)
    assert first is not None
    assert second is not None
    assert first.is_dir()
    assert not second.exists()
    assert loras.find("city=Rome") == second
    assert second.is_dir()
    shutil.rmtree(tmp_path / "loras")  # as by a cleaner of temporary files
    assert loras.find("city=Rome") == second
    assert second.is_dir()
    assert loras.find("city=Oslo") == first
    assert first.is_dir()
    del loras
    gc.collect()
    assert not list((tmp_path / "loras").iterdir())


def test_runs_with_biases_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = random_run(tmp_path, "llama", adapt=("concat",))
    run.save_weights({})
    assert vllm_plugin.ContextLoras(run.folder, tmp_path / "loras").find("city=Oslo") is None
    assert "vLLM reads no biases of a LoRA" in caplog.text


def test_wrong_variables_are_named(
    run: Run, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_plugin.register()  # without a run, vLLM works as before
    assert not registry.resolvers
    run.save_weights({})
    monkeypatch.setenv("FACTORCELL_RUN", str(tmp_path / "run"))
    with pytest.raises(UserError, match="FACTORCELL_LORAS"):
        vllm_plugin.register()
    monkeypatch.setenv("FACTORCELL_LORAS", str(tmp_path / "loras"))
    monkeypatch.setenv("FACTORCELL_LORA_COUNT", "none")
    with pytest.raises(UserError, match="FACTORCELL_LORA_COUNT"):
        vllm_plugin.register()
    monkeypatch.setenv("FACTORCELL_LORA_COUNT", "2")
    monkeypatch.setenv("FACTORCELL_RUN", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"FACTORCELL_RUN: expected a run folder, got .*nothing"):
        vllm_plugin.register()
