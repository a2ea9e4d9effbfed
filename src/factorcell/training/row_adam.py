"""Adam for tables of which a step reads few rows: it costs as much as those rows, and agrees with dense Adam.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    w <- (1 - rate decay) w - rate m' / (sqrt(v') + eps)        m' = m / (1 - b1^s), v' = v / (1 - b2^s) at step s

Dense Adam (with decoupled decay) moves a row also in steps without a gradient: m and v decay, and w moves along m.
These steps have a closed form, so a row waits until it is read again. From its last step t to step u:

    w <- w prod(1 - rate_s decay) - m / (sqrt(v) + eps') sum_{s = t+1 .. u} rate_s c_s p^(s - t)
    m <- b1^(u - t) m        v <- b2^(u - t) v        c_s = sqrt(1 - b2^s) / (1 - b1^s)        p = b1 / sqrt(b2)

The sum is the difference of two entries of one list, since the rates of all steps are known before the first.
Two things differ from dense Adam: within a gap, eps keeps its size relative to sqrt(v), and the move does not decay.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from factorcell.model.kernels import library
from factorcell.model.kernels.signature import dimensions
from factorcell.model.kernels.signatures import ROWS

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # as in torch.optim.Adam


class _Factors(NamedTuple):
    """The factors of one step: of w before it moves, of the move, and of v in the divisor."""

    kept: float
    moved: float
    grown: float


class RowAdam:
    """Adam for the rows of `tables` (V, .) that a step reads; `catch_up` comes before rows are read."""

    def __init__(self, tables: Sequence[nn.Parameter], rates: Sequence[float], weight_decay: float) -> None:
        self.tables, self.weight_decay = tables, weight_decay
        device = tables[0].device
        self.done = torch.zeros(len(tables[0]), dtype=torch.int32, device=device)  # the last step of each row
        self.state: dict[Tensor, dict[str, Tensor]] = {  # by the names of torch.optim
            table: {name: torch.zeros_like(table, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
            for table in tables
        }
        self.rates = np.asarray(rates)
        steps = np.arange(1, len(self.rates) + 1)
        correction = np.sqrt(1 - BETA2**steps) / (1 - BETA1**steps)
        ahead = np.zeros(len(steps) + 1)  # ahead[t]: the sum above from t to the last step
        for step in range(len(steps) - 1, -1, -1):
            ahead[step] = BETA1 / BETA2**0.5 * (self.rates[step] * correction[step] + ahead[step + 1])
        self._ahead = torch.from_numpy(ahead).to(device)
        self._kept = torch.from_numpy(np.append(0.0, np.cumsum(np.log1p(-self.rates * weight_decay)))).to(device)

    @torch.no_grad()
    def catch_up(self, step: int, rows: Tensor | None = None) -> None:
        """Bring `rows` (U,) of every table, or all rows, to where dense Adam has them after `step` steps."""
        rows = torch.arange(len(self.done), device=self.done.device) if rows is None else rows
        rows = rows[self.done[rows] < step]
        done = self.done[rows].long()
        gap = (step - done).double()
        moved = self._ahead[done] - (BETA1 / BETA2**0.5) ** gap * self._ahead[step]
        kept = (self._kept[step] - self._kept[done]).exp()
        floor = EPSILON * ((1 - BETA2 ** (done + 1.0)) / BETA2).sqrt()
        columns = torch.stack([moved, kept, floor, BETA1**gap, BETA2**gap], dim=1).float()
        for table, state in self.state.items():
            first, second = state.values()
            if library.usable(table):
                _call(table, first, second, rows, columns=columns)
            else:
                _catch_up(table, first, second, rows, columns)
        self.done[rows] = step

    def read(self, rows: Tensor) -> list[Tensor]:
        """Return the `rows` (U,) of every table, (U, .), as leaves that take gradients."""
        return [table.detach()[rows].requires_grad_() for table in self.tables]

    @torch.no_grad()
    def step(self, step: int, rows: Tensor, gradients: Sequence[Tensor]) -> None:
        """Take step number `step` (from 1) of `rows` (U,), which are caught up, with `gradients` (U, .) per table."""
        rate = float(self.rates[step - 1])
        factors = _Factors(1 - rate * self.weight_decay, rate / (1 - BETA1**step), 1 / (1 - BETA2**step))
        constants = torch.tensor([BETA1, BETA2, EPSILON, *factors])
        for (table, state), gradient in zip(self.state.items(), gradients, strict=True):
            first, second = state.values()
            if library.usable(table):
                _call(table, first, second, rows, gradient=gradient, constants=constants)
            else:
                _step(table, first, second, rows, gradient, factors)
        self.done[rows] = step


def _call(table: Tensor, first: Tensor, second: Tensor, rows: Tensor, **arrays: Tensor) -> None:
    """Compute `_catch_up` (given columns) or `_step` in compiled code."""
    size, width = dimensions("table", table, 2)
    numbers, catching_up = (len(rows), size, width, library.threads(len(rows)), 0), "columns" in arrays
    given = {"table": table, "first": first, "second": second, **library.dense(index=rows, **arrays)}
    arguments = ROWS.arguments(numbers, given, "catching up" if catching_up else "a step")
    library.call("rows", arguments, library.instruction_set(), catching_up)


def _catch_up(table: Tensor, first: Tensor, second: Tensor, rows: Tensor, columns: Tensor) -> None:
    moved, kept, floor, fade, fade_square = columns.T[..., None]
    m, v = first[rows], second[rows]
    table[rows] = table[rows].mul_(kept).addcdiv_(m * moved, v.sqrt().add_(floor), value=-1.0)
    first[rows], second[rows] = m.mul_(fade), v.mul_(fade_square)


def _step(table: Tensor, first: Tensor, second: Tensor, rows: Tensor, gradient: Tensor, by: _Factors) -> None:
    m = first[rows].lerp_(gradient, 1 - BETA1)
    v = second[rows].mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    table[rows] = table[rows].mul_(by.kept).addcdiv_(m, (v * by.grown).sqrt_().add_(EPSILON), value=-by.moved)
    first[rows], second[rows] = m, v
