"""Adam for whole parameters, and for tables of which each step reads few rows, at a cost proportional to these rows.

Let w be a weight with the gradient g and Adam's means m (of gradients) and v (of squared gradients), s the number of
the step, rate_s the learning rate of step s, decay the weight decay, b1 and b2 `BETA1` and `BETA2`, eps `EPSILON`:

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    w <- (1 - rate decay) w - rate m' / (sqrt(v') + eps)        m' = m / (1 - b1^s), v' = v / (1 - b2^s) at step s

Dense Adam (with decoupled decay) also changes rows without a gradient: m and v decay, and w moves along m.
These changes have a closed form, so a row is updated only when it is read again. From its last step t to step u:

    w <- w prod(1 - rate_s decay) - m / (sqrt(v) + eps') sum_{s = t+1 .. u} rate_s c_s p^(s - t)
    m <- b1^(u - t) m        v <- b2^(u - t) v        c_s = sqrt(1 - b2^s) / (1 - b1^s)        p = b1 / sqrt(b2)
    eps' = eps sqrt((1 - b2^(t + 1)) / b2)

Each step adds its term to the sums of the last `WINDOW` steps t; for earlier ones, p^(s - t) is below the rounding of
the sum. From t to u, the result differs from dense Adam in two ways: eps keeps its size relative to sqrt(v), and the
weight decay does not reduce the move along m.

Shapes: V rows of a table, U rows that a step reads; "." is the number of columns, which may differ between tables.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from factorcell.nn.kernels import library
from factorcell.nn.kernels.signatures import ROWS

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # as in torch.optim.Adam
DECAY = BETA1 / BETA2**0.5  # p
WINDOW = 400  # steps; p^400 is 6e-19

Factors = tuple[float, float, float]  # of w, m and v in a step: 1 - rate decay, rate / (1 - b1^s) and 1 / (1 - b2^s)


class DenseAdam:
    """Adam with decoupled weight decay for groups of parameters.

    It calls the function `adamw`, because creating a `torch.optim.AdamW` imports PyTorch's compiler, for over a second.

    Args:
        groups: For each group the list `params`, the `weight_decay`, and, at each step, the learning rate `lr`.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups, self.state = groups, dict[Tensor, dict[str, Tensor]]()  # with the keys of torch.optim

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have gradients."""
        for group in self.param_groups:
            gradients = {parameter: parameter.grad for parameter in group["params"] if parameter.grad is not None}
            for parameter in gradients.keys() - self.state.keys():
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}
            states = [self.state[parameter] for parameter in gradients]
            means, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
            adamw(
                list(gradients),
                list(gradients.values()),
                means,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                beta1=BETA1,
                beta2=BETA2,
                eps=EPSILON,
            )


class RowAdam:
    """Adam for the rows that a step reads of `tables` (V, .), whose rows are read together.

    `catch_up` must be called for these rows before the step reads them.
    """

    def __init__(self, tables: Sequence[nn.Parameter], max_steps: int, weight_decay: float) -> None:
        self.tables, self.weight_decay = tables, weight_decay
        device = tables[0].device
        self.rates: list[float] = []  # of the steps so far
        # By step t: the sum in the module header for u = the last step, and the logarithm of the product of the decays.
        self._sums, self._log_decays = torch.zeros(2, max_steps + 1, dtype=torch.float64, device=device)
        self._powers = DECAY ** torch.arange(WINDOW, 0, -1, dtype=torch.float64, device=device)
        # The last step to which each row (V,) was updated.
        self.last_steps = torch.zeros(len(tables[0]), dtype=torch.int32, device=device)
        self.state: dict[Tensor, dict[str, Tensor]] = {  # with the keys of torch.optim
            table: {name: torch.zeros_like(table, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
            for table in tables
        }

    def add_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self.rates.append(rate)
        step = len(self.rates)
        first = max(0, step - WINDOW)
        correction = math.sqrt(1 - BETA2**step) / (1 - BETA1**step)
        self._sums[first:step] += rate * correction * self._powers[first - step :]
        self._log_decays[step] = self._log_decays[step - 1] + math.log1p(-rate * self.weight_decay)

    @torch.no_grad()
    def catch_up(self, rows: Tensor | None = None) -> None:
        """Update `rows` (U,) of every table, or all rows, to the values that dense Adam has after the steps so far."""
        step = len(self.rates)
        rows = torch.arange(len(self.last_steps), device=self.last_steps.device) if rows is None else rows
        rows = rows[self.last_steps[rows] < step]
        previous_steps = self.last_steps[rows].long()
        gap = (step - previous_steps).double()
        rate = self._sums[previous_steps]
        decay = (self._log_decays[step] - self._log_decays[previous_steps]).exp()
        epsilon = EPSILON * ((1 - BETA2 ** (previous_steps + 1.0)) / BETA2).sqrt()
        row_factors = torch.stack([rate, decay, epsilon, BETA1**gap, BETA2**gap], dim=1).float()
        for table, state in self.state.items():
            mean, squared_mean = state.values()
            if library.supports(table):
                _call_kernel(table, mean, squared_mean, rows, columns=row_factors)
            else:
                _catch_up(table, mean, squared_mean, rows, row_factors)
        self.last_steps[rows] = step

    def read(self, rows: Tensor) -> list[Tensor]:
        """Return `rows` (U,) of every table as leaf tensors (U, .) that require gradients."""
        return [table.detach()[rows].requires_grad_() for table in self.tables]

    @torch.no_grad()
    def step(self, rate: float, rows: Tensor, gradients: Sequence[Tensor]) -> None:
        """Take a step with a learning rate on up-to-date `rows` (U,), with the `gradients` (U, .) of each table."""
        self.add_rate(rate)
        step = len(self.rates)
        factors = 1 - rate * self.weight_decay, rate / (1 - BETA1**step), 1 / (1 - BETA2**step)
        constants = torch.tensor([BETA1, BETA2, EPSILON, *factors])
        for (table, state), gradient in zip(self.state.items(), gradients, strict=True):
            mean, squared_mean = state.values()
            if library.supports(table):
                _call_kernel(table, mean, squared_mean, rows, gradient=gradient, constants=constants)
            else:
                _step(table, mean, squared_mean, rows, gradient, factors)
        self.last_steps[rows] = step


def _call_kernel(table: Tensor, mean: Tensor, squared_mean: Tensor, rows: Tensor, **arrays: Tensor) -> None:
    """Compute `_catch_up` (if `arrays` contains "columns") or `_step` in compiled code."""
    table_size, width = table.shape
    numbers = {"rows": len(rows), "size": table_size, "width": width, "threads": library.thread_count(len(rows))}
    tensors = {"table": table, "first": mean, "second": squared_mean, **library.dense_arrays(index=rows, **arrays)}
    arguments = ROWS.checked_arguments(numbers, tensors)
    library.call("rows", arguments, library.instruction_set(), "columns" in arrays)


def _catch_up(table: Tensor, mean: Tensor, squared_mean: Tensor, rows: Tensor, row_factors: Tensor) -> None:
    """Update `rows` (U,) of a table, of its `mean` (m) and of its `squared_mean` (v) with the `row_factors` (U, 5)."""
    rate, decay, epsilon, mean_decay, squared_mean_decay = row_factors.T[..., None]
    m, v = mean[rows], squared_mean[rows]
    table[rows] = table[rows].mul_(decay).addcdiv_(m * rate, v.sqrt().add_(epsilon), value=-1.0)
    mean[rows], squared_mean[rows] = m.mul_(mean_decay), v.mul_(squared_mean_decay)


def _step(table: Tensor, mean: Tensor, squared_mean: Tensor, rows: Tensor, gradient: Tensor, factors: Factors) -> None:
    """Take a step of Adam on `rows` (U,) of a table, of its `mean` (m) and of its `squared_mean` (v)."""
    decay, rate, correction = factors
    m = mean[rows].lerp_(gradient, 1 - BETA1)
    v = squared_mean[rows].mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    divisor = (v * correction).sqrt_().add_(EPSILON)
    table[rows] = table[rows].mul_(decay).addcdiv_(m, divisor, value=-rate)
    mean[rows], squared_mean[rows] = m, v
