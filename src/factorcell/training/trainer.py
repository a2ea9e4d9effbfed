"""A training between two steps: its steps, its evaluations, its log, its checkpoints.

Every step draws its randomness from (seed, step) alone and every epoch its order from (seed, epoch) alone, so a
checkpoint needs no random state, and a resumed run continues bit for bit (on one thread).
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell import files
from factorcell.config import TrainingConfig, UserError, check_format
from factorcell.data.canaries import planted
from factorcell.data.corpus import Batch, Corpus, target_counts
from factorcell.interrupts import Stop
from factorcell.model import sizes
from factorcell.model.devices import find_device
from factorcell.model.kernels import library
from factorcell.model.language_model import LanguageModel
from factorcell.model.output import Picked, Proposal, Reads, Samples
from factorcell.model.run import CHECKPOINT, Run
from factorcell.training import proximal
from factorcell.training.development import Development
from factorcell.training.distributed import World
from factorcell.training.objective import Objective
from factorcell.training.proximal import StartingPoint
from factorcell.training.row_adam import RowAdam
from factorcell.training.shared_targets import SharedTargets

FORMAT = 1  # of checkpoints
STRIDE = 1 << 18  # texts whose words are looked at together
EARLY = 20_000  # targets of the early look at the development set, at most

Row = dict[str, Any]


@dataclass
class Progress:
    """Where a training stands: what a checkpoint holds beside the tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = math.inf
    worse: int = 0
    rows: int = 0
    nats: float = 0.0  # summed since the last row of the log
    since: int = 0  # tokens up to the last row of the log


def _progress(facts: Row, path: Path) -> Progress:
    """The progress that the checkpoint `path` tells of; `UserError` unless it is one."""
    start: Row = vars(Progress())
    wrong = [name for name, value in facts.items() if type(value) is not type(start.get(name, "")) or not value >= 0]
    if wrong or set(facts) != set(start):
        named = wrong[0] if wrong else next(iter(start.keys() - facts.keys()))
        raise UserError(f"{path}: no checkpoint ({named} is {facts.get(named)!r:.40})")
    return Progress(**facts)


def learning_rate(step: int, steps: int, config: TrainingConfig) -> float:
    """The rate of `step` (from 0) of `steps`: a linear rise, then cosine, linear or no decay to zero."""
    rise = max(1, round(config.warmup * steps))
    if step < rise:
        return config.learning_rate * (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    factor = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "none": 1.0}[config.decay]
    return config.learning_rate * factor


def observe(model: LanguageModel, corpus: Corpus) -> None:
    """Show a hashed softmax bias which targets training has of which values."""
    for begin in range(0, len(corpus), STRIDE):
        rows = np.arange(begin, min(begin + STRIDE, len(corpus)))
        tokens = np.asarray(corpus.tokens[corpus.offsets[rows[0]] : corpus.offsets[rows[-1] + 1]], dtype=np.int64)
        categories = np.repeat(corpus.categories[rows].astype(np.int64), corpus.lengths[rows] + 1, axis=0)
        predicted = tokens != corpus.tokenizer.specials.start
        model.head.observe(tokens[predicted], categories[predicted])


