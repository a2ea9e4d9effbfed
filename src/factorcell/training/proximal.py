"""Penalties on the distance of weights from their start, and the starting point of a fine-tuning.

    minimize  nats / targets + l1 sum |w - w0|          over the weights w of the trained parts, which start at w0

A sparse softmax bias (thesis 2018, section A.1) has w0 = 0 and an l1 per variable.
The l1 penalty has no gradient at w0. Therefore a proximal step with the step size of Adam follows each step of Adam:

    w <- w0 + soft(w - w0, l1 rate / (sqrt(v') + eps))        soft(d, s) = sign(d) max(|d| - s, 0)

Here rate is the learning rate, v' Adam's mean of squared gradients of the weight, and eps Adam's small constant.
A weight stays exactly at w0 unless the absolute value of Adam's mean of the weight's gradients exceeds l1.
F is the number of features (columns of a bias).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from factorcell.config import sparse_penalties
from factorcell.errors import UserError, check_choice
from factorcell.io import files
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.output import OneHotBias
from factorcell.runs.run import Run
from factorcell.training.adam import BETA2, EPSILON, DenseAdam

# The parts of a model, each with a pattern for the beginning of the names of its parameters. A parameter belongs to the
# first part whose pattern matches.
PARTS = {
    "embedding": r"embedding|head\.embedding",
    "context": r"encoder\.|prefix\.|backbone\.(offset$|prefix$|.*\badapters\.)",
    "backbone": r"backbone\.",
    "output_bias": r"head\.(bias|adapters\.|hashed\.)",
    "projection": r"head\.",
}
ALL = "all"


def part_of(parameter: str) -> str:
    """Return the name of the part that contains a parameter, from the name of the parameter."""
    return next(part for part, pattern in PARTS.items() if re.match(pattern, parameter))


def select_parts(model: LanguageModel, names: Iterable[str]) -> tuple[str, ...]:
    """Return the parts with these names in the order of `PARTS`; raise `UserError` if the model lacks one of them."""
    existing = {part_of(name) for name in model.own_parameters()}
    selected = {check_choice("part", name, (ALL, *PARTS)) for name in names}
    if ALL in selected:
        selected = existing
    for name in PARTS:
        if name in selected - existing:
            listing = ", ".join(part for part in PARTS if part in existing)
            raise UserError(f"this model has no part {name!r} that can be trained; it has {listing}")
    return tuple(name for name in PARTS if name in selected)


class Penalty(NamedTuple):
    """The penalty `l1`, a number or one per column (F,), on the distance of a parameter from its `start` w0."""

    start: Tensor
    l1: float | Tensor


def penalties(run: Run, start: "StartingPoint | None") -> dict[Tensor, Penalty]:
    """Return the penalties by parameter: of a fine-tuning with an l1 for all, of another run for a sparse bias."""
    if start and start.l1:
        return {
            parameter: Penalty(start.values[name].to(parameter.device), start.l1)
            for name, parameter in run.model.own_parameters().items()
        }
    bias, names = sparse_bias_of(run), [variable.name for variable in run.schema.categories]
    if bias is None or not bias.weight.requires_grad:
        return {}
    l1 = bias.per_column(sparse_penalties(run.config.training.sparse_l1, names)).to(bias.weight.device)
    return {bias.weight: Penalty(torch.zeros_like(bias.weight), l1)} if bool(l1.any()) else {}


def sparse_bias_of(run: Run) -> OneHotBias | None:
    """Return the sparse softmax bias of a run, or None."""
    adapters = getattr(run.model.head, "adapters", {})
    return cast(OneHotBias, adapters["sparse"]) if "sparse" in adapters else None


@torch.no_grad()
def take_proximal_steps(optimizer: DenseAdam, penalties: Mapping[Tensor, Penalty]) -> None:
    """Take the proximal steps of all penalties, after a step of Adam."""
    for group in optimizer.param_groups if penalties else ():
        for parameter in group["params"]:
            if parameter in penalties and (state := optimizer.state.get(parameter)):
                start, l1 = penalties[parameter]
                correction = 1 - BETA2 ** float(state["step"])
                step_sizes = (state["exp_avg_sq"] / correction).sqrt_().add_(EPSILON).reciprocal_()
                step_sizes.mul_(group["lr"])
                distance = parameter - start
                shrunk_distance = distance.abs().sub_(step_sizes * l1).clamp_(min=0)
                is_moved = shrunk_distance > 0
                parameter.copy_(torch.where(is_moved, start + shrunk_distance.copysign_(distance), start))


class StartingPoint(NamedTuple):
    """The start of a fine-tuning: w0 of each saved tensor, the trained parts, and the l1 penalty on all of these."""

    values: dict[str, Tensor]
    parts: tuple[str, ...]
    l1: float

    @classmethod
    def read(cls, folder: Path) -> "StartingPoint | None":
        """Read the starting point from a run folder; return None if the run is not a fine-tuning."""
        path = folder / "start.safetensors"
        if not path.exists():
            return None
        values, facts = files.load_tensors(path)
        return cls(values, tuple(facts["parts"]), facts["l1"])

    def write(self, folder: Path) -> None:
        """Write the starting point into a run folder."""
        files.save_tensors(folder / "start.safetensors", self.values, {"parts": self.parts, "l1": self.l1})

    def apply_to(self, model: LanguageModel) -> None:
        """Set the weights of `model` to w0, and freeze the parts that are not trained."""
        with torch.no_grad():
            for name, tensor in model.saved_tensors().items():
                tensor.copy_(self.values[name])
        for name, parameter in model.own_parameters().items():
            parameter.requires_grad_(part_of(name) in self.parts)

    def count_moved(self, model: LanguageModel) -> list[files.Row]:
        """Return a row per trained part: the number of its weights (`values`), and how many left w0 (`moved`)."""
        rows: dict[str, files.Row] = {part: {"part": part, "values": 0, "moved": 0} for part in self.parts}
        for name, parameter in model.own_parameters().items():
            if row := rows.get(part_of(name)):
                row["values"] += parameter.numel()
                row["moved"] += int((parameter.detach().cpu() != self.values[name]).sum())
        return list(rows.values())
