"""Fixtures of all tests: fixed seeds and threads.

Results depend on rounding, and so on the kernel and the number of threads: `FACTORCELL_KERNEL` sets the one, and
`FACTORCELL_TEST_THREADS` (default: 1) the other.
"""

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

from factorcell.io.findings import log_once
from tests import synthetic
from tests.chromium import chromium_path, open_chromium

if not torch.cuda.is_available():  # read when kernels are defined, so it must be set before factorcell is imported
    os.environ["TRITON_INTERPRET"] = "1"


THREADS = int(os.environ.get("FACTORCELL_TEST_THREADS", "1"))

# Without a GPU `torch.manual_seed` records the stack of every call, which takes a millisecond.
_seed_torch = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


class _TorchRandom:
    """PyTorch's generator with the interface that hypothesis requires to replay examples."""

    seed = staticmethod(_seed_torch)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


_TORCH_RANDOM = _TorchRandom()  # hypothesis has only a weak reference to it


def pytest_configure() -> None:
    """Set the number of threads, and use deterministic examples without a deadline."""
    torch.set_num_threads(THREADS)
    # A shell ignores SIGINT in background jobs, and the child processes of tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.register_random(_TORCH_RANDOM)
    hypothesis.settings.register_profile("factorcell", deadline=None, derandomize=True)
    phases = hypothesis.Phase.explicit, hypothesis.Phase.generate
    hypothesis.settings.register_profile("no shrinking", deadline=None, derandomize=True, phases=phases)
    hypothesis.settings.load_profile("factorcell")


def pytest_collection_finish() -> None:
    """Exclude all objects that exist before the first test from garbage collection, which saves time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _threads() -> None:
    """Reset the number of threads before fixtures of a module, which run before those of a test."""
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def seed() -> int:
    """Start every test with the same seeds and number of threads."""
    torch.set_num_threads(THREADS)
    random.seed(0)
    np.random.seed(0)
    _seed_torch(0)
    return 0


@pytest.fixture(autouse=True)
def _forget_findings() -> None:
    """Let every test log findings that an earlier test has logged."""
    log_once.cache_clear()


@pytest.fixture(autouse=True)
def _restore_kernel() -> Iterator[None]:
    """Restore the choice of the compiled kernel after each test."""
    setting = os.environ.get("FACTORCELL_KERNEL")
    yield
    os.environ.pop("FACTORCELL_KERNEL", None)
    if setting is not None:
        os.environ["FACTORCELL_KERNEL"] = setting


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Disable `fsync`, which only protects from power failures; tests about it replace the function themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def two_dialects() -> Callable[[int, int], tuple[list[dict[str, str]], float]]:
    """The function `synthetic.two_dialects`: (rows, seed) to rows and their true perplexity."""
    return synthetic.two_dialects


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, closed after each module, because tests of other modules start event loops."""
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed; make check-slow installs it")
    if chromium_path() is None:
        pytest.skip("Chromium is not installed")
    with open_chromium() as chromium:
        yield chromium
