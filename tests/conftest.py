"""What every test stands on: one thread, fixed seeds, and texts whose perplexity is known."""

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

from tests import synthetic

if not torch.cuda.is_available():  # read when a kernel is defined, so before anything of ours is imported
    os.environ["TRITON_INTERPRET"] = "1"


# Without a GPU `torch.manual_seed` keeps the stack of every call, for one that may come: a millisecond each time.
_seed_torch = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


class _TorchRandom:
    """Torch's generator under the names hypothesis asks for, so that an example replays as it was drawn."""

    seed = staticmethod(_seed_torch)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


_TORCH_RANDOM = _TorchRandom()  # hypothesis holds it by a weak reference


def pytest_configure() -> None:
    """One thread for each process; examples fixed by the test's own code, never failed for being slow."""
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; processes of tests inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.register_random(_TORCH_RANDOM)
    hypothesis.settings.register_profile("factorcell", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("factorcell")


@pytest.fixture(scope="session", autouse=True)
def _one_precision() -> Iterator[None]:
    """Where nobody says which numbers are multiplied, they are floats: which are faster differs from run to run.

    It holds for runs that several tests share, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("factorcell.model.precision.is_supported", lambda device: False)
        yield


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: no collection of garbage has to look at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Fixtures of a module come before those of a test, and the tests of another may have left several threads."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> int:
    """Every test starts from the same seeds and one thread, whatever ran before it."""
    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)
    _seed_torch(0)
    return 0


@pytest.fixture(autouse=True)
def _kernel_as_found() -> Iterator[None]:
    """Leave the choice of the compiled kernel as it was."""
    chosen = os.environ.get("FACTORCELL_KERNEL")
    yield
    os.environ.pop("FACTORCELL_KERNEL", None)
    if chosen is not None:
        os.environ["FACTORCELL_KERNEL"] = chosen


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_disks() -> Iterator[None]:
    """No test pulls a plug, so none waits until its files are on disk; those about that watch the calls themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def two_dialects() -> Callable[[int, int], tuple[list[dict[str, str]], float]]:
    """(rows, seed) to rows of `{"text", "dialect"}` and their true perplexity; see synthetic.py."""
    return synthetic.two_dialects


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prepared files go into a folder of this session; the user's own cache is neither read nor filled."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORCELL_CACHE", str(folder))
        yield folder
