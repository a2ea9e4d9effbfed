"""The state of a training between two steps: steps, evaluations, log and checkpoints.

Every step draws its random numbers from (seed, step) and every epoch its order from (seed, epoch).
So a checkpoint needs no random state, and a resumed run continues bit for bit (on one thread).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from factorcell import files, memory
from factorcell.config import TrainingConfig, UserError, check_format
from factorcell.data.canaries import plant_canaries
from factorcell.data.corpus import Batch, Corpus, is_known_target, target_frequencies
from factorcell.evaluation import text_figures
from factorcell.evaluation.text_figures import Figures
from factorcell.interrupts import Stop
from factorcell.model import sizes
from factorcell.model.devices import find_device
from factorcell.model.kernels import library
from factorcell.model.language_model import LanguageModel
from factorcell.model.output import Proposal, RowValues, SampledRows
from factorcell.model.run import CHECKPOINT, Run
from factorcell.training import proximal
from factorcell.training.proximal import StartingPoint
from factorcell.training.row_adam import RowAdam
from factorcell.training.shared_targets import SharedTargets

FORMAT = 1  # of checkpoints
STRIDE = 1 << 18  # texts that are observed together

Row = dict[str, Any]


@dataclass
class Progress:
    """The counters of a training, which a checkpoint stores next to the tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = math.inf
    worse: int = 0
    rows: int = 0
    nats: float = 0.0  # since the last row of the log
    since: int = 0  # tokens up to the last row of the log


def learning_rate(step: int, steps: int, config: TrainingConfig) -> float:
    """Return the learning rate of `step` (from 0): a linear rise, then cosine, linear or no decay to zero."""
    rise = max(1, round(config.warmup * steps))
    if step < rise:
        return config.learning_rate * (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    factor = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "none": 1.0}[config.decay]
    return config.learning_rate * factor


def observe(model: LanguageModel, corpus: Corpus) -> None:
    """Record in the filter of a hashed softmax bias which targets occur with which context values."""
    for begin in range(0, len(corpus), STRIDE):
        rows = np.arange(begin, min(begin + STRIDE, len(corpus)))
        tokens = np.asarray(corpus.tokens[corpus.offsets[rows[0]] : corpus.offsets[rows[-1] + 1]], dtype=np.int64)
        categories = np.repeat(corpus.categories[rows].astype(np.int64), corpus.lengths[rows] + 1, axis=0)
        predicted = tokens != corpus.tokenizer.specials.start
        model.head.observe(tokens[predicted], categories[predicted])


def development_figures(run: Run, dev: Corpus) -> tuple[Row, Figures]:
    """Return perplexities and bits per byte of the development texts, and the contribution of each text to them."""
    nats, known = run.nats(dev).astype(np.float64), is_known_target(dev)
    figures = text_figures.figures_from_nats(nats, dev)
    with np.errstate(over="ignore"):  # a diverged model has an infinite perplexity
        row = {
            "perplexity": float(np.exp(nats.mean())),
            "perplexity_known": float(np.exp(nats[known].mean())) if known.any() else math.nan,
        }
    bits = figures.get("bits_per_byte")
    if bits is not None and bits.denominator[bits.is_included].any():
        bound = bool((text_figures.has_lower_bound(dev) & bits.is_included).any())
        row |= {"bits_per_byte": bits.ratio, "bits_per_byte_bound": bound}
    return row, figures