class Trainer:
    """A run, its data and its optimiser between two steps; of several processes, each with its share of the rows."""

    def __init__(self, run: Run, corpus: Corpus, dev: Corpus, world: World | None = None) -> None:
        sizes.check_step(run.config, len(run.tokenizer), run.schema, int(corpus.offsets[-1]), len(corpus))
        library.keep_memory()
        self.world = world or World(device=find_device(run.config.training.device))
        self.run, self.config = run.to(self.world.device), run.config.training
        self.corpus = corpus = planted(corpus, run.config, run.folder if self.world.first else None)
        self.development = Development(dev, self.world)
        self.progress, self.evaluated = Progress(), -1  # the step of the last evaluation
        self.stop = Stop()
        self.parameters = dict(run.model.named_parameters())
        self.start = StartingPoint.read(run.folder)
        counts = target_counts(corpus, at_least=1 if self.start else 0)  # tokens that few texts lack are negatives too
        sampled = self.config.loss != "full"
        self.proposal = Proposal(torch.from_numpy(counts), self.config.samples, self.world.device) if sampled else None
        self.steps = max(1, round(self.config.epochs * len(self._order(0))))
        self.shared = SharedTargets.of(corpus, run.config) if self.config.min_users else None
        if self.start:
            self.start.place(run.model)
        else:
            with torch.no_grad():  # Adam would need thousands of steps to walk to where the unigram frequencies are
                smoothed = (counts + 1) / (counts + 1).sum()
                run.model.head.begin(torch.from_numpy(np.log(smoothed)))
        self.penalties = proximal.penalties(run, self.start)
        held = any(table in self.penalties for tables in run.model.row_tables() for table in tables)
        some = self.proposal and not held and (not self.start or self.start.takes_rows(run.model))
        self.rows = self._rows() if some else []
        self.optimiser = torch.optim.AdamW(self._groups(), lr=self.config.learning_rate, fused=True)
        observe(run.model, corpus)
        self.nats = self.world.wrap(Objective(run.model), apart=[table for adam in self.rows for table in adam.tables])

    def _groups(self) -> list[dict[str, Any]]:
        """What dense Adam moves, by how: vectors do not decay, token tables have a rate of their own."""
        tables = [table for group in self.run.model.row_tables() for table in group]
        rest = [p for p in self.parameters.values() if not any(p is table for table in tables)]
        decay = self.config.weight_decay
        groups = [
            {"params": [p for p in rest if p.dim() > 1], "weight_decay": decay, "factor": 1.0},
            {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0, "factor": 1.0},
        ]
        dense = [] if self.rows else [{"params": tables, "weight_decay": decay, "factor": self.config.token_rate}]
        return groups + dense

    def _rows(self) -> list[RowAdam]:
        """The optimisers of tables of which a step sees only some rows."""
        rates = [self.config.token_rate * learning_rate(step, self.steps, self.config) for step in range(self.steps)]
        return [RowAdam(tables, rates, self.config.weight_decay) for tables in self.run.model.row_tables()]

    def _order(self, epoch: int) -> list[NDArray[np.int64]]:
        """The rows of every batch of an epoch."""
        config = self.config
        return self.corpus.batches(config.batch_tokens, config.seed, epoch, most=config.max_user_texts)

    def batches(self) -> Iterator[Batch]:
        """The batches from the present step to the last, in the order that the seed gives."""
        passed, epoch = 0, 0
        while True:
            order = self._order(epoch)
            for rows in order[max(0, self.progress.step - passed) :]:
                if self.progress.step >= self.steps:
                    return
                yield self.corpus.batch(rows)
            passed, epoch = passed + len(order), epoch + 1

    def step(self, batch: Batch, *asked: bool) -> list[bool]:
        """One step of Adam on `batch`, of which each process takes its share; which of `asked` any process asked."""
        for group in self.optimiser.param_groups:
            group["lr"] = group["factor"] * learning_rate(self.progress.step, self.steps, self.config)
        count = self.shared.count(batch) if self.shared else int(batch.lengths.sum())
        nats, own, factor, reads, picked = self._nats(batch)
        loss = nats.sum() * factor / count
        self.run.model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        seen = [self._gathered(*both) for both in zip(reads.rows, picked, strict=True)] if reads and picked else []
        norm = self._clip([gradient for _, gradients in seen for gradient in gradients])
        total, agreed = self.world.sum_and_any(loss.detach(), *asked)
        mean = total / self.world.size
        if not bool(torch.isfinite(mean + norm)):
            self.stop_at(own, nats)
        self.progress.step += 1
        self.optimiser.step()
        for adam, (rows, gradients) in zip(self.rows, seen, strict=True):
            adam.catch_up(self.progress.step - 1, rows)  # those that only other processes have read
            adam.step(self.progress.step, rows, gradients)
        proximal.pull(self.optimiser, self.penalties)
        self.progress.tokens += count
        self.progress.nats += float(mean) * count
        return agreed

    def _nats(self, batch: Batch) -> tuple[Tensor, Batch, int, Reads | None, Picked | None]:
        """The loss (B, T) of this process's share, that share, its factor, what it read.

        Negative samples are the same in all processes, other noise is each one's own.
        """
        precision, (own, factor) = library.precision(self.config.precision, self.world.device), self.world.share(batch)
        rate, key = self.run.model.config.dropout_context, (self.config.seed, self.progress.step, self.world.rank)
        own = replace(own, context=own.context.forgetting(rate, key) if rate else own.context)
        with torch.random.fork_rng(devices=self.world.generators), precision:
            torch.manual_seed(self.config.seed * 1_000_003 + self.progress.step)
            samples, reads, picked = self._samples(len(batch.rows)), None, None
            if samples and self.rows:
                reads, picked = self.run.model.reads(own, samples), []
                for adam, rows in zip(self.rows, reads.rows, strict=True):
                    adam.catch_up(self.progress.step, rows)
                    picked.append(adam.read(rows))
            self.world.own_noise(self.config.seed, self.progress.step)
            self.run.model.train()
            learned = self.shared.mask(own) if self.shared else None
            nats: Tensor = self.nats(own, samples, reads, picked, learned)
        self.run.model.eval()
        return nats, own, factor, reads, picked

    def _samples(self, texts: int) -> Samples | None:
        """The negative samples of this process's share of a batch of `texts`; none of a loss that needs none."""
        if self.proposal is None:
            return None
        if self.config.loss == "sampled":
            return self.proposal.draw()
        return self.proposal.draw_each(texts).select(self.world.texts(texts).to(self.world.device))

    def _gathered(self, rows: Tensor, tables: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean over all processes of the gradients of the rows of some tables that any of them has read."""
        own = [table.grad if table.grad is not None else torch.zeros_like(table) for table in tables]
        if self.world.size == 1:
            return rows, own
        found = [self.world.gather_rows(rows, gradient) for gradient in own]
        return found[0][0], [gradient / self.world.size for _, gradient in found]

    def _clip(self, more: list[Tensor]) -> Tensor:
        """Scale all gradients, the parameters' and `more`, down to the norm that the config allows; the norm before."""
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None] + more
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.clip and bool(norm > self.config.clip):
            torch._foreach_mul_(gradients, float(self.config.clip / norm))
        return norm

    def stop_at(self, batch: Batch, nats: Tensor) -> None:
        """Save what is good and say which row of the training data made the loss non-finite."""
        if all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters.values()):
            self.save()
        rows = self._culprits(batch, nats)
        named = (
            f"row {rows[0]}"
            if len(rows) == 1
            else f"rows {', '.join(map(str, rows[:5]))}" + (", ..." if len(rows) > 5 else "")
        )
        raise UserError(
            f"the loss is not finite at step {self.progress.step + 1}, {named} of the training data; "
            f"the checkpoint before it is in {self.run.folder} (a lower learning rate, or a lower --clip, may help)"
        )

    def _culprits(self, batch: Batch, nats: Tensor) -> list[int]:
        """Rows, counted from 1, whose own nats or else whose own gradient is not finite; all rows, where none is."""
        bad = batch.rows[~torch.isfinite(nats.detach()).all(dim=1)].tolist()
        for row in [] if bad else batch.rows.tolist():
            self.run.model.zero_grad(set_to_none=True)
            self.run.model(self.run.batch(self.corpus, np.array([row]))).sum().backward()
            gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
            if not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))):
                bad.append(row)
        named = self.world.gather(torch.tensor(bad, dtype=torch.long)).tolist()
        return sorted({row + 1 for row in named or self.world.gather(batch.rows).tolist()})

    def evaluate(self) -> Row:
        """Perplexities on the development set; the best weights so far go into the run folder.

        A stop that is asked for drops the evaluation (`Stopped`).
        """
        self.catch_up()
        with self._left_alone():
            row = self.development.evaluate(self.run)
        self.evaluated = self.progress.step
        better = row["perplexity"] < self.progress.best or math.isinf(self.progress.best)
        if better:
            self.progress.best, self.progress.worse = row["perplexity"], 0
            if self.world.first:
                self.run.save_weights({"step": self.progress.step, **row})
            self.development.keep(self.run)
        else:
            self.progress.worse += 1
        return {"split": "dev", **row, "best": self.progress.best}

    def _left_alone(self) -> AbstractContextManager[object]:
        """A block that the first process leaves as soon as it is asked to stop, since it can save alone."""
        return self.stop.at_once() if self.world.first else nullcontext()

    def early(self) -> Row:
        """Perplexities on a sample of the development set. The training goes on as if nobody had looked."""
        with ExitStack() as caught_up:
            for adam in self.rows:
                caught_up.enter_context(adam.ahead(self.progress.step))
            with self._left_alone():
                return {"split": "early", **self.development.look(self.run, EARLY, self.config.seed)}

    def log(self, row: Row) -> Row:
        """Write one row of the log; every row says where the training stands."""
        here = self.progress
        row = {"step": here.step, "steps": self.steps, "tokens": here.tokens, "seconds": here.seconds, **row}
        if self.world.first:
            files.append_row(self.run.log_path, row)
        here.rows += 1
        return row

    @property
    def checkpoint(self) -> Path:
        """The file to resume from."""
        return self.run.folder / CHECKPOINT

    def save(self) -> None:
        """Write a checkpoint: weights, moments of Adam, progress. The first process does."""
        if not self.world.first:
            return
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            tensors |= {f"{name}:{key}": value for key, value in self._moments(parameter).items()}
            tensors[f"{name}:value"] = parameter
        tensors |= {f"{number}:done": adam.done for number, adam in enumerate(self.rows)}
        files.save_tensors(self.checkpoint, tensors, {"format": FORMAT, **vars(self.progress)})

    def catch_up(self) -> None:
        """Bring rows that no step has seen lately up to date."""
        for adam in self.rows:
            adam.catch_up(self.progress.step)

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """What Adam keeps of a parameter; nothing of one that has had no gradient."""
        for adam in self.rows:
            if state := adam.state(parameter):
                return state
        kept: dict[str, Tensor] = self.optimiser.state.get(parameter, {})
        return kept

    def load(self) -> None:
        """Go back to the checkpoint, if there is one, or the start; rows that were logged after it are dropped."""
        if self.checkpoint.exists():
            self._restore()
        rows = self.run.log()[: self.progress.rows]
        self.evaluated = max((row["step"] for row in rows if row["split"] == "dev"), default=-1)
        if self.world.first:
            files.write_rows(self.run.log_path, rows)

    def _restore(self) -> None:
        """Weights, moments of Adam and progress from the checkpoint."""
        tensors, facts = files.load_tensors(self.checkpoint)
        if not isinstance(facts, dict):
            raise UserError(f"{self.checkpoint}: no checkpoint (it says nothing of the progress)")
        check_format(facts.pop("format", None), FORMAT, self.checkpoint)
        shapes = {name: tensor.shape for name, tensor in tensors.items() if name.endswith(":value")}
        if shapes != {f"{name}:value": parameter.shape for name, parameter in self.parameters.items()}:
            raise UserError(f"{self.checkpoint}: does not belong to this config, schema and vocabulary")
        self.progress = _progress(facts, self.checkpoint)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors.pop(f"{name}:value"))
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}:{key}" in tensors]
                if any(adam.state(parameter) for adam in self.rows):
                    state = self._moments(parameter)
                    for key in state.keys() & set(keys):
                        state[key].copy_(tensors[f"{name}:{key}"])
                elif keys:
                    state = {key: tensors[f"{name}:{key}"].to(parameter.device) for key in keys}
                    self.optimiser.state[parameter] = state
            for number, adam in enumerate(self.rows):
                adam.done.copy_(tensors.get(f"{number}:done", torch.tensor(self.progress.step)))
