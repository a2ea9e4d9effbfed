"""Division of a large pretrained base among the processes of a training, by FSDP2 of PyTorch.

Each process stores an equal part of each weight of a layer. Before a layer computes, all processes exchange their
parts, so all must take part in each pass through the base. Only frozen weights are divided; adapters, embeddings and
the output layer are copied.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from factorcell.errors import UserError
from factorcell.nn.backbones.huggingface import HuggingFaceBackbone, TransformerConditions, forget_base
from factorcell.runs.run import Run

MAX_SHARE = 0.5  # a base whose weights take a larger share of the memory of a GPU is divided


def must_divide(base: nn.Module, device: torch.device) -> bool:
    """Return whether the weights of a frozen base are too large for one GPU."""
    size = sum(weight.nbytes for weight in base.parameters() if not weight.requires_grad)
    return device.type == "cuda" and size > MAX_SHARE * torch.cuda.get_device_properties(device).total_memory


def divide_large_base(run: Run, device: torch.device) -> bool:
    """Divide the layers of the base of a run among all processes if it is too large; return whether this was done."""
    backbone = run.model.backbone
    if not isinstance(backbone, HuggingFaceBackbone) or not must_divide(backbone.base, device):
        return False
    # Learning a user takes gradients in the first process alone, and a process whose texts have no prompts would make
    # fewer passes than the others.
    for name, is_used in (("the option user", run.config.data.user), ("columns of kind prompt", run.schema.prompts)):
        if is_used:
            problem = f"expected a base that fits on a GPU, got {run.config.backbone}, whose layers processes share"
            raise UserError(f"{name}: {problem}; train without {name}")
    mesh = DeviceMesh.from_group(cast(dist.ProcessGroup, dist.group.WORLD), device.type)
    layers = max((part for part in backbone.base.modules() if isinstance(part, nn.ModuleList)), key=len)
    for layer in layers:
        copied = {weight for weight in layer.parameters() if weight.requires_grad}
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=copied)
    forget_base()
    return True


def is_divided(run: Run) -> bool:
    """Return whether a pass through the model of a run needs all processes."""
    return any(isinstance(part, FSDPModule) for part in run.model.modules())


def surround_passes(run: Run, shared_pass: Callable[[], AbstractContextManager[Any]]) -> None:
    """Compute each pass through the base of a run inside `shared_pass()`."""
    base: Any = run.model.backbone.base
    forward = base.forward

    def forward_together(*inputs: Any, **options: Any) -> Any:
        with shared_pass():
            return forward(*inputs, **options)

    base.forward = forward_together


@torch.no_grad()
def join_pass(run: Run) -> None:
    """Take part in a pass through the base that another process computes, with a text of one token."""
    backbone, conditions = run.model.backbone, TransformerConditions(())
    backbone(torch.zeros(1, 1, backbone.size, device=run.device), conditions, backbone.start(conditions, 1))