class Trainer:
    """A run, its data and its optimizers between two steps."""

    def __init__(self, run: Run, corpus: Corpus, dev: Corpus) -> None:
        tokens = int(corpus.offsets[-1])
        wanted = sizes.step_bytes(run.config, len(run.tokenizer), run.schema, tokens, len(corpus))
        memory.check(wanted, f"training with batches of {min(tokens, run.config.training.batch_tokens):,} tokens")
        library.retain_freed_memory()
        self.device = find_device(run.config.training.device)
        self.run, self.config = run.to(self.device), run.config.training
        self.corpus, self.dev = plant_canaries(corpus, run.config, run.folder), dev
        self.progress, self.evaluated = Progress(), -1  # the step of the last evaluation
        self.stop = Stop()
        self.parameters = dict(run.model.named_parameters())
        self.start = StartingPoint.read(run.folder)
        # In a fine-tuning all tokens are negatives, also those that its texts lack.
        counts = target_frequencies(self.corpus, min_count=1 if self.start else 0)
        sampled = self.config.loss != "full"
        self.proposal = Proposal(torch.from_numpy(counts), self.config.samples, self.device) if sampled else None
        self.steps = max(1, round(self.config.epochs * len(self._order(0))))
        self.shared = SharedTargets.of(self.corpus, run.config) if self.config.min_users else None
        if self.start:
            self.start.place(run.model)
        else:
            with torch.no_grad():  # Adam would need thousands of steps to reach the unigram frequencies
                smoothed = (counts + 1) / (counts + 1).sum()
                run.model.head.initialize(torch.from_numpy(np.log(smoothed)))
        self.penalties = proximal.penalties(run, self.start)
        tables = [table for tables in run.model.head.row_tables() for table in tables]
        skippable = all(table.requires_grad and table not in self.penalties for table in tables)
        self.rows: list[RowAdam] = []
        if self.proposal and skippable:
            rates = [
                self.config.token_rate * learning_rate(step, self.steps, self.config) for step in range(self.steps)
            ]
            self.rows = [RowAdam(part, rates, self.config.weight_decay) for part in run.model.head.row_tables()]
        self.optimiser = torch.optim.AdamW(self._groups(tables), lr=self.config.learning_rate, fused=True)
        observe(run.model, self.corpus)

    def _groups(self, tables: list[nn.Parameter]) -> list[dict[str, Any]]:
        """Return the parameter groups of dense Adam: vectors do not decay, token tables have their own rate."""
        rest = [p for p in self.parameters.values() if not any(p is table for table in tables)]
        decay = self.config.weight_decay
        groups = [
            {"params": [p for p in rest if p.dim() > 1], "weight_decay": decay, "factor": 1.0},
            {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0, "factor": 1.0},
        ]
        dense = [] if self.rows else [{"params": tables, "weight_decay": decay, "factor": self.config.token_rate}]
        return groups + dense

    def _order(self, epoch: int) -> list[NDArray[np.int64]]:
        config = self.config
        return self.corpus.batches(config.batch_tokens, config.seed, epoch, max_user_texts=config.max_user_texts)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches from the current step to the last."""
        passed, epoch = 0, 0
        while True:
            order = self._order(epoch)
            for rows in order[max(0, self.progress.step - passed) :]:
                if self.progress.step >= self.steps:
                    return
                yield self.corpus.batch(rows)
            passed, epoch = passed + len(order), epoch + 1

    def step(self, batch: Batch) -> None:
        """Take one step of Adam on `batch`."""
        for group in self.optimiser.param_groups:
            group["lr"] = group["factor"] * learning_rate(self.progress.step, self.steps, self.config)
        count = self.shared.count(batch) if self.shared else int(batch.lengths.sum())
        batch = batch.to(self.device)
        nats, reads, picked = self.nats(batch)
        loss = nats.sum() / count
        self.run.model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        gradients = [
            [torch.zeros_like(table) if table.grad is None else table.grad for table in tables] for tables in picked
        ]
        norm = self._clip([*self._gradients(), *(gradient for tables in gradients for gradient in tables)])
        if not bool(torch.isfinite(loss.detach() + norm)):
            self.report_not_finite(batch, nats)
        self.progress.step += 1
        self.optimiser.step()
        for adam, rows, tables in zip(self.rows, reads.rows if reads else (), gradients, strict=True):
            adam.step(self.progress.step, rows, tables)
        proximal.pull(self.optimiser, self.penalties)
        self.progress.tokens += count
        self.progress.nats += float(loss.detach()) * count

    def nats(self, batch: Batch) -> tuple[Tensor, SampledRows | None, RowValues]:
        """Return the loss (B, T) of a batch, and the table rows that it read."""
        step, seed, model = self.progress.step, self.config.seed, self.run.model
        rate = model.config.dropout_context
        if rate:
            batch = replace(batch, context=batch.context.drop_categories(rate, (seed, step)))
        model.train()
        generators = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(generators), library.precision(self.config.precision, self.device):
            torch.manual_seed(seed * 1_000_003 + step)
            samples, reads, picked = self.proposal.draw() if self.proposal else None, None, []
            if samples and self.rows:
                reads = model.head.sampled_rows(batch.tokens, samples, batch.context.categories)
                for adam, rows in zip(self.rows, reads.rows, strict=True):
                    adam.catch_up(step, rows)
                    picked.append(adam.read(rows))
            nats: Tensor = model.sampled_nats(batch, samples, reads, picked) if samples else model(batch)
        model.eval()
        return nats * self.shared.mask(batch) if self.shared else nats, reads, picked

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    def _clip(self, gradients: list[Tensor]) -> Tensor:
        """Scale the gradients down to the norm that the config allows; return the norm before."""
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.clip and bool(norm > self.config.clip):
            torch._foreach_mul_(gradients, float(self.config.clip / norm))
        return norm

    def report_not_finite(self, batch: Batch, nats: Tensor) -> None:
        """Save the last finite state and raise a `UserError` that names the rows of the training data."""
        if all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters.values()):
            self.save()
        rows = self._culprits(batch, nats)
        named = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise UserError(
            f"the loss is not finite at step {self.progress.step + 1}, {'row' if len(rows) == 1 else 'rows'} {named} "
            f"of the training data; the checkpoint before it is in {self.run.folder} "
            "(a lower learning rate, or a lower --clip, may help)"
        )

    def _culprits(self, batch: Batch, nats: Tensor) -> list[int]:
        """Return the rows, counted from 1, whose own nats or else own gradient is not finite; all rows if none is."""
        bad = batch.rows[~torch.isfinite(nats.detach()).all(dim=1)].tolist()
        for row in [] if bad else batch.rows.tolist():
            self.run.model.zero_grad(set_to_none=True)
            self.run.model(self.run.batch(self.corpus, np.array([row]))).sum().backward()
            if not bool(torch.isfinite(torch.nn.utils.get_total_norm(self._gradients()))):
                bad.append(row)
        return sorted(row + 1 for row in bad or batch.rows.tolist())

    def evaluate(self) -> Row:
        """Evaluate the development texts, and save the weights if they are the best so far.

        A stop request ends the evaluation by `Stopped`.
        """
        self.catch_up()
        with self.stop.interruptible():
            row, figures = development_figures(self.run, self.dev)
        self.evaluated = self.progress.step
        better = row["perplexity"] < self.progress.best or math.isinf(self.progress.best)
        if better:
            self.progress.best, self.progress.worse = row["perplexity"], 0
            self.run.save_weights({"step": self.progress.step, **row})
            text_figures.save(self.run.folder, figures)
        else:
            self.progress.worse += 1
        return {"split": "dev", **row, "best": self.progress.best}

    def log(self, row: Row) -> Row:
        """Write one row of the log, with the current step, tokens and seconds."""
        here = self.progress
        row = {"step": here.step, "steps": self.steps, "tokens": here.tokens, "seconds": here.seconds, **row}
        files.append_row(self.run.log_path, row)
        here.rows += 1
        return row

    def catch_up(self) -> None:
        """Bring table rows that no recent step has read up to date."""
        for adam in self.rows:
            adam.catch_up(self.progress.step)

    @property
    def checkpoint(self) -> Path:
        """The file to resume from."""
        return self.run.folder / CHECKPOINT

    def save(self) -> None:
        """Write a checkpoint of weights, moments of Adam and progress."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            tensors |= {f"{name}:{key}": value for key, value in self._moments(parameter).items()}
            tensors[f"{name}:value"] = parameter
        tensors |= {f"{number}:done": adam.done for number, adam in enumerate(self.rows)}
        files.save_tensors(self.checkpoint, tensors, {"format": FORMAT, **vars(self.progress)})

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the moments of Adam; they are empty for a parameter that has had no gradient."""
        for adam in self.rows:
            if parameter in adam.state:
                return adam.state[parameter]
        state: dict[Tensor, dict[str, Tensor]] = self.optimiser.state
        return state.get(parameter, {})

    def load(self) -> None:
        """Return to the checkpoint, or to the start if there is none; drop rows that were logged after it."""
        if self.checkpoint.exists():
            self._restore()
        rows = self.run.log()[: self.progress.rows]
        self.evaluated = max((row["step"] for row in rows if row["split"] == "dev"), default=-1)
        files.write_rows(self.run.log_path, rows)

    def _restore(self) -> None:
        tensors, facts = files.load_tensors(self.checkpoint)
        check_format(facts.pop("format", None), FORMAT, self.checkpoint)
        shapes = {name: tensor.shape for name, tensor in tensors.items() if name.endswith(":value")}
        if shapes != {f"{name}:value": parameter.shape for name, parameter in self.parameters.items()}:
            raise UserError(f"{self.checkpoint}: does not belong to this config, schema and vocabulary")
        self.progress = Progress(**facts)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"{name}:value"])
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}:{key}" in tensors]
                saved = {key: tensors[f"{name}:{key}"].to(parameter.device) for key in keys}
                if moments := self._moments(parameter):
                    for key in moments.keys() & saved.keys():
                        moments[key].copy_(saved[key])
                elif saved:
                    self.optimiser.state[parameter] = saved
            for number, adam in enumerate(self.rows):
                adam.done.copy_(tensors[f"{number}:done"])
