"""Where a fine-tuning starts, which parts of the model move from there, and what holds values back in any training.

    minimise  nats / targets + l1 sum |w - w0|          over the parts that move

The same, with w0 = 0 and an l1 of each variable, makes a sparse softmax bias (thesis 2018, section A.1). A prior on
what is learned of single values, their embeddings and hashed buckets, has squares in place of absolute values: it is
the same for all, so the fewer texts a value has the less its evidence outweighs it.

The penalty has no gradient at w0, so it is not left to Adam: each step of Adam is followed by the proximal step of the
penalty under the step size that Adam has for this very value,

    w <- w0 + soft(w - w0, l1 rate / (sqrt(v') + eps))        soft(d, s) = sign(d) max(|d| - s, 0)
    w <- w0 + (w - w0) / (1 + 2 l2 rate / (sqrt(v') + eps))

A value stays exactly at w0 unless the gradient of its nats, as Adam smoothes it, is larger than l1. For the softmax
bias this gradient is by how much the share of a token in all targets differs from what the model expects.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from factorcell import files
from factorcell.assignments import numbers
from factorcell.config import UserError, choose
from factorcell.model.language_model import LanguageModel
from factorcell.model.output_bias import OneHotBias
from factorcell.model.run import Run

# Parts of a model by the beginnings of their parameters' names. The first that fits counts.
PARTS = {
    "embedding": r"embedding",
    "context": r"encoder\.|prefix\.|cells\.\d+\.linear\.adapters\.",
    "recurrent": r"cells\.",
    "output_bias": r"output\.(bias|adapters\.|hashed\.)",
    "projection": r"output\.",
}
ALL = "all"

Row = dict[str, Any]


def part_of(parameter: str) -> str:
    """The part that the parameter of this name belongs to."""
    return next(part for part, beginning in PARTS.items() if re.match(beginning, parameter))


def parts_named(model: LanguageModel, names: Iterable[str]) -> tuple[str, ...]:
    """The parts called `names`, in the order of `PARTS`; "all" is what there is. `UserError` without such a part."""
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
    """A penalty of `l1` nats, one for all or (F,) of each column, on how far a parameter is from its `start`.

    `l2` is that on the square of how far.
    """

    start: Tensor
    l1: float | Tensor
    l2: float = 0.0

    @torch.no_grad()
    def pull(self, parameter: Tensor, size: Tensor) -> None:
        """The proximal step of `parameter` under the step sizes (of its shape) that Adam has just had."""
        way = parameter - self.start
        shrinking = 1 + 2 * self.l2 * size if self.l2 else None
        left = way.abs().sub_(size.mul_(self.l1)).clamp_(min=0)
        if shrinking is not None:
            left.div_(shrinking)
        parameter.copy_(torch.where(left > 0, self.start + left.copysign_(way), self.start))


Penalties = dict[Tensor, Penalty]


def penalties(run: Run, start: "StartingPoint | None") -> Penalties:
    """What holds parameters back: the penalty of a fine-tuning, else a prior and that of a sparse softmax bias."""
    if start and start.l1:
        parameters = run.model.named_parameters()
        return {each: Penalty(start.values[name].to(each.device), start.l1) for name, each in parameters}
    prior = run.config.training.value_prior
    tables = of_values(run.model) if prior else ()
    return {each: Penalty(torch.zeros_like(each), 0.0, prior) for each in tables if each.requires_grad} | _sparse(run)


def of_values(model: LanguageModel) -> list[Tensor]:
    """What is learned of single values: their embeddings, and the hashed buckets of their pairs with words."""
    encoder, hashed = model.encoder, model.output.hashed
    return [*(encoder.tables if encoder else ()), *([hashed.weight] if hashed is not None else [])]


def _sparse(run: Run) -> Penalties:
    """The penalty of a sparse softmax bias."""
    bias = sparse_bias_of(run)
    if bias is None or not bias.weight.requires_grad:
        return {}
    names = [variable.name for variable in run.schema.categories]
    l1 = bias.columns(numbers("sparse_l1", run.config.training.sparse_l1, names)).to(bias.weight.device)
    return {bias.weight: Penalty(torch.zeros_like(bias.weight), l1)} if bool(l1.any()) else {}


def sparse_bias_of(run: Run) -> OneHotBias | None:
    """The sparse softmax bias of a run, if it has one."""
    found = getattr(run.model.output, "adapters", {})
    return cast(OneHotBias, found["sparse"]) if "sparse" in found else None


def pull(optimiser: Optimizer, penalised: Mapping[Tensor, Penalty]) -> None:
    """The proximal steps of all penalties, after a step of Adam."""
    for group in optimiser.param_groups if penalised else ():
        for parameter in group["params"]:
            if parameter in penalised and (state := optimiser.state.get(parameter)):
                correction = 1 - group["betas"][1] ** float(state["step"])
                scale = (state["exp_avg_sq"] / correction).sqrt_().add_(group["eps"])
                penalised[parameter].pull(parameter, scale.reciprocal_().mul_(group["lr"]))


@dataclass(frozen=True)
class StartingPoint:
    """The `values` w0 of all that a run keeps, by name, the `parts` that move, and the penalty `l1` in nats."""

    values: dict[str, Tensor]
    parts: tuple[str, ...]
    l1: float

    @classmethod
    def read(cls, folder: Path) -> "StartingPoint | None":
        """The start that a run folder holds; none where its training is no fine-tuning."""
        path = folder / "start.safetensors"
        if not path.exists():
            return None
        values, facts = files.load_tensors(path)
        if not isinstance(facts, dict) or not set(facts.get("parts", [None])) <= PARTS.keys():
            raise UserError(f"{path}: not the start of a fine-tuning")
        return cls(values, tuple(facts["parts"]), files.number(facts.get("l1"), path, "l1", low=0))

    def write(self, folder: Path) -> None:
        """Put it into a run folder, where the training finds it."""
        files.save_tensors(folder / "start.safetensors", self.values, {"parts": self.parts, "l1": self.l1})

    def place(self, model: LanguageModel) -> None:
        """Set `model` to w0, and let gradients reach the parts that move alone."""
        with torch.no_grad():
            for name, tensor in model.kept().items():
                tensor.copy_(self.values[name])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(part_of(name) in self.parts)

    def takes_rows(self, model: LanguageModel) -> bool:
        """Whether its tables may skip rows in a step: not if one of them stands still."""
        return all(table.requires_grad for tables in model.row_tables() for table in tables)

    def moved(self, model: LanguageModel) -> list[Row]:
        """Of each part that moves: its number of `values`, and how many of them are `moved` from w0."""
        rows: dict[str, Row] = {part: {"part": part, "values": 0, "moved": 0} for part in self.parts}
        for name, parameter in model.named_parameters():
            if row := rows.get(part_of(name)):
                row["values"] += parameter.numel()
                row["moved"] += int((parameter.detach().cpu() != self.values[name]).sum())
        return list(rows.values())
