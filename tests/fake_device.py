"""A device that is not there: its tensors compute on the processor, but nothing else may meet them there.

Under `Elsewhere` an operation that takes tensors from both sides fails, as on a real device, and so does a value that
is read without being brought back; what passes has the values that it has on the processor.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # any that every build of PyTorch knows
CROSSING = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


def inference_mode(mode: bool = True) -> torch.set_grad_enabled:
    """What stands for `torch.inference_mode`, which does not take tensors of Python."""
    return torch.set_grad_enabled(not mode)


class There(Tensor):
    """A tensor on `DEVICE`; computed on the processor."""

    here: Tensor  # the values, on the processor

    @staticmethod
    def __new__(cls, here: Tensor) -> "There":
        made: There = torch.Tensor._make_wrapper_subclass(
            cls, here.shape, here.stride(), here.storage_offset(), dtype=here.dtype, device=DEVICE
        )
        made.here = here
        return made

    def new_tensor(self, data: Any) -> Tensor:  # type: ignore[override]
        """Numbers of Python go there at once, and are not seen as an operation."""
        return There(self.here.new_tensor(data))

    def tolist(self) -> Any:
        """What a tensor of a real device brings back by itself."""
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(function, args, kwargs or {})


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is on, tensors that are asked for on `DEVICE` are made there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})


def run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do `function` on the processor; `RuntimeError` where it takes tensors of both devices, single numbers apart."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, There) for tensor in tensors)
    if there and function not in CROSSING and any(type(t) is not There and t.dim() for t in tensors):
        raise RuntimeError(f"{function}: tensors of two devices")
    if kwargs.get("device") is not None:
        there = kwargs["device"] == DEVICE
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(lambda leaf: leaf.here if isinstance(leaf, There) else leaf, (args, kwargs))
    result = function(*plain_args, **plain_kwargs)
    if there:
        result = tree_map(lambda leaf: There(leaf) if isinstance(leaf, Tensor) else leaf, result)
    return return_and_correct_aliasing(function, args, kwargs, result) if there else result  # type: ignore[no-untyped-call]
