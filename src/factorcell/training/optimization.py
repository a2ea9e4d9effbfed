"""The optimization of a model: its loss, its gradients and the updates of Adam, one step at a time.

    loss = nats of the learned targets / number of learned targets of the step

The random numbers of a step depend only on the seed, the step and the process (`processes`).

Shapes: B texts, T targets of the longest text, V vocabulary.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from factorcell.adapters.adapters import Adapter
from factorcell.data.corpus import Batch
from factorcell.io.torchrun import process_count
from factorcell.nn.devices import find_device, find_precision
from factorcell.nn.kernels import library
from factorcell.nn.output import Proposal, RowValues, SampledRows
from factorcell.runs.run import Run
from factorcell.training import proximal
from factorcell.training.adam import DenseAdam, RowAdam
from factorcell.training.proximal import StartingPoint

if TYPE_CHECKING:
    from factorcell.training.processes import Group

MAX_GRADIENT_NORM = 1.0  # larger gradients are scaled down to this norm
PROCESS_SEED = 2_654_435_761  # difference of the seeds of two processes; PyTorch uses 32 bits of a seed


@dataclass(frozen=True)
class Step:
    """A step of training, or the part of it that one process computes."""

    number: int  # the number of steps before this one
    rate: float  # the learning rate
    batch: Batch  # B texts
    is_learned: Tensor  # (B, T): whether the loss includes each target
    target_count: int  # learned targets of all processes; 1 if there is none, so that it can divide the loss

    def to(self, device: torch.device) -> "Step":
        """Return this step on `device`."""
        return replace(self, batch=self.batch.to(device), is_learned=self.is_learned.to(device))

    def parts(self, count: int) -> Iterator["Step"]:
        """Yield the parts of `count` processes; one without texts computes a text of which no target is learned."""
        texts = torch.arange(len(self.batch.rows))
        for process in range(count):
            rows = texts[process::count] if process < len(texts) else texts[:1]
            batch = self.batch.select(rows)
            is_learned = self.is_learned[rows, : batch.tokens.shape[1] - 1] & (process < len(texts))
            yield replace(self, batch=batch, is_learned=is_learned)


class Optimization:
    """The model of a run with its optimizers, which every process of a training has.

    `token_counts` (V,) says how often each token is a target. Only a fine-tuning has a `starting_point`.
    """

    def __init__(
        self, run: Run, token_counts: NDArray[np.int64], starting_point: StartingPoint | None, max_steps: int
    ) -> None:
        library.retain_freed_memory()
        self.run, self.config = run, run.config.training
        self.token_counts, self.starting_point, self.max_steps = token_counts, starting_point, max_steps
        self.device = find_device(self.config.device)
        self.precision = find_precision(self.config.precision, self.device, run.config.backbone)
        self.is_divided = False  # whether each process has a part of the base
        if process_count() > 1:
            from factorcell.training.sharding import divide_large_base

            self.is_divided = divide_large_base(run, self.device)
        run.model.to(self.device)
        self.group: Group | None = None  # the processes of this training, if there are several
        self.parameters = run.model.own_parameters()
        self.proposal: Proposal | None = None
        if self.config.samples:
            self.proposal = Proposal(torch.from_numpy(token_counts), self.config.samples, self.device)
        if starting_point:
            starting_point.apply_to(run.model)
        else:
            with torch.no_grad():  # Adam would need thousands of steps to reach the unigram frequencies
                smoothed_counts = token_counts + 1
                run.model.head.initialize(torch.from_numpy(np.log(smoothed_counts / smoothed_counts.sum())))
        self.penalties = proximal.penalties(run, starting_point)
        token_tables = list(itertools.chain.from_iterable(run.model.head.row_tables()))
        # `RowAdam` can neither freeze a table, as a fine-tuning of other parts requires, nor apply penalties.
        is_row_adam_possible = all(table.requires_grad and table not in self.penalties for table in token_tables)
        row_tables = run.model.head.row_tables() if self.proposal and is_row_adam_possible else []
        self.row_optimizers = [RowAdam(tables, max_steps, self.config.weight_decay) for tables in row_tables]
        self.optimizer = DenseAdam(self._parameter_groups(token_tables))

    def _parameter_groups(self, token_tables: list[nn.Parameter]) -> list[dict[str, Any]]:
        """Return the parameter groups of dense Adam: matrices, vectors (without weight decay), and tables.

        The learning rate of a group is that of the step times its `factor`; adapters of high rank have groups of their
        own, except in a Transformer, whose groups of maps join the parameters of all adapters. Most steps read few rows
        of the tables. `RowAdam` optimizes token tables, if there is one.
        """
        model, decay = self.run.model, self.config.weight_decay
        value_tables = list(model.encoder.tables) if model.encoder else []
        tables = dict.fromkeys([*token_tables, *value_tables])
        others = [parameter for parameter in self.parameters.values() if parameter not in tables]
        adapters = [module for module in model.modules() if isinstance(module, Adapter)]
        factors = {parameter: adapter.rate_factor for adapter in adapters for parameter in adapter.parameters()}
        matrices = defaultdict[float, list[nn.Parameter]](list)  # by factor
        for parameter in others:
            if parameter.dim() > 1:
                matrices[factors.get(parameter, 1.0)].append(parameter)
        vectors = [parameter for parameter in others if parameter.dim() <= 1]
        dense_tables = value_tables if self.row_optimizers else list(tables)
        return [
            *({"params": group, "weight_decay": decay, "factor": factor} for factor, group in matrices.items()),
            {"params": vectors, "weight_decay": 0.0, "factor": 1.0},
            {"params": dense_tables, "weight_decay": decay, "factor": self.config.token_rate},
        ]

    def take_step(self, step: Step) -> tuple[float, Tensor]:
        """Take a step of Adam; return the loss and the nats (B, T) of the texts of this process.

        If the loss or a gradient is not finite, the weights do not change, and the loss is NaN.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = group["factor"] * step.rate
        nats, sampled_rows, row_values = self.nats(step.to(self.device))
        loss = nats.sum() / step.target_count
        self.run.model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        loss = loss.detach()
        rows = sampled_rows.rows if sampled_rows and self.row_optimizers else []
        row_gradients = [
            [torch.zeros_like(values) if values.grad is None else values.grad for values in group_values]
            for group_values in row_values
        ]
        if self.group:
            loss, rows, row_gradients = self.group.add_up([*self.parameters.values()], loss, rows, row_gradients)
        gradients = [*self.gradients(), *itertools.chain.from_iterable(row_gradients)]
        norm = torch.nn.utils.get_total_norm(gradients)
        if bool(norm > MAX_GRADIENT_NORM):
            torch._foreach_mul_(gradients, float(MAX_GRADIENT_NORM / norm))
        if not bool(torch.isfinite(loss + norm)):
            return math.nan, nats.detach()
        self.optimizer.step()
        for row_optimizer, table_rows, values in zip(self.row_optimizers, rows, row_gradients, strict=True):
            if self.group:  # other processes have read some of these rows
                row_optimizer.catch_up(table_rows)
            row_optimizer.step(self.config.token_rate * step.rate, table_rows, values)
        proximal.take_proximal_steps(self.optimizer, self.penalties)
        return float(loss), nats.detach()

    def nats(self, step: Step) -> tuple[Tensor, SampledRows | None, RowValues]:
        """Return the nats (B, T) of the learned targets, and with `RowAdam` the rows of tables and their values."""
        model, batch = self.run.model, step.batch
        seed = self.config.seed * 1_000_003 + step.number
        model.train()
        forked_devices = [] if self.device.type == "cpu" else [self.device]  # in addition to the CPU
        with torch.random.fork_rng(forked_devices), library.precision(self.precision, self.device):
            torch.manual_seed(seed)
            samples = self.proposal.draw() if self.proposal else None
            if self.group and self.group.rank:  # the processes draw the same samples, and drop different units
                torch.manual_seed(seed + self.group.rank * PROCESS_SEED)
            sampled_rows, row_values = None, []
            if samples and self.row_optimizers:
                sampled_rows = model.sampled_rows(batch, samples)
                for row_optimizer, rows in zip(self.row_optimizers, sampled_rows.rows, strict=True):
                    row_optimizer.catch_up(rows)
                    row_values.append(row_optimizer.read(rows))
            nats: Tensor = model.sampled_nats(batch, samples, sampled_rows, row_values) if samples else model(batch)
        model.eval()
        return nats * step.is_learned, sampled_rows, row_values

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all parameters that have one."""
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    def catch_up(self) -> None:
        """Update all rows of the tables that `RowAdam` optimizes to the current step."""
        for row_optimizer in self.row_optimizers:
            row_optimizer.catch_up()

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights and the moments of Adam."""
        tensors: dict[str, Tensor] = {}
        states = {**self.optimizer.state, **self._row_states()}
        for name, parameter in self.parameters.items():
            tensors |= {f"{name}:{key}": value for key, value in states.get(parameter, {}).items()}
            tensors[f"{name}:value"] = parameter
        for number, optimizer in enumerate(self.row_optimizers):
            rates = torch.tensor(optimizer.rates, dtype=torch.float64)
            tensors |= {f"{number}:done": optimizer.last_steps, f"{number}:rates": rates}
        return tensors

    def _row_states(self) -> dict[Tensor, dict[str, Tensor]]:
        """Return the moments of the tables that `RowAdam` optimizes."""
        return {table: state for optimizer in self.row_optimizers for table, state in optimizer.state.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights and the moments of Adam, before the first step, to the result of `tensors`."""
        row_states = self._row_states()
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[f"{name}:value"])
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}:{key}" in tensors]
            moments = {key: _with_layout_of(parameter, tensors[f"{name}:{key}"]) for key in keys}
            if parameter in row_states:
                row_states[parameter] |= moments
            elif moments:
                self.optimizer.state[parameter] = moments
        for number, row_optimizer in enumerate(self.row_optimizers):
            row_optimizer.last_steps.copy_(tensors[f"{number}:done"])
            for rate in tensors[f"{number}:rates"].tolist():
                row_optimizer.add_rate(rate)


def _with_layout_of(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor` on the device of `parameter`, and in its memory layout, which fused Adam assumes."""
    if tensor.shape != parameter.shape:
        return tensor.to(parameter.device)
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)
