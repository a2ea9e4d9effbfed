"""Recording of kernels in CUDA graphs, which launch them again without Python."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

_RECORDING = threading.Lock()  # PyTorch records one graph at a time


@cache
def _recording_stream(device: int) -> torch.cuda.Stream:
    """Return the stream of all recordings on a GPU: one stream, because PyTorch keeps working memory per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def on_recording_stream() -> Iterator[None]:
    """Run kernels on the stream of recordings, after those that are launched already and before all later ones."""
    stream = _recording_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def record(work: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Record the kernels that `work` launches in a CUDA graph; return the function that launches them again."""
    graph = torch.cuda.CUDAGraph()
    with _RECORDING, on_recording_stream():
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # which only says that the recording is not valid
                graph.capture_end()
            raise
        graph.capture_end()
    return graph.replay
