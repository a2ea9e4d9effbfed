"""Training in several processes that torchrun starts, on one machine or several, with the result of one process.

    gradient = sum over processes of the gradient of (nats of the texts of the process / learned targets of the batch)

The first process runs the command or function like a single process: it reads tables, plans steps, logs, and alone
writes the run folder. Each other process has a copy of the model and its optimizers, and waits for messages (`assist`).
In a step, each process gets a part of the texts of the batch. All processes add up their gradients and take the same
step of Adam. In an evaluation, they compute the nats of different batches. PyTorch sends gradients on GPUs by NCCL, and
everything else by gloo. A process that ends closes its connections, which raises an error in all others.
"""

import atexit
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from factorcell.config import Config, HuggingFaceOptions
from factorcell.data.columns.context import Context, IdLists
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Batch, Corpus, target_offsets
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.io import pretrained
from factorcell.io.findings import LOG
from factorcell.io.progress import progress_bar
from factorcell.io.torchrun import ProcessEndedError
from factorcell.nn.devices import has_gpu
from factorcell.nn.scoring import put_batch
from factorcell.runs.run import MAX_BATCH_TOKENS, Run
from factorcell.training import sharding
from factorcell.training.optimization import Optimization, Step
from factorcell.training.proximal import StartingPoint

# The processes wait for the first one while it reads tables or counts n-grams; the end of a process ends the wait.
TIMEOUT = timedelta(days=20)
FAILED_EXIT_CODE = 2  # of a process that ends because another one has reported the end
# The messages (name, content) after a `Start`; a pass is one of the first process through a divided base.
STEP, CATCH_UP, EVALUATE, PASS, END = "step", "catch up", "evaluate", "pass", "end"

Result = TypeVar("Result")
Nats = NDArray[np.float32]


@dataclass(frozen=True)
class Start:
    """Message: start a training, and then receive `tensors` and the persistent buffers of the model."""

    config: Config
    tokenizer: Tokenizer
    schema: ContextSchema
    optimization: tuple[NDArray[np.int64], StartingPoint | None, int]  # the arguments of `Optimization` after the run
    threads: int
    device: str  # "cpu" or "cuda"
    tensors: dict[str, tuple[torch.Size, torch.dtype, str]]  # shape, type of numbers and device by name


