"""Training in several processes, as torchrun starts them: who takes which rows, what is summed, who writes.

    local loss = nats of the own rows * N / targets of all rows

The mean over N processes of its gradients, which DistributedDataParallel takes, is the gradient of one process with all
rows. What is added up here comes out the same, bit for bit, in every process, so that all of them decide alike.

Shapes: U rows of a sparse gradient, E the size of a row.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from factorcell.config import UserError
from factorcell.data.corpus import Batch
from factorcell.interrupts import STOPPED
from factorcell.model.devices import CPU, find_device

WAIT = timedelta(hours=2)  # for each other: the first may have much to read; for the dead torchrun does not wait
HESITATION = 5.0  # seconds in which torchrun ends the others, once one process has failed


@dataclass(frozen=True)
class World:
    """This process, `rank` of `size`, and the device that it computes on. Without others everything is as it is."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    def share(self, batch: Batch) -> tuple[Batch, int]:
        """This process's texts of a global batch, on its device, and the factor on their loss: N, or 0 without any.

        A process that is left without takes the first text, for nothing, so that all run through the same graph.
        """
        factor = self.size if self.rank < len(batch.rows) else 0
        own = batch if self.size == 1 else batch.select(self.texts(len(batch.rows)))
        return own.to(self.device), factor

    def texts(self, count: int) -> Tensor:
        """Which of `count` texts are this process's; the first where none is left for it."""
        return torch.arange(self.rank, count, self.size) if self.rank < count else torch.zeros(1, dtype=torch.long)

    def own_noise(self, *key: int) -> None:
        """Draw differently from the others from here on, by `key` and rank; the first process draws on as it did."""
        if self.rank:
            torch.manual_seed(int(np.random.SeedSequence((*key, self.rank)).generate_state(1)[0]))

    @property
    def generators(self) -> list[torch.device]:
        """The devices, beside the processor, whose random state a step changes."""
        return [] if self.device.type == "cpu" else [self.device]

    def wrap(self, module: nn.Module, apart: Sequence[nn.Parameter] = ()) -> nn.Module:
        """`module` with gradients that are the mean over all processes, but for those of the parameters `apart`.

        Each call must use the same parameters.
        """
        if self.size == 1:
            return module
        constants = [name for name, _ in module.named_buffers()]  # alike everywhere, so they need not be sent around
        ours = {id(parameter) for parameter in apart}
        named = [name for name, p in module.named_parameters(remove_duplicate=False) if id(p) in ours]
        together: Any = nn.parallel.DistributedDataParallel
        group: Any = dist.group.WORLD
        together._set_params_and_buffers_to_ignore_for_model(module, constants + named)
        wrapped: nn.Module = together(module, static_graph=True)
        # Where its reducer, which is C++, is the last to hold the group, it waits for the group's threads and keeps the
        # GIL, which one of them may wait for. This goes after it, being set after it, and waits without the GIL.
        wrapped.last = group._get_backend(CPU)
        return wrapped

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def mean(self, value: float) -> float:
        """The mean of a number over all processes."""
        return float(self.sum(torch.tensor(value, dtype=torch.float64))) / self.size

    def sum_and_any(self, value: Tensor, *asked: bool) -> tuple[Tensor, list[bool]]:
        """The sum of a number () over all processes, and which of `asked` any process asked, in one exchange."""
        if self.size == 1:
            return value, list(asked)
        total = self.sum(torch.stack([value, *(value.new_tensor(float(one)) for one in asked)]))
        return total[0], [one > 0 for one in total[1:].tolist()]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.sum(torch.zeros(1))

    def gather(self, values: Tensor) -> Tensor:
        """The `values` (U, ...) of all processes in the order of their ranks; each may have another U, 0 too."""
        return values if self.size == 1 else self._gather(values, self._counts(len(values)))

    def gather_rows(self, indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Sparse rows `indices` (U,) and `values` (U, E) of all processes, sorted; rows named twice are added up.

        Other than what DistributedDataParallel takes, this is the sum, not the mean.
        """
        if self.size > 1:
            counts = self._counts(len(indices))
            indices, values = self._gather(indices, counts), self._gather(values, counts)
        size = (int(indices.max()) + 1 if len(indices) else 0, *values.shape[1:])
        # On every device this sorts and then adds in that order, where index_add_ of a GPU adds in any.
        rows = torch.sparse_coo_tensor(indices[None], values, size, check_invariants=False).coalesce()
        return rows.indices()[0], rows.values()

    def _counts(self, count: int) -> list[int]:
        """The `count` of every process."""
        counts = torch.zeros(self.size, dtype=torch.long)
        counts[self.rank] = count
        numbers: list[int] = self.sum(counts).tolist()
        return numbers

    def _gather(self, values: Tensor, counts: list[int]) -> Tensor:
        """As `gather`, padded to the longest on the way."""
        if not max(counts):
            return values
        padded = values.new_zeros(max(counts), *values.shape[1:])
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @contextmanager
    def first_goes_ahead(self) -> Iterator[None]:
        """The block runs in the first process, then in the others, which find what it left, be it an error."""
        if not self.first:
            self.barrier()
        try:
            yield
        finally:
            if self.first:
                self.barrier()


def place() -> tuple[int, int]:
    """Rank and number of the processes, as torchrun tells them; 0 and 1 without it."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def restarted() -> bool:
    """Whether torchrun has started the processes anew, after one of them had failed."""
    return _attempt() > 0


def _attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


@contextmanager
def join(device: str) -> Iterator[World]:
    """The processes that torchrun started, together until the end of the block; without torchrun this one alone."""
    (rank, size), here = place(), find_device(device)
    if size == 1:
        yield World(device=here)
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise UserError(f"WORLD_SIZE is {size}, but {', '.join(missing)} not set; start the processes with torchrun")
    if here.type == "cuda":
        torch.cuda.set_device(here)
    backend = "cpu:gloo,cuda:nccl" if here.type == "cuda" else "gloo"
    found, *_ = next(rendezvous("env://", timeout=WAIT))
    store = PrefixStore(f"attempt {_attempt()}", found)  # what is left of earlier ones are addresses of the dead
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
    try:
        yield World(rank, size, here)
    finally:
        dist.destroy_process_group()


@contextmanager
def one_voice() -> Iterator[None]:
    """Of several processes that fail, let one say why: the first, at once, if it is the user's mistake or wish to stop.

    The others fail with it, or for want of it, and wait with that for torchrun to end them.
    """
    rank, size = place()
    try:
        yield
    except KeyboardInterrupt:
        if rank:
            raise SystemExit(STOPPED) from None
        raise
    except Exception as error:
        if size > 1 and not (rank == 0 and isinstance(error, UserError)):
            time.sleep(HESITATION)
        raise
