"""The compiled code: how it is found and chosen, and that sanitizers find nothing."""

import ctypes
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from factorcell.config import ModelConfig, UserError
from factorcell.model.cells import Cell
from factorcell.model.kernels import library

NATIVE = Path(library.__file__).parent / "native"
HERE = library.library()
VARIANTS = [] if HERE is None else library.VARIANTS[: HERE.factorcell_best() + 1]
compiled = pytest.mark.skipif(HERE is None, reason="not compiled: there was no C++ compiler at installation")


@compiled
def test_half_is_for_autocast_only() -> None:
    assert not library.half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert library.half() == (VARIANTS[-1] in library.WITH_SHORT)
        os.environ["FACTORCELL_KERNEL"] = "plain"
        assert not library.half()


def test_without_the_compiled_code_the_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library.library.cache_clear()
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none.so")
    with caplog.at_level(logging.WARNING):
        cell = Cell(4, 2, ModelConfig(hidden_size=5, rank=1), ("factor",))
        for _ in range(3):
            hidden, _ = cell(torch.randn(2, 3, 4), cell.linear.condition(torch.randn(2, 2)))
    library.library.cache_clear()
    assert hidden.shape == (2, 3, 5)
    assert len(caplog.records) == 1


@compiled
def test_an_unknown_kernel_is_named() -> None:
    os.environ["FACTORCELL_KERNEL"] = "avx51"
    with pytest.raises(UserError, match=r"FACTORCELL_KERNEL.*avx51"):
        library.variant()


def test_memory_is_kept_by_glibc_alone(monkeypatch: pytest.MonkeyPatch) -> None:

    def windows(name: str | None) -> None:
        raise TypeError(f"expected str, not {type(name).__name__}")

    monkeypatch.setattr(library, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr(ctypes, "CDLL", windows)
    library.keep_memory.__wrapped__()
