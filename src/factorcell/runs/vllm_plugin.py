"""A plugin of vLLM: a request for the adapter `stars=5;city=Oslo` gets the LoRA of this context.

vLLM calls `register` in each of its processes. The variables FACTORCELL_RUN and FACTORCELL_LORAS name the run and the
folder of the LoRAs.
"""

import asyncio
import hashlib
import importlib
import logging
import os
import platform
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.exporting import export
from factorcell.runs.run import Run, read_config

RUN_VARIABLE, FOLDER_VARIABLE, COUNT_VARIABLE = "FACTORCELL_RUN", "FACTORCELL_LORAS", "FACTORCELL_LORA_COUNT"
DEFAULT_COUNT, MAX_NAME = 1000, 2000  # LoRAs; characters of a name
PREFIX = "factorcell-"  # of the name of the folder of a process, before its id and the name of its machine
LOG = logging.getLogger(__name__)


def parse_name(name: str) -> dict[str, str] | None:
    """Return the context in the name of an adapter, with escapes as in addresses; None if it has none."""
    if len(name) > MAX_NAME:
        return None
    parts = [part.partition("=") for part in name.split(";")]
    context = {unquote(column).strip(): unquote(value) for column, _, value in parts}
    is_context = all(sign for _, sign, _ in parts) and "" not in context and len(context) == len(parts)
    return context if is_context else None


class ContextLoras:
    """The LoRAs of the run in `run_folder`, in contexts, which are written when a context is first requested.

    Beyond `count`, the least recently requested one is deleted. The first request opens the run, and makes a folder of
    this process in `folder`, which is deleted with this object, at the end of the process, or by the next process after
    a crash.
    """

    def __init__(self, run_folder: Path, folder: Path, count: int = DEFAULT_COUNT) -> None:
        self.run_folder, self.folder, self.count = run_folder, folder, count
        self._lock = threading.Lock()
        self._opened: tuple[Run | None, Path] = (None, folder)
        self._folders: OrderedDict[tuple[tuple[str, str], ...], Path] = OrderedDict()

    def _open(self) -> tuple[Run, Path]:
        """Return the run, and the folder of this process."""
        run, folder = self._opened
        if run is None:
            model = read_config(self.run_folder).model
            if model.output_bias or "concat" in model.adapt:
                problem = "a run with concat or an output bias, but vLLM reads no biases of a LoRA"
                raise UserError(f"{self.run_folder}: expected adapters of weights only, got {problem}")
            run = Run.open(self.run_folder, mixture=False)
            files.create_folder(self.folder)
            for path in self.folder.glob(f"{PREFIX}*@{platform.node()}-*"):
                if _has_ended(path.name.removeprefix(PREFIX).partition("@")[0]):
                    shutil.rmtree(path, ignore_errors=True)
            name = f"{PREFIX}{os.getpid()}@{platform.node()}-"
            folder = Path(tempfile.mkdtemp(prefix=name, dir=self.folder))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._opened = run, folder
        return run, folder

    def find(self, name: str) -> Path | None:
        """Return the folder of the LoRA with a name such as `stars=5;city=Oslo`, or None if it has no valid context."""
        context = parse_name(name)
        if context is None:
            return None
        key = tuple(sorted(context.items()))
        with self._lock:
            if key not in self._folders or not self._folders[key].is_dir():
                try:
                    run, folder = self._open()
                    path = folder / hashlib.sha256(repr(key).encode()).hexdigest()[:32]
                    export(run, path, context=context)
                except UserError as error:
                    LOG.warning("adapter %r: %s", name, error)
                    return None
                self._folders[key] = path
            self._folders.move_to_end(key)
            while len(self._folders) > self.count:
                shutil.rmtree(self._folders.popitem(last=False)[1], ignore_errors=True)
            return self._folders[key]


def _has_ended(process: str) -> bool:
    """Return whether there is no process with this id on this machine."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OSError):
        pass
    return False


def register() -> None:
    """Let vLLM ask for the LoRAs of the run that FACTORCELL_RUN names; without this variable, do nothing."""
    if RUN_VARIABLE not in os.environ:
        return
    folder, count = os.environ.get(FOLDER_VARIABLE, ""), os.environ.get(COUNT_VARIABLE, str(DEFAULT_COUNT))
    if not folder:
        raise UserError(f"{FOLDER_VARIABLE}: expected a folder for the LoRAs, got nothing")
    if not count.isdecimal() or not int(count):
        raise UserError(f"{COUNT_VARIABLE}: expected a number of at least 1, got {count!r}")
    if not (run_folder := Path(os.environ[RUN_VARIABLE])).is_dir():
        raise UserError(f"{RUN_VARIABLE}: expected a run folder, got {str(run_folder)!r}")
    loras = ContextLoras(run_folder, Path(folder), int(count))
    registry = importlib.import_module("vllm.lora.resolver").LoRAResolverRegistry
    registry.register_resolver("factorcell", _new_resolver(loras))


def _new_resolver(loras: ContextLoras) -> Any:
    """Return an object that answers the requests of vLLM for adapters."""
    interface, request = (
        importlib.import_module("vllm.lora.resolver").LoRAResolver,
        importlib.import_module("vllm.lora.request").LoRARequest,
    )

    class ContextResolver(interface):  # type: ignore[misc, valid-type]
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
            path = await asyncio.to_thread(loras.find, lora_name)
            if path is None:
                return None
            number = int.from_bytes(hashlib.sha256(lora_name.encode()).digest()[:7]) + 1  # unique, and at least 1
            return request(lora_name=lora_name, lora_int_id=number, lora_path=str(path))

    return ContextResolver()
