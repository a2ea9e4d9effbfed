"""Penalties of training by proximal steps, and the starting point of a fine-tuning.

    minimize  nats / targets + l1 sum |w - w0|          over the parts that move

A sparse softmax bias (thesis 2018, section A.1) has w0 = 0 and an l1 per variable.
The prior on values, on their embeddings and hashed buckets, has squares instead of absolute values.

The penalty has no gradient at w0, so each step of Adam is followed by the proximal step of the penalty under Adam's
step size for this value:

    w <- w0 + soft(w - w0, l1 rate / (sqrt(v') + eps))        soft(d, s) = sign(d) max(|d| - s, 0)
    w <- w0 + (w - w0) / (1 + 2 l2 rate / (sqrt(v') + eps))

A value stays exactly at w0 unless the gradient of its nats, as smoothed by Adam, is larger than l1.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from factorcell import files
from factorcell.assignments import variable_numbers
from factorcell.config import UserError, choose
from factorcell.model.language_model import LanguageModel
from factorcell.model.output_bias import OneHotBias
from factorcell.model.run import Run

# Parts of a model by the beginnings of their parameters' names; the first match counts.
PARTS = {
    "embedding": r"embedding",
    "context": r"encoder\.|prefix\.|backbone\..*\badapters\.",
    "backbone": r"backbone\.",
    "output_bias": r"head\.(bias|adapters\.|hashed\.)",
    "projection": r"head\.",
}
ALL = "all"


def part_of(parameter: str) -> str:
    """Return the part of a parameter, by its name."""
    return next(part for part, beginning in PARTS.items() if re.match(beginning, parameter))


def select_parts(model: LanguageModel, names: Iterable[str]) -> tuple[str, ...]:
    """Return the parts `names` in the order of `PARTS`. `UserError` if the model does not have one of them."""
    there = {part_of(name) for name, _ in model.named_parameters()}
    chosen = {choose("part", name, (ALL, *PARTS)) for name in names}
    if ALL in chosen:
        chosen = there
    for name in PARTS:
        if name in chosen - there:
            raise UserError(f"this model has no part {name!r}; it has {', '.join(p for p in PARTS if p in there)}")
    return tuple(name for name in PARTS if name in chosen)


@dataclass(frozen=True)
class Penalty:
    """Penalties on the distance of a parameter from `start`: `l1`, a number or (F,) per column, and `l2` on squares."""

    start: Tensor
    l1: float | Tensor
    l2: float = 0.0

    @torch.no_grad()
    def pull(self, parameter: Tensor, size: Tensor) -> None:
        """Take the proximal step of `parameter` under the step sizes of Adam, which have its shape."""
        way = parameter - self.start
        shrinking = 1 + 2 * self.l2 * size if self.l2 else None
        left = way.abs().sub_(size.mul_(self.l1)).clamp_(min=0)
        if shrinking is not None:
            left.div_(shrinking)
        parameter.copy_(torch.where(left > 0, self.start + left.copysign_(way), self.start))


Penalties = dict[Tensor, Penalty]


def penalties(run: Run, start: "StartingPoint | None") -> Penalties:
    """Return the penalty of a fine-tuning, or else those of the prior on values and of a sparse softmax bias."""
    if start and start.l1:
        parameters = run.model.named_parameters()
        return {each: Penalty(start.values[name].to(each.device), start.l1) for name, each in parameters}
    found, training = {}, run.config.training
    if prior := training.value_prior:
        encoder, hashed = run.model.encoder, getattr(run.model.head, "hashed", None)
        tables = [*(encoder.tables if encoder else ()), *([hashed.weight] if hashed is not None else [])]
        found = {each: Penalty(torch.zeros_like(each), 0.0, prior) for each in tables if each.requires_grad}
    bias = sparse_bias_of(run)
    if bias is not None and bias.weight.requires_grad:
        names = [variable.name for variable in run.schema.categories]
        l1 = bias.per_column(variable_numbers("sparse_l1", training.sparse_l1, names)).to(bias.weight.device)
        if bool(l1.any()):
            found[bias.weight] = Penalty(torch.zeros_like(bias.weight), l1)
    return found


def sparse_bias_of(run: Run) -> OneHotBias | None:
    """Return the sparse softmax bias of a run, if it has one."""
    found = getattr(run.model.head, "adapters", {})
    return cast(OneHotBias, found["sparse"]) if "sparse" in found else None


def pull(optimiser: Optimizer, penalised: Mapping[Tensor, Penalty]) -> None:
    """Take the proximal steps of all penalties after a step of Adam."""
    for group in optimiser.param_groups if penalised else ():
        for parameter in group["params"]:
            if parameter in penalised and (state := optimiser.state.get(parameter)):
                correction = 1 - group["betas"][1] ** float(state["step"])
                scale = (state["exp_avg_sq"] / correction).sqrt_().add_(group["eps"])
                penalised[parameter].pull(parameter, scale.reciprocal_().mul_(group["lr"]))


@dataclass(frozen=True)
class StartingPoint:
    """The start of a fine-tuning: all `values` w0 by name, the `parts` that move, and the penalty `l1` in nats."""

    values: dict[str, Tensor]
    parts: tuple[str, ...]
    l1: float

    @classmethod
    def read(cls, folder: Path) -> "StartingPoint | None":
        """Read the start from a run folder; None if its training is not a fine-tuning."""
        path = folder / "start.safetensors"
        if not path.exists():
            return None
        values, facts = files.load_tensors(path)
        return cls(values, tuple(facts["parts"]), facts["l1"])

    def write(self, folder: Path) -> None:
        """Write the start into a run folder."""
        files.save_tensors(folder / "start.safetensors", self.values, {"parts": self.parts, "l1": self.l1})

    def place(self, model: LanguageModel) -> None:
        """Set `model` to w0, and freeze the parts that do not move."""
        with torch.no_grad():
            for name, tensor in model.saved_tensors().items():
                tensor.copy_(self.values[name])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(part_of(name) in self.parts)

    def count_moved(self, model: LanguageModel) -> list[files.Row]:
        """Return for each part that moves its number of `values`, and how many have `moved` from w0."""
        rows: dict[str, files.Row] = {part: {"part": part, "values": 0, "moved": 0} for part in self.parts}
        for name, parameter in model.named_parameters():
            if row := rows.get(part_of(name)):
                row["values"] += parameter.numel()
                row["moved"] += int((parameter.detach().cpu() != self.values[name]).sum())
        return list(rows.values())
