"""A plugin of vLLM: a request for the adapter `stars=5;city=Oslo` gets the LoRA of this context.

vLLM calls `register` when it starts. The variables FACTORCELL_RUN and FACTORCELL_LORAS name the run and the folder of
the LoRAs.
"""

import asyncio
import hashlib
import importlib
import logging
import os
import shutil
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from factorcell.errors import UserError
from factorcell.runs.exporting import export
from factorcell.runs.run import Run

RUN_VARIABLE, FOLDER_VARIABLE, COUNT_VARIABLE = "FACTORCELL_RUN", "FACTORCELL_LORAS", "FACTORCELL_LORA_COUNT"
DEFAULT_COUNT = 1000
PREFIX = "context-"  # of the names of folders
LOG = logging.getLogger(__name__)


def parse_name(name: str) -> dict[str, str] | None:
    """Return the context in the name of an adapter, with escapes as in addresses; None if it has none."""
    parts = [part.partition("=") for part in name.split(";")]
    context = {unquote(column).strip(): unquote(value) for column, _, value in parts}
    is_context = all(sign for _, sign, _ in parts) and "" not in context and len(context) == len(parts)
    return context if is_context else None


class ContextLoras:
    """The LoRAs of a run in contexts, as folders in `folder` that are written when a context is first requested.

    The folders of an earlier server are deleted, and beyond `count`, the least recently requested one.
    """

    def __init__(self, run: Run, folder: Path, count: int = DEFAULT_COUNT) -> None:
        self.run, self.folder, self.count = run, folder, count
        for path in folder.glob(f"{PREFIX}*"):
            shutil.rmtree(path)
        self._lock = threading.Lock()
        self._folders: OrderedDict[tuple[tuple[str, str], ...], Path] = OrderedDict()

    def find(self, name: str) -> Path | None:
        """Return the folder of the LoRA with a name such as `stars=5;city=Oslo`, or None if it has no valid context."""
        context = parse_name(name)
        if context is None:
            return None
        key = tuple(sorted(context.items()))
        with self._lock:
            if key not in self._folders:
                path = self.folder / f"{PREFIX}{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"
                try:
                    export(self.run, path, context=context)
                except UserError as error:
                    LOG.warning("adapter %s: %s", name, error)
                    return None
                self._folders[key] = path
            self._folders.move_to_end(key)
            while len(self._folders) > self.count:
                shutil.rmtree(self._folders.popitem(last=False)[1])
            return self._folders[key]


def register() -> None:
    """Let vLLM ask for the LoRAs of the run that FACTORCELL_RUN names; without this variable, do nothing."""
    if RUN_VARIABLE not in os.environ:
        return
    folder, count = os.environ.get(FOLDER_VARIABLE, ""), os.environ.get(COUNT_VARIABLE, str(DEFAULT_COUNT))
    if not folder:
        raise UserError(f"{FOLDER_VARIABLE}: expected a folder for the LoRAs, got nothing")
    if not count.isdecimal() or not int(count):
        raise UserError(f"{COUNT_VARIABLE}: expected a number of at least 1, got {count!r}")
    loras = ContextLoras(Run.open(os.environ[RUN_VARIABLE], mixture=False), Path(folder), int(count))
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
