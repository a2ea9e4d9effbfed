"""A run with a frozen pretrained base in one context, as a LoRA file of PEFT or of llama.cpp.

The change P Q + L R of a map is a LoRA B A with A = [P L]^T and B = [Q; R]^T, whose scale alpha / r is 1. Changes of
biases become the biases of B, which PEFT reads (`lora_bias`), but llama.cpp and vLLM do not. The change of the output
bias is the bias of a LoRA of the output layer whose matrices are zero.

Shapes: D inputs, O outputs, R rank, V vocabulary, H vector of the backbone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.extras import missing_package_error
from factorcell.runs.fixed_context import NEVER, FixedContext
from factorcell.runs.merged_model import Architecture

EXPERTS = "gate_up_proj"  # the name of the weights of all experts of a layer in `transformers`
EXPERT_MAPS = {"gate_proj", "up_proj", "down_proj"}  # names that PEFT reads as those of experts if a base has experts
GGUF_FILE = "adapter.gguf"
# Type of a model in `transformers` -> the name of the architecture in GGUF files, and whether llama.cpp stores the rows
# of the query and key maps in another order.
GGUF_ARCHITECTURES = {
    "llama": ("llama", True),
    "mistral": ("llama", True),
    "qwen2": ("qwen2", False),
    "qwen3": ("qwen3", False),
    "gemma": ("gemma", False),
    "gpt2": ("gpt2", False),
    "phi3": ("phi3", False),
    "starcoder2": ("starcoder2", False),
}


class LowRankChange(NamedTuple):
    """The change of the map at a path of the model: A (R, D), B (O, R), and the change of the bias (O,), or None."""

    path: str
    a: Tensor
    b: Tensor
    bias: Tensor | None


def low_rank_changes(fixed: FixedContext) -> list[LowRankChange]:
    """Return the change of each map; a map of which only the bias changes has matrices of zeros."""
    changes = []
    for projection, shift in fixed.maps():
        if (factors := shift.low_rank_factors()) is not None:
            a, b = factors[0].T, factors[1].T
        else:
            inputs, outputs = projection.matrix().shape
            a, b = zeros(inputs, outputs, projection.weight)
        changes.append(LowRankChange(projection.path, a, b, None if shift.bias is None else shift.bias[0]))
    return changes


def zeros(inputs: int, outputs: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return A (1, D) and B (O, 1) of zeros on the device and in the number type of `like`."""
    return like.new_zeros(1, inputs), like.new_zeros(outputs, 1)


def write_peft(fixed: FixedContext, folder: Path) -> None:
    """Write a LoRA in the format of the library PEFT to `folder`; it has biases only if the context changes biases."""
    architecture = Architecture.of(fixed)
    changes = low_rank_changes(fixed)
    rank = changes[0].a.shape[0]
    output_change = _output_change(fixed, architecture)
    if output_change is not None:
        changes.append(output_change)
    has_biases = any(change.bias is not None for change in changes)
    tensors: dict[str, Tensor] = {}
    for change in changes:
        name = f"base_model.model.{change.path}"
        tensors |= {f"{name}.lora_A.weight": change.a, f"{name}.lora_B.weight": change.b}
        if has_biases:
            bias = change.b.new_zeros(len(change.b)) if change.bias is None else change.bias
            tensors[f"{name}.lora_B.bias"] = bias
    ranks = {change.path: change.a.shape[0] for change in changes if change.a.shape[0] != rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": fixed.backbone.options.base,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": ranks,
        "alpha_pattern": ranks,
        "lora_dropout": 0.0,
        "lora_bias": has_biases,
        "bias": "none",
        "fan_in_fan_out": not isinstance(architecture.model.get_submodule(changes[0].path), nn.Linear),
        "target_modules": sorted({change.path.rpartition(".")[2] for change in changes}),
        "inference_mode": True,
    }
    cpu_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files.write(folder / "adapter_model.safetensors", save(cpu_tensors, {"format": "pt"}))
    files.write_json(folder / "adapter_config.json", config)