class Group:
    """The processes that torchrun started; `rank` is the number of this process from 0 on, `count` that of all."""

    def __init__(self) -> None:
        number, gpus = int(os.environ["LOCAL_RANK"]), os.environ.get("CUDA_VISIBLE_DEVICES")
        # This process sees one GPU of its machine.
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number) if gpus is None else ",".join(gpus.split(",")[number:][:1])
        self.store, self.rank, self.count = next(rendezvous("env://", timeout=TIMEOUT))
        backend = "cpu:gloo,cuda:nccl" if has_gpu() else "cpu:gloo"
        with self._connection():
            dist.init_process_group(backend, None, TIMEOUT, self.count, self.rank, self.store)
        atexit.register(dist.destroy_process_group)
        self.is_leading = False  # whether this is the first process, and the others wait for its messages
        self._is_idle = True  # whether the last message has been answered

    @contextmanager
    def _connection(self, is_known: Callable[[RuntimeError], bool] = lambda _: True) -> Iterator[None]:
        """Turn an error of a lost connection, which `is_known` finds, into one about the end of another process."""
        try:
            yield
        except RuntimeError as error:
            if not is_known(error):
                raise
            if not self._is_first_report():
                raise SystemExit(FAILED_EXIT_CODE) from None
            problem, outcome = f"torchrun: another process of {self.count} ended", "continues the training"
            raise ProcessEndedError(problem, [("resume", True)], outcome) from None

    def _is_first_report(self) -> bool:
        """Return whether no process has called this method before, so that one process alone reports the end."""
        atexit.unregister(dist.destroy_process_group)  # it could wait for a process that has ended
        try:
            return bool(self.store.add("end of a process", 1) == 1)
        except RuntimeError:  # the process with the store has ended
            return True

    @contextmanager
    def _request(self, messages: Iterable[Any]) -> Iterator[Any]:
        """Send each process its message, and yield that of this process, which then does its part of the work."""
        self._is_idle = False
        yield self._scatter(list(messages))
        self._is_idle = True

    def _scatter(self, messages: list[Any] | None = None) -> Any:
        """Return the message of this process; the first process has those of all."""
        received = [None]
        with self._connection():
            dist.scatter_object_list(received, _converted(messages, Tensor, Tensor.numpy))
        return _converted(received[0], np.ndarray, torch.from_numpy)

    def _gather(self, content: Any) -> list[Any]:
        """Return the contents of all processes."""
        contents = [None] * self.count
        with self._connection():
            dist.all_gather_object(contents, content)
        return contents

    def _broadcast(self, tensors: Mapping[str, Tensor], run: Run) -> None:
        """Send `tensors` and the persistent buffers of the model of the first process to the others."""
        parameters, saved = run.model.own_parameters(), run.model.saved_tensors()
        with self._connection():
            for tensor in (*tensors.values(), *(saved[name] for name in saved if name not in parameters)):
                dist.broadcast(tensor, 0)

    def start(self, optimization: Optimization) -> None:
        """Let all processes share the steps of a training, from its current state on."""
        run, arguments = optimization.run, (optimization.token_counts, optimization.starting_point)
        tensors = {name: tensor.detach().contiguous() for name, tensor in optimization.tensors().items()}
        message = Start(
            *(run.config, run.tokenizer, run.schema, (*arguments, optimization.max_steps)),
            *(torch.get_num_threads(), optimization.device.type),
            {name: (tensor.shape, tensor.dtype, tensor.device.type) for name, tensor in tensors.items()},
        )
        with self._request([message] * self.count):
            self._broadcast(tensors, run)
        optimization.group = self
        if optimization.is_divided:
            sharding.surround_passes(run, self._shared_pass)

    def _shared_pass(self) -> AbstractContextManager[Any]:
        """Let the other processes join a pass of the first one through a divided base, unless they already do."""
        return self._request([(PASS, None)] * self.count) if self._is_idle else nullcontext()

    def take_step(self, optimization: Optimization, step: Step) -> tuple[float, Tensor]:
        """Take a step in all processes; return its loss, and the nats of the texts of this process."""
        with self._request((STEP, part) for part in step.parts(self.count)) as (_, part):
            return optimization.take_step(part)

    def catch_up(self) -> None:
        """Let the other processes update their tables to the current step."""
        with self._request([(CATCH_UP, None)] * self.count):
            pass

    def nats(self, run: Run, corpus: Corpus) -> Nats:
        """Return the nats of all targets of `corpus`, as `Run.nats` does, computed by all processes.

        The passes through a divided base need all processes, so that they do not compute different batches.
        """
        if sharding.is_divided(run):
            return run.nats(corpus)
        nats, starts = np.zeros(corpus.target_count, dtype=np.float32), target_offsets(corpus)
        batches = iter(corpus.batches(MAX_BATCH_TOKENS, max_texts=run.model.texts_at_once))
        with progress_bar(total=len(corpus), desc="evaluating", unit="texts") as bar:
            while parts := [corpus.batch(rows) for rows in islice(batches, self.count)]:
                padding = [None] * (self.count - len(parts))
                with self._request((EVALUATE, part) for part in (*parts, *padding)) as (_, part):
                    results = self._gather(_batch_nats(run, part))
                for batch, result in zip(parts, results, strict=False):
                    put_batch(nats, result, batch, starts)
                    bar.update(len(batch.rows))
        return nats

    def add_up(
        self,
        parameters: Sequence[nn.Parameter],
        loss: Tensor,
        rows: Sequence[Tensor],
        row_gradients: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, list[Tensor], list[list[Tensor]]]:
        """Return the sum of the losses, the rows that any process has read, and the sums of their gradients.

        The gradients of the parameters become the sums. For each group of tables, `rows` are those that this process
        has read (U,), ascending, and `row_gradients` the gradients of these rows of each table (U, .).
        """
        if loss.is_cuda:  # the next exchange then notices a process that has ended, for which NCCL would wait
            torch.cuda.synchronize()
        has_gradient = [parameter.grad is not None for parameter in parameters]
        facts = self._gather((has_gradient, [group_rows.cpu().numpy() for group_rows in rows]))
        flags_of_processes, rows_of_processes = zip(*facts, strict=True)
        for parameter, *flags in zip(parameters, *flags_of_processes, strict=True):
            if any(flags) and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        all_rows, sums = list[Tensor](), list[list[Tensor]]()
        for read, gradients, *read_rows in zip(rows, row_gradients, *rows_of_processes, strict=True):
            union = torch.from_numpy(np.unique(np.concatenate(read_rows))).to(read.device)
            places = torch.searchsorted(union, read)
            all_rows.append(union)
            sums.append(
                [values.new_zeros(len(union), values.shape[1]).index_copy_(0, places, values) for values in gradients]
            )
        tensors = [loss, *(value.grad for value in parameters if value.grad is not None), *chain.from_iterable(sums)]
        joined = torch.cat([tensor.flatten() for tensor in tensors])
        with self._connection():
            dist.all_reduce(joined)
        for tensor, values in zip(tensors, torch.split(joined, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(values.view_as(tensor))
        return loss, all_rows, sums

    def assist(self) -> None:
        """Share the work of the first process until it ends; if it has failed, exit without a message."""
        optimization: Any = None
        with _silent():
            try:
                while True:
                    match self._scatter():
                        case Start() as start:
                            optimization = self._join(start)
                        case (name, content) if name == STEP:
                            optimization.take_step(content)
                        case (name, _) if name == CATCH_UP:
                            optimization.catch_up()
                        case (name, content) if name == EVALUATE:
                            self._gather(_batch_nats(optimization.run, content))
                        case (name, _) if name == PASS:
                            sharding.join_pass(optimization.run)
                        case (_, has_failed):
                            if has_failed:
                                sys.exit(FAILED_EXIT_CODE)
                            return
            except UserError:
                self._is_first_report()
                raise

    def _join(self, start: Start) -> Optimization:
        """Return a copy of the model and the optimizers of the first process."""
        torch.set_num_threads(start.threads)
        backbone = start.config.backbone
        if isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained:
            pretrained.download_if_missing(backbone.base)
        run = Run(Path(), start.config, start.tokenizer, start.schema)
        optimization = Optimization(run, *start.optimization)
        if optimization.device.type != start.device:
            problem = f"expected the device {start.device}, as in process 0, got {optimization.device.type}"
            raise UserError(f"process {self.rank} on {platform.node()}: {problem}; start one process per GPU")
        optimization.group = self
        tensors = {
            name: torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype, device) in start.tensors.items()
        }
        self._broadcast(tensors, run)
        optimization.restore(tensors)
        return optimization

    def sharing_layers(self) -> AbstractContextManager[None]:
        """Notice the end of another process while the processes exchange the layers of a divided base."""
        return self._connection(lambda error: isinstance(error, dist.DistError) or "gloo" in str(error))

    def dismiss(self, has_failed: bool) -> None:
        """Let the other processes end their work, which the first one has completed, or failed to complete."""
        if self._is_idle:
            with suppress(UserError, SystemExit):  # another process has ended
                self._scatter([(END, has_failed)] * self.count)
        else:  # they do not wait for a message; the end of this process, which needs no report, ends them
            self._is_first_report()


def _converted(message: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Return a message, but with `convert` applied to all objects of a `kind` in its texts: arrays are sent faster."""
    if isinstance(message, kind):
        return convert(message)
    if isinstance(message, list | tuple):
        return type(message)(_converted(part, kind, convert) for part in message)
    if isinstance(message, Step | Batch | Context | IdLists):
        parts = {field.name: _converted(getattr(message, field.name), kind, convert) for field in fields(message)}
        return replace(message, **parts)
    return message


def _batch_nats(run: Run, batch: Batch | None) -> Nats | None:
    """Return the nats of a batch (B, T)."""
    if batch is None:
        return None
    with run.scoring():
        nats: Nats = run.model(batch.to(run.device)).cpu().numpy()
    return nats


@contextmanager
def _silent() -> Iterator[None]:
    """Log nothing, and ignore stop requests: torchrun sends them to all processes, and the first one decides."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    LOG.disabled = True
    try:
        yield
    finally:
        LOG.disabled = False
        for number, handler in handlers.items():
            signal.signal(number, handler)


@cache
def _connect() -> Group:
    return Group()


def leading_group() -> Group:
    """Return the processes that wait for the messages of this one; raise a `UserError` if they do not wait."""
    if not _connect().is_leading:
        raise UserError("torchrun: expected a command, fit or finetune, got another function that trains")
    return _connect()


def together(work: Callable[[], Result], others: Callable[[], Result]) -> Result:
    """Do `work` in the first process, whose trainings the other processes share; these then do `others`."""
    group, has_failed = _connect(), True
    if group.is_leading:
        return work()
    if group.rank:
        with group.sharing_layers():
            group.assist()
        return others()
    group.is_leading = True
    try:
        with group.sharing_layers():
            result = work()
        has_failed = False
    finally:
        group.is_leading = False
        group.dismiss(has_failed)
    return result
