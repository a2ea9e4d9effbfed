"""Operators of PyTorch made of functions of ours: what `torch.library.custom_op` does, without the compiler of PyTorch.

Its operators import `torch._dynamo` at their first call, which takes two seconds of every process that reads one text.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload


def operator(name: str) -> "Callable[[Callable[..., Any]], OpOverload[..., Any]]":
    """Make the operator `factorcell::NAME` of a function that changes none of its arguments and returns none of them.

    Its gradient, and its shapes without data, are registered by that name with `torch.library`.
    """

    def made(function: Callable[..., Any]) -> "OpOverload[..., Any]":
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(f"factorcell::{name}", schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(f"factorcell::{name}", "default", function)
        overload: OpOverload[..., Any] = getattr(torch.ops.factorcell, name).default
        return overload

    return made