def _output_change(fixed: FixedContext, architecture: Architecture) -> LowRankChange | None:
    """Return the change of the output layer of the base, or None if its bias does not change.

    Tokens that only the output layer of the base has, such as padding of its table, get the bias `NEVER`.
    """
    if not fixed.changes_output_bias:
        return None
    outputs = architecture.model.get_output_embeddings()
    size, width = outputs.weight.shape
    change = fixed.output_change.float()[:size]
    bias = torch.cat([change, change.new_full((size - len(change),), NEVER)])
    return LowRankChange(architecture.path_of(outputs), *zeros(width, size, change), bias)


def write_gguf(fixed: FixedContext, folder: Path) -> None:
    """Write the low-rank changes of matrices as the LoRA of llama.cpp, `adapter.gguf`, to `folder`.

    Raises:
        UserError: The package gguf is missing, or a map has no name in GGUF files.
    """
    try:
        import gguf
    except ImportError:
        raise missing_package_error("gguf-lora", "gguf", "transformers") from None
    architecture = Architecture.of(fixed)
    changes = low_rank_changes(fixed)
    gguf_name, _ = GGUF_ARCHITECTURES[architecture.config.model_type]
    writer = gguf.GGUFWriter(folder / GGUF_FILE, gguf_name)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(changes[0].a.shape[0]))
    for name, a, b in gguf_tensors(changes, architecture.config):
        writer.add_tensor(f"{name}.weight.lora_a", a)
        writer.add_tensor(f"{name}.weight.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_run(fixed: FixedContext, *, is_gguf: bool) -> None:
    """Raise `UserError` unless a LoRA of the base can store the changes; `is_gguf`: a LoRA of llama.cpp."""
    where, config = fixed.run.folder, fixed.backbone.base.config.get_text_config(decoder=True)
    if not fixed.backbone.is_frozen:
        raise UserError(f"{where}: a LoRA needs a frozen pretrained base, but training changed all weights; use merged")
    if any(shift.scale is not None for _, shift in fixed.maps()):
        raise UserError(f"{where}: a LoRA cannot store the adapter scale, whose change has no low rank; use merged")
    if fixed.run.model.specials.end >= fixed.base_vocabulary_size:
        raise UserError(f"{where}: its base has no end token, so a LoRA cannot end a text; use merged")
    has_experts = any(name.endswith(f".{EXPERTS}") for name, _ in fixed.backbone.base.named_parameters())
    names = {projection.path.rpartition(".")[2] for projection, _ in fixed.maps()}
    if has_experts and (ambiguous := sorted(names & EXPERT_MAPS)):
        problem = f"PEFT takes {', '.join(ambiguous)} for experts, because the base has experts"
        raise UserError(f"{where}: {problem}; use merged, or train with --target-modules without these maps")
    if is_gguf and config.model_type not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise UserError(f"gguf-lora: expected a base of the architecture {known}, got {config.model_type}; use merged")


def gguf_tensors(changes: list[LowRankChange], config: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield for each change the name of its map in a GGUF file, A (R, D) and B (O, R), as float32 arrays."""
    import gguf

    gguf_name, is_reordered = GGUF_ARCHITECTURES[config.model_type]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == gguf_name)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", None)}
    for change in changes:
        name = names.get_name(change.path)
        if name is None:
            raise UserError(f"gguf-lora: the map {change.path} has no name in GGUF files; use lora or merged")
        a, b = (tensor.detach().float().cpu().numpy() for tensor in (change.a, change.b))
        last_name = change.path.rpartition(".")[2]
        if is_reordered and last_name in heads:
            b = interleave_halves(b, heads[last_name] or config.num_attention_heads)
        yield name, np.ascontiguousarray(a), np.ascontiguousarray(b)


def interleave_halves(rows: Any, heads: int) -> Any:
    """Return the `rows` of a query or key map in the order of llama.cpp.

    `transformers` rotates row i of the first half of each head with row i of the second half, llama.cpp adjacent rows.
    """
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
