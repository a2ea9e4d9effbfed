"""The changes of maps in one context as a LoRA in the files of the library PEFT.

The change P Q + L R of a map is a LoRA B A with A = [P L]^T and B = [Q; R]^T, whose scale alpha / r is 1. Changes of
biases become the biases of B (`lora_bias`), which other readers of these files ignore. For embeddings, which have none
in PEFT, a change of the bias is a further row of A, of ones, and a further column of B.

Shapes: D inputs, O outputs, R rank.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from factorcell.adapters.adapters import Shift
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.nn.backbones.adapted_modules import Projection

EXPERTS = "gate_up_proj"  # the name of the weights of all experts of a layer in `transformers`
EXPERT_MAPS = {"gate_proj", "up_proj", "down_proj"}  # names that PEFT reads as those of experts if a base has experts


class LowRankChange(NamedTuple):
    """The change of the map at a path of the model: A (R, D), B (O, R), and the change of the bias (O,), or None."""

    path: str
    a: Tensor
    b: Tensor
    bias: Tensor | None
    is_embedding: bool = False
    is_transposed: bool = True  # whether the model stores the map as (O, D)


def low_rank_change(projection: Projection, shift: Shift) -> LowRankChange:
    """Return the change of a map in one context, without a scale; the matrices are zeros if only a bias changes."""
    weight, (inputs, outputs) = projection.weight, projection.shape()
    left, right = shift.low_rank_factors() or (weight.new_zeros(inputs, 1), weight.new_zeros(1, outputs))
    right, bias = right * projection.scaling, None if shift.bias is None else shift.bias[0]
    if projection.is_embedding and bias is not None:
        left, right = torch.cat([left, left.new_ones(inputs, 1)], dim=1), torch.cat([right, bias[None]])
        bias = None
    return LowRankChange(projection.path, left.T, right.T, bias, projection.is_embedding, projection.is_transposed)


def expert_problem(base: nn.Module, changes: Iterable[LowRankChange | Projection]) -> str:
    """Return why PEFT would not apply the changes of some maps of a base with experts, or an empty text."""
    names = EXPERT_MAPS.intersection(change.path.rpartition(".")[2] for change in changes)
    if not names or not any(name.endswith(f".{EXPERTS}") for name, _ in base.named_parameters()):
        return ""
    return f"PEFT takes {', '.join(sorted(names))} for experts, because the base has experts"


def write_lora(changes: Sequence[LowRankChange], folder: Path, *, base: str) -> None:
    """Write a LoRA of the base called `base` to `folder`; it has biases only if a bias changes.

    Raises:
        UserError: Embeddings and a bias change, which PEFT cannot read together.
    """
    rank = changes[0].a.shape[0]
    has_biases = any(change.bias is not None for change in changes)
    if has_biases and (path := next((change.path for change in changes if change.is_embedding), None)):
        raise UserError(f"{path}: PEFT reads no changes of biases next to those of embeddings; train without concat")
    tensors: dict[str, Tensor] = {}
    for change in changes:
        name = f"base_model.model.{change.path}.lora"
        names = ("embedding_A", "embedding_B") if change.is_embedding else ("A.weight", "B.weight")
        tensors |= {f"{name}_{names[0]}": change.a, f"{name}_{names[1]}": change.b}
        if has_biases:
            tensors[f"{name}_B.bias"] = change.b.new_zeros(len(change.b)) if change.bias is None else change.bias
    ranks = {change.path: change.a.shape[0] for change in changes if change.a.shape[0] != rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": ranks,
        "alpha_pattern": ranks,
        "lora_dropout": 0.0,
        "lora_bias": has_biases,
        "bias": "none",
        "fan_in_fan_out": any(not (change.is_transposed or change.is_embedding) for change in changes),
        "target_modules": sorted(change.path for change in changes),
        "inference_mode": True,
    }
    cpu_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files.write(folder / "adapter_model.safetensors", save(cpu_tensors, {"format": "pt"}))
    files.write_json(folder / "adapter_config.json", config)
