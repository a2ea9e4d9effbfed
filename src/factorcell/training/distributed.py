"""Training in several processes that torchrun starts; each process computes its share of every batch.

    loss of a process = nats of its texts * N / targets of the whole batch

The mean of the gradients over N processes is the gradient of one process with the whole batch.
Sums over processes have the same bits in every process, so that all of them take the same decisions.

Shapes: U rows of a sparse gradient, E the size of a row.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from factorcell.config import UserError
from factorcell.data.corpus import Batch
from factorcell.interrupts import STOPPED
from factorcell.model.devices import CPU, find_device

WAIT = timedelta(hours=2)  # for the other processes, of which the first may have a long table to read
HESITATION = 5.0  # seconds in which torchrun ends the other processes after one has failed


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, and the device that it computes on."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def generators(self) -> list[torch.device]:
        """The devices other than the processor whose random state a step changes."""
        return [] if self.device.type == "cpu" else [self.device]

    @property
    def first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def share(self, batch: Batch) -> tuple[Batch, int]:
        """Return this process's texts of a batch, on its device, and the factor of their loss: N, or 0 without texts.

        A process without a text takes the first one with factor 0, so that every process has a gradient.
        """
        factor = self.size if self.rank < len(batch.rows) else 0
        part = batch if self.size == 1 else batch.select(self.texts(len(batch.rows)))
        return part.to(self.device), factor

    def texts(self, count: int) -> Tensor:
        """Return which of `count` texts this process takes; the first one if none is left for it."""
        return torch.arange(self.rank, count, self.size) if self.rank < count else torch.zeros(1, dtype=torch.long)

    def seed_noise(self, *key: int) -> None:
        """Seed the random generator by `key` and rank; the first process continues its sequence."""
        if self.rank:
            torch.manual_seed(int(np.random.SeedSequence((*key, self.rank)).generate_state(1)[0]))

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all processes."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def mean(self, value: float) -> float:
        """Return the mean of a number over all processes."""
        return float(self.sum(torch.tensor(value, dtype=torch.float64))) / self.size

    def sum_and_any(self, value: Tensor, flag: bool) -> tuple[Tensor, bool]:
        """Return the sum of a number () over all processes, and whether `flag` is set in any, in one exchange."""
        if self.size == 1:
            return value, flag
        total, flags = self.sum(torch.stack([value, value.new_tensor(float(flag))]))
        return total, bool(flags > 0)

    def barrier(self) -> None:
        """Wait for all processes."""
        self.sum(torch.zeros(1))

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over all processes, in one exchange."""
        if self.size > 1 and tensors:
            means = self.sum(torch.cat([tensor.flatten() for tensor in tensors])) / self.size
            for tensor, mean in zip(tensors, torch.split(means, [one.numel() for one in tensors]), strict=True):
                tensor.copy_(mean.view_as(tensor))

    def gather(self, values: Tensor) -> Tensor:
        """Return the `values` (U, ...) of all processes in the order of their ranks; U may differ and be 0."""
        if self.size == 1:
            return values
        counts = torch.zeros(self.size, dtype=torch.long)
        counts[self.rank] = len(values)
        sizes = self.sum(counts).tolist()
        if not any(sizes):
            return values
        padded = values.new_zeros(max(sizes), *values.shape[1:])
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def average_rows(self, rows: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the `rows` (U,) of any process, sorted, and the means of their gradients (U, E) in each table.

        A row that a process lacks has a gradient of zero there. One process gets back what it passes.
        """
        if self.size == 1:
            return rows, list(tables)
        indices, means = self.gather(rows), []
        size = int(indices.max()) + 1 if len(indices) else 0
        for values in map(self.gather, tables):
            # Deterministic on every device, because equal indices are sorted first; index_add_ of a GPU is not.
            sparse = torch.sparse_coo_tensor(indices[None], values, (size, *values.shape[1:]), check_invariants=False)
            sparse = sparse.coalesce()
            rows = sparse.indices()[0]
            means.append(sparse.values() / self.size)
        return rows, means

    @contextmanager
    def first_goes_ahead(self) -> Iterator[None]:
        """Run the block in the first process, and then in the others, even if it raised an error in the first."""
        if not self.first:
            self.barrier()
        try:
            yield
        finally:
            if self.first:
                self.barrier()


def place() -> tuple[int, int]:
    """Return rank and number of the processes from the environment of torchrun; 0 and 1 without torchrun."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def restarted() -> bool:
    """Whether torchrun has restarted the processes after one of them failed."""
    return _attempt() > 0


def _attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


@contextmanager
def join(device: str) -> Iterator[World]:
    """Connect the processes of torchrun until the end of the block; without torchrun, this process is alone."""
    (rank, size), here = place(), find_device(device)
    if size == 1:
        yield World(device=here)
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise UserError(f"WORLD_SIZE is {size}, but {', '.join(missing)} not set; start the processes with torchrun")
    if here.type == "cuda":
        torch.cuda.set_device(here)
    backend = "cpu:gloo,cuda:nccl" if here.type == "cuda" else "gloo"
    store, *_ = next(rendezvous("env://", timeout=WAIT))
    store = PrefixStore(f"attempt {_attempt()}", store)  # a restart must not find the addresses of ended processes
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
    try:
        yield World(rank, size, here)
    finally:
        dist.destroy_process_group()


@contextmanager
def one_voice() -> Iterator[None]:
    """Let one of several failing processes report the error: the first, immediately, if it is a `UserError` or Ctrl-C.

    The other processes fail as well; they wait before they report it, and torchrun ends them meanwhile.
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
