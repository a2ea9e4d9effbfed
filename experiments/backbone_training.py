"""The training loop of the methods on a frozen base: all methods read the same texts, with the same schedule.

A training resumes from the file `progress.safetensors` in its folder, which a finished row deletes. The random numbers
of a step depend on the seed and the step only, so a resumed training gives the same result.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from factorcell.io import files

Rows = list[dict[str, Any]]

WARMUP = 0.1  # share of the steps in which the learning rate rises
CLIP = 1.0  # largest norm of the gradients
POOL_BATCHES = 20  # shuffled texts are sorted by length in pools of about this many batches
SAVE_SECONDS = 60.0  # of the processor, between two files with the progress
PROGRESS_FILE = "progress.safetensors"
STEP_SEEDS = 1_000_003  # seeds of steps of different trainings must differ


class Learner(Protocol):
    """A model that a method trains."""

    module: nn.Module
    rates: Mapping[str, float]  # factors on the learning rate of the parameters whose names contain a part

    def loss(self, rows: Rows) -> tuple[Tensor, int]:
        """Return the loss of a batch of texts, and the number of tokens that the model has read."""
        ...


@dataclass(frozen=True)
class Budget:
    """The number of tokens, the size of a batch, the learning rate and the seed of a training."""

    tokens: int  # targets of all steps: the tokens of the texts and their end tokens
    batch_tokens: int
    learning_rate: float
    seed: int


@dataclass
class Progress:
    """The progress of a training, in all processes that have worked on it."""

    step: int = 0
    read_tokens: int = 0  # with the names that are read before the texts
    processor_seconds: float = 0.0
    training_seconds: float = 0.0  # elapsed time of the steps


def make_batches(
    lengths: NDArray[np.int64], budget: Budget, groups: Sequence[str] | None = None
) -> list[NDArray[np.int64]]:
    """Return the indices of the texts of each step, whose targets sum to the budget.

    Args:
        lengths: The number of targets of each text.
        budget: The budget.
        groups: The value of each text, if all texts of a step must have the same value.
    """
    batches: list[NDArray[np.int64]] = []
    tokens, epoch = 0, 0
    while tokens < budget.tokens:
        for batch in _epoch_batches(lengths, budget, epoch, groups):
            batches.append(batch)
            tokens += int(lengths[batch].sum())
            if tokens >= budget.tokens:
                break
        epoch += 1
    return batches


def _epoch_batches(
    lengths: NDArray[np.int64], budget: Budget, epoch: int, groups: Sequence[str] | None
) -> Iterator[NDArray[np.int64]]:
    random = np.random.default_rng((budget.seed, epoch))
    order = random.permutation(len(lengths))
    pool_size = max(1, round(POOL_BATCHES * budget.batch_tokens / float(lengths.mean())))
    for begin in range(0, len(order), pool_size):
        pool = order[begin : begin + pool_size].tolist()
        pool.sort(key=lambda row: ("" if groups is None else groups[row], int(lengths[row])))
        batches = list(_divide(pool, lengths, budget.batch_tokens, groups))
        yield from (batches[place] for place in random.permutation(len(batches)))


def _divide(
    pool: Sequence[int], lengths: NDArray[np.int64], batch_tokens: int, groups: Sequence[str] | None
) -> Iterator[NDArray[np.int64]]:
    """Divide texts into batches of at most `batch_tokens` targets, and of one group."""
    batch: list[int] = []
    for row in pool:
        is_full = batch and (int(lengths[batch].sum()) + int(lengths[row]) > batch_tokens)
        if is_full or (batch and groups is not None and groups[batch[0]] != groups[row]):
            yield np.array(batch)
            batch = []
        batch.append(row)
    if batch:
        yield np.array(batch)


def schedule(step: int, steps: int) -> float:
    """Return the factor on the learning rate: a linear warm-up, and a cosine that falls to zero."""
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(
    learner: Learner,
    rows: Rows,
    batches: Sequence[NDArray[np.int64]],
    budget: Budget,
    folder: Path,
    started: float,
) -> Progress:
    """Train to the end, from the progress that `folder` has.

    The processor seconds are those of all processes, in this process since `started`, a result of `time.process_time`.
    """
    parameters = {name: values for name, values in learner.module.named_parameters() if values.requires_grad}
    optimizer = _new_optimizer(parameters, learner.rates)
    path = folder / PROGRESS_FILE
    progress = load_progress(path, parameters, optimizer)
    earlier_seconds = progress.processor_seconds
    factors = [group["lr"] for group in optimizer.param_groups]
    learner.module.train()
    begun = time.monotonic()
    last_saved = started
    earlier_training = progress.training_seconds
    for step in range(progress.step, len(batches)):
        torch.manual_seed(budget.seed * STEP_SEEDS + step)
        for group, factor in zip(optimizer.param_groups, factors, strict=True):
            group["lr"] = budget.learning_rate * factor * schedule(step, len(batches))
        loss, read_tokens = learner.loss([rows[place] for place in batches[step].tolist()])
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters.values(), CLIP)
        optimizer.step()
        progress.step, progress.read_tokens = step + 1, progress.read_tokens + read_tokens
        progress.processor_seconds = earlier_seconds + time.process_time() - started
        progress.training_seconds = earlier_training + time.monotonic() - begun
        if time.process_time() - last_saved > SAVE_SECONDS or step + 1 == len(batches):
            save_progress(path, parameters, optimizer, progress)
            last_saved = time.process_time()
    learner.module.eval()
    return progress


def _new_optimizer(parameters: Mapping[str, nn.Parameter], rates: Mapping[str, float]) -> torch.optim.AdamW:
    """Return an optimizer whose learning rates are factors; `rates` has those of names with a part."""
    groups: dict[float, list[nn.Parameter]] = {}
    for name, values in parameters.items():
        factor = math.prod(rate for part, rate in rates.items() if part in name)
        groups.setdefault(factor, []).append(values)
    return torch.optim.AdamW([{"params": group, "lr": factor} for factor, group in groups.items()], weight_decay=0.0)


def save_progress(
    path: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write the trained values, the state of the optimizer and the progress."""
    tensors: dict[str, Tensor] = {name: values.detach() for name, values in parameters.items()}
    for name, values in parameters.items():
        tensors |= {f"{part} of {name}": state for part, state in optimizer.state.get(values, {}).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    files.save_tensors(path, tensors, vars(progress))


def load_progress(path: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Progress:
    """Read what `save_progress` has written into the parameters and the optimizer; without a file, do nothing."""
    if not path.exists():
        return Progress()
    tensors, facts = files.load_tensors(path)
    with torch.no_grad():
        for name, values in parameters.items():
            values.copy_(tensors.pop(name))
    for full_name, state in tensors.items():
        part, _, name = full_name.partition(" of ")
        values = parameters[name]
        optimizer.state[values][part] = state if part == "step" else state.to(values.device)
    return Progress(**facts)
