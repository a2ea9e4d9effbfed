"""The compiled completer of a device, called from Python as the TypeScript of web/src calls it in WebAssembly."""

import ctypes
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from factorcell.completion.online import OPTIMIZERS
from factorcell.data.text_folds import lower_case
from factorcell.nn.kernels import library

# The arrays of a model in the order of their numbers in native/completer.cpp
ARRAYS = (
    "embedding weight bias norm projection joint concat left right context_bias user_bias joint_bias output_bias"
).split()
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)


class NativeDevice:
    """A completer of an exported folder; `accept` returns the text to suggest for a completion, or None."""

    def __init__(self, folder: Path, accept: Callable[[str], str | None], variant: int = 0) -> None:
        self.library = library.required()
        for name in ("new", "array", "vector", "state", "text"):
            getattr(self.library, f"completer_{name}").restype = ctypes.c_void_p
        for name in ("log_probability", "learn"):
            getattr(self.library, f"completer_{name}").restype = ctypes.c_double
        self.model = model = json.loads((folder / "model.json").read_text())
        sizes, rule, blend = model["sizes"], model["rule"], model["blend"]
        self.rows = OPTIMIZERS[rule["optimizer"]]
        names = ("size", "width", "hidden", "rank", "context", "user", "activation")
        numbers = [*(sizes[name] for name in names), model["specials"]["start"], model["specials"]["end"]]
        numbers += [model["max_tokens"] - 1, self.rows]
        limits = (ctypes.c_double(value) for value in (rule["rate"], rule["max_norm"], blend["threshold"]))
        self.completer = ctypes.c_void_p(self.call("new", np.array(numbers, np.int32), *limits, variant))
        arrays = read_weights(folder)
        for name, array in arrays.items():
            if name in ARRAYS:
                target = self.call("array", self.completer, ARRAYS.index(name), array.size)
                ctypes.memmove(target, array.ctypes.data, array.nbytes)
        self.functions = [FUNCTION(partial(apply, function)) for function in (accept, lower_case)]
        self.call("functions", self.completer, *self.functions)
        self.call("tokens", self.completer, *packed(model["tokens"]), len(model["tokens"]))
        rows = [json.loads(line) for line in (folder / "popularity.jsonl").read_text().splitlines()[1:]]
        counts = np.array([row["count"] for row in rows], np.float64)
        self.call("popular", self.completer, *packed([row["text"] for row in rows]), counts, len(rows))
        self.call("blend", self.completer, np.array(blend["weights"]), len(blend["weights"]))
        self.call("pack", self.completer)
        self.texts = list[str]()
        self.vector[:] = arrays["user"]
        self.begin()

    def call(self, name: str, *values: Any) -> Any:
        arguments = [ctypes.c_void_p(value.ctypes.data) if isinstance(value, np.ndarray) else value for value in values]
        return getattr(self.library, f"completer_{name}")(*arguments)

    @property
    def vector(self) -> np.ndarray:
        """The vector of the user."""
        pointer = ctypes.cast(self.call("vector", self.completer), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (self.model["sizes"]["user"],))

    def begin(self) -> None:
        self.call("begin", self.completer)
        self.call("history", self.completer, *packed(self.texts), len(self.texts))

    def learn(self, ids: Sequence[int], text: str) -> float:
        nats = self.call("learn", self.completer, np.array(ids, np.int32), len(ids))
        self.texts.append(text)
        self.begin()
        return float(nats)

    def complete(self, ids: Sequence[int], prefix: str, k: int) -> list[tuple[str, float, int]]:
        content = prefix.encode()
        seconds = ctypes.c_double(1e9)
        tokens = np.array(ids, np.int32)
        count = self.call("complete", self.completer, tokens, len(ids), content, len(content), 1, k, seconds)
        results = []
        for number in range(count):
            size = self.call("text_bytes", self.completer, number)
            text = ctypes.string_at(self.call("text", self.completer, number), size).decode()
            log_prob = self.call("log_probability", self.completer, number)
            results.append((text, log_prob, self.call("sources", self.completer, number)))
        return results

    def close(self) -> None:
        self.call("delete", self.completer)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an exported run, the integers of each row times the scale of the row."""
    arrays: dict[str, np.ndarray] = load_file(folder / "weights.safetensors")
    for name, array in arrays.items():
        if array.dtype == np.int8:
            scales = arrays[f"{name}.scale"]
            arrays[name] = array * scales.reshape(-1, *[1] * (array.ndim - 1))
    return arrays


def packed(texts: Sequence[str]) -> tuple[bytes, np.ndarray]:
    """Return the joined bytes of texts, and their lengths."""
    parts = [text.encode() for text in texts]
    return b"".join(parts), np.array([len(part) for part in parts], np.int32)


def apply(function: Callable[[str], str | None], pointer: int, size: int, result: int, room: int) -> int:
    text = ctypes.string_at(pointer, size).decode()
    changed = function(text)
    if changed is None or changed == text:
        return 0 if changed is None else -1
    content = changed.encode()[:room]
    ctypes.memmove(result, content, len(content))
    return len(content)
