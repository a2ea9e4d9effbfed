"""Penalties on the distance of weights from their start, and the starting point of a fine-tuning.

    minimize  nats / targets + l1 sum |w - w0|          over the weights w of the trained parts, which start at w0

A sparse softmax bias (thesis 2018, section A.1) has w0 = 0 and an l1 per variable. The prior on values (the option
`value_prior`) adds l2 sum w^2 over the embeddings and the hashed biases of context values.

The l1 penalty has no gradient at w0. Therefore a proximal step with the step size of Adam follows each step of Adam:

    w <- w0 + soft(w - w0, l1 rate / (sqrt(v') + eps))        soft(d, s) = sign(d) max(|d| - s, 0)
    w <- w0 + (w - w0) / (1 + 2 l2 rate / (sqrt(v') + eps))

Here rate is the learning rate, v' Adam's mean of squared gradients of the weight, and eps Adam's small constant.
With l1, a weight stays exactly at w0 unless the absolute value of Adam's mean of the weight's gradients exceeds l1.
F is the number of features (columns of a bias).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from factorcell.config import sparse_penalties
from factorcell.errors import UserError, check_choice
from factorcell.io import files
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.output import OneHotBias
from factorcell.runs.run import Run

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
    """Penalties on the distance of a parameter from its `start` w0, which has the shape of the parameter.

    `l1` is the penalty on absolute distances, in nats per unit of distance: a number, or one per column (F,). `l2` is
    that on squared distances.
    """

    start: Tensor
    l1: float | Tensor
    l2: float = 0.0

    @torch.no_grad()
    def proximal_step(self, parameter: Tensor, step_sizes: Tensor) -> None:
        """Take the proximal step of a parameter with Adam's step size of each weight; overwrite `step_sizes`."""
        distance = parameter - self.start
        divisor = 1 + 2 * self.l2 * step_sizes if self.l2 else None  # computed before `step_sizes` is overwritten
        shrunk_distance = distance.abs().sub_(step_sizes.mul_(self.l1)).clamp_(min=0)
        if divisor is not None:
            shrunk_distance.div_(divisor)
        is_moved = shrunk_distance > 0
        parameter.copy_(torch.where(is_moved, self.start + shrunk_distance.copysign_(distance), self.start))


def penalties(run: Run, start: "StartingPoint | None") -> dict[Tensor, Penalty]:
    """Return the penalties of a run by parameter.

    A fine-tuning with an l1 penalizes all parameters. Any other run has the prior on values and the l1 of a sparse
    softmax bias, if these options are set.
    """
    model, training = run.model, run.config.training
    if start and start.l1:
        return {
            parameter: Penalty(start.values[name].to(parameter.device), start.l1)
            for name, parameter in model.own_parameters().items()
        }
    tables: list[Tensor] = []
    if training.value_prior:
        hashed_bias = getattr(model.head, "hashed", None)
        tables = [*(model.encoder.tables if model.encoder else ()), *([hashed_bias.weight] if hashed_bias else [])]
    penalty_of = {table: Penalty(torch.zeros_like(table), 0.0, training.value_prior) for table in tables}
    if sparse_bias := sparse_bias_of(run):
        weight, names = sparse_bias.weight, [variable.name for variable in run.schema.categories]
        l1 = sparse_bias.per_column(sparse_penalties(training.sparse_l1, names)).to(weight.device)
        if bool(l1.any()):
            penalty_of[weight] = Penalty(torch.zeros_like(weight), l1)
    return {parameter: penalty for parameter, penalty in penalty_of.items() if parameter.requires_grad}


def sparse_bias_of(run: Run) -> OneHotBias | None:
    """Return the sparse softmax bias of a run, or None."""
    adapters = getattr(run.model.head, "adapters", {})
    return cast(OneHotBias, adapters["sparse"]) if "sparse" in adapters else None


def take_proximal_steps(optimizer: Optimizer, penalties: Mapping[Tensor, Penalty]) -> None:
    """Take the proximal steps of all penalties, after a step of Adam."""
    for group in optimizer.param_groups if penalties else ():
        for parameter in group["params"]:
            if parameter in penalties and (state := optimizer.state.get(parameter)):
                _, beta2 = group["betas"]
                correction = 1 - beta2 ** float(state["step"])
                divisor = (state["exp_avg_sq"] / correction).sqrt_().add_(group["eps"])
                step_sizes = divisor.reciprocal_().mul_(group["lr"])
                penalties[parameter].proximal_step(parameter, step_sizes)


class StartingPoint(NamedTuple):
    """The start of a fine-tuning.

    `values` are the starting value w0 of each saved tensor by its name, `parts` the parts that are trained, and `l1` is
    the penalty on the distance from w0, in nats per unit of distance.
    """

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
