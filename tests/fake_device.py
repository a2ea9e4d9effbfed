"""A simulated device, to test device handling without a GPU: its tensors compute on the processor.

Under `FakeDevice` an operation on tensors of both devices fails, as on a real device, and so does reading a value
without copying it to the processor. Results are equal to those on the processor.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # any device type that every build of PyTorch supports
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


def inference_mode(mode: bool = True) -> torch.set_grad_enabled:
    """Replace `torch.inference_mode`, which does not support tensor subclasses."""
    return torch.set_grad_enabled(not mode)


class FakeTensor(Tensor):
    """A tensor on `DEVICE` that is computed on the processor."""

    cpu_values: Tensor  # on the processor

    @staticmethod
    def __new__(cls, values: Tensor) -> "FakeTensor":
        tensor: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, values.stride(), values.storage_offset(), dtype=values.dtype, device=DEVICE
        )
        tensor.cpu_values = values
        return tensor

    def new_tensor(self, data: Any) -> Tensor:  # type: ignore[override]
        """Create a tensor from Python numbers, which is not dispatched as an operation."""
        return FakeTensor(self.cpu_values.new_tensor(data))

    def tolist(self) -> Any:
        """Copy the values to Python, as a tensor of a real device does."""
        return self.cpu_values.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(function, args, kwargs or {})


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which tensors that are requested on `DEVICE` are created as `FakeTensor`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})


def run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run `function` on the processor; `RuntimeError` if it has tensors of both devices, except scalars."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
    if is_fake and function not in COPIES and any(type(t) is not FakeTensor and t.dim() for t in tensors):
        raise RuntimeError(f"{function}: tensors of two devices")
    if kwargs.get("device") is not None:
        is_fake = kwargs["device"] == DEVICE
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(
        lambda leaf: leaf.cpu_values if isinstance(leaf, FakeTensor) else leaf, (args, kwargs)
    )
    result = function(*plain_args, **plain_kwargs)
    if is_fake:
        result = tree_map(lambda leaf: FakeTensor(leaf) if isinstance(leaf, Tensor) else leaf, result)
    return return_and_correct_aliasing(function, args, kwargs, result) if is_fake else result  # type: ignore[no-untyped-call]
