"""The trainer, which takes steps, evaluates the model, and writes the log and checkpoints.

The random numbers of a step follow from (seed, step), and the order of an epoch from (seed, epoch).
Therefore a checkpoint needs no random state, and a resumed training gives the same bits (on one thread).
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

FORMAT = 1  # version of checkpoints
TEXTS_PER_PART = 1 << 18  # texts that `observe` reads at a time

Row = dict[str, Any]


@dataclass
class Progress:
    """The counters of a training, which a checkpoint stores next to the tensors.

    Attributes:
        step: The number of steps taken.
        tokens: The number of targets that these steps learned.
        seconds: The duration of the training.
        best: The lowest development perplexity.
        worse: The number of evaluations since the one with the lowest perplexity.
        rows: The number of rows of the log.
        nats: The sum of the losses of all targets since the last row of losses in the log.
        since: The value of `tokens` at that row.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = math.inf
    worse: int = 0
    rows: int = 0
    nats: float = 0.0
    since: int = 0


def learning_rate(step: int, steps: int, config: TrainingConfig) -> float:
    """Return the learning rate of `step` (from 0): a linear warm-up, then cosine decay, linear decay, or no decay.

    During the warm-up, the first `config.warmup` of all steps, the rate rises to its peak, because large steps at the
    start, when the gradients are large, can make a training diverge.
    """
    warmup = max(1, round(config.warmup * steps))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    factor = {"cosine": (1 + math.cos(math.pi * share)) / 2, "linear": 1 - share, "none": 1.0}[config.decay]
    return config.learning_rate * factor


def observe(model: LanguageModel, corpus: Corpus) -> None:
    """Pass all targets of training and the context values of their texts to the head of the model.

    A hashed softmax bias records in a filter which tokens occur with which values; other heads ignore the targets.
    """
    for start in range(0, len(corpus), TEXTS_PER_PART):
        rows = np.arange(start, min(start + TEXTS_PER_PART, len(corpus)))
        tokens = np.asarray(corpus.tokens[corpus.offsets[rows[0]] : corpus.offsets[rows[-1] + 1]], dtype=np.int64)
        categories = np.repeat(corpus.categories[rows].astype(np.int64), corpus.lengths[rows] + 1, axis=0)
        is_target = tokens != corpus.tokenizer.specials.start
        model.head.observe(tokens[is_target], categories[is_target])


def development_figures(run: Run, dev: Corpus) -> tuple[Row, Figures]:
    """Return perplexities and bits per byte of the development texts, and the contribution of each text to them."""
    nats, is_known = run.nats(dev).astype(np.float64), is_known_target(dev)
    figures = text_figures.figures_from_nats(nats, dev)
    with np.errstate(over="ignore"):  # a diverged model has an infinite perplexity
        row = {
            "perplexity": float(np.exp(nats.mean())),
            "perplexity_known": float(np.exp(nats[is_known].mean())) if is_known.any() else math.nan,
        }
    bits = figures.get("bits_per_byte")
    if bits is not None and bits.denominator[bits.is_included].any():
        is_lower_bound = bool((text_figures.has_lower_bound(dev) & bits.is_included).any())
        row |= {"bits_per_byte": bits.ratio, "bits_per_byte_bound": is_lower_bound}
    return row, figures


class Trainer:
    """Takes the training steps of a run, and holds its data, its optimizers and the progress of the training.

    Attributes:
        raises_if_not_finite: Whether a loss or gradient that is not finite raises a `UserError`.
    """

    raises_if_not_finite = True

    def __init__(self, run: Run, corpus: Corpus, dev: Corpus) -> None:
        tokens = int(corpus.offsets[-1])
        required = sizes.step_bytes(run.config, len(run.tokenizer), run.schema, tokens, len(corpus))
        memory.check(required, f"training with batches of {min(tokens, run.config.training.batch_tokens):,} tokens")
        library.retain_freed_memory()
        self.device = find_device(run.config.training.device)
        self.run, self.config = run.to(self.device), run.config.training
        self.corpus, self.dev = plant_canaries(corpus, run.config, run.folder), dev
        self.progress = Progress()
        self.last_evaluation = -1  # the step of the last evaluation; -1 before the first
        self.stop = Stop()
        self.parameters = dict(run.model.named_parameters())
        self.starting_point = StartingPoint.read(run.folder)
        # In a fine-tuning all tokens of the vocabulary are negatives, including those that do not occur in its texts.
        counts = target_frequencies(self.corpus, min_count=1 if self.starting_point else 0)
        is_sampled = self.config.loss != "full"
        self.proposal = Proposal(torch.from_numpy(counts), self.config.samples, self.device) if is_sampled else None
        self.steps = max(1, round(self.config.epochs * len(self._order(0))))
        self.shared_targets = SharedTargets.of(self.corpus, run.config) if self.config.min_users else None
        if self.starting_point:
            self.starting_point.apply_to(run.model)
        else:
            with torch.no_grad():  # Adam would need thousands of steps to reach the unigram frequencies
                smoothed = (counts + 1) / (counts + 1).sum()
                run.model.head.initialize(torch.from_numpy(np.log(smoothed)))
        self.penalties = proximal.penalties(run, self.starting_point)
        tables = [table for tables in run.model.head.row_tables() for table in tables]
        # `RowAdam` cannot leave a table unchanged, as in a fine-tuning of other parts, or apply penalties.
        can_skip_rows = all(table.requires_grad and table not in self.penalties for table in tables)
        self.row_optimizers: list[RowAdam] = []
        if self.proposal and can_skip_rows:
            rates = [
                self.config.token_rate * learning_rate(step, self.steps, self.config) for step in range(self.steps)
            ]
            self.row_optimizers = [
                RowAdam(part, rates, self.config.weight_decay) for part in run.model.head.row_tables()
            ]
        self.optimizer = torch.optim.AdamW(self._groups(tables), lr=self.config.learning_rate, fused=True)
        observe(run.model, self.corpus)

    def _groups(self, tables: list[nn.Parameter]) -> list[dict[str, Any]]:
        """Return the parameter groups of dense Adam: matrices, vectors (without weight decay), and token tables.

        The learning rate of a group is the rate of the step times the `factor` of the group. The token tables are
        omitted if `RowAdam` optimizes them.
        """
        others = [
            parameter for parameter in self.parameters.values() if not any(parameter is table for table in tables)
        ]
        decay = self.config.weight_decay
        groups = [
            {"params": [item for item in others if item.dim() > 1], "weight_decay": decay, "factor": 1.0},
            {"params": [item for item in others if item.dim() <= 1], "weight_decay": 0.0, "factor": 1.0},
        ]
        dense = (
            [] if self.row_optimizers else [{"params": tables, "weight_decay": decay, "factor": self.config.token_rate}]
        )
        return groups + dense

    def _order(self, epoch: int) -> list[NDArray[np.int64]]:
        config = self.config
        return self.corpus.batches(config.batch_tokens, config.seed, epoch, max_user_texts=config.max_user_texts)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches from the current step to the last."""
        first_step, epoch = 0, 0  # the first step of the current epoch, and the number of the epoch
        while True:
            order = self._order(epoch)
            for rows in order[max(0, self.progress.step - first_step) :]:
                if self.progress.step >= self.steps:
                    return
                yield self.corpus.batch(rows)
            first_step, epoch = first_step + len(order), epoch + 1

    def step(self, batch: Batch) -> None:
        """Take one step of Adam on `batch`."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["factor"] * learning_rate(self.progress.step, self.steps, self.config)
        count = self.shared_targets.count(batch) if self.shared_targets else int(batch.lengths.sum())
        batch = batch.to(self.device)
        nats, sampled_rows, row_values = self.nats(batch)
        loss = nats.sum() / count
        self.run.model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        gradients = [
            [torch.zeros_like(table) if table.grad is None else table.grad for table in tables] for tables in row_values
        ]
        norm = self._clip([*self._gradients(), *(gradient for tables in gradients for gradient in tables)])
        if not bool(torch.isfinite(loss.detach() + norm)) and self.raises_if_not_finite:
            if all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters.values()):
                self.save()
            raise self._not_finite_error(batch, nats)
        self.progress.step += 1
        self.optimizer.step()
        for adam, rows, row_gradients in zip(
            self.row_optimizers, sampled_rows.rows if sampled_rows else (), gradients, strict=True
        ):
            adam.step(self.progress.step, rows, row_gradients)
        proximal.take_proximal_steps(self.optimizer, self.penalties)
        self.progress.tokens += count
        self.progress.nats += float(loss.detach()) * count

    def nats(self, batch: Batch) -> tuple[Tensor, SampledRows | None, RowValues]:
        """Return the nats (B, T) of the targets of a batch, 0 for padding and for targets that are not learned.

        With a sampled loss and `RowAdam`, the rows that the loss reads and their values are returned too.
        """
        step, seed, model = self.progress.step, self.config.seed, self.run.model
        dropout = model.config.dropout_context
        if dropout:
            batch = replace(batch, context=batch.context.drop_categories(dropout, (seed, step)))
        model.train()
        generators = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(generators), library.precision(self.config.precision, self.device):
            torch.manual_seed(seed * 1_000_003 + step)
            samples = self.proposal.draw() if self.proposal else None
            sampled_rows, row_values = None, []
            if samples and self.row_optimizers:
                sampled_rows = model.head.sampled_rows(batch.tokens, samples, batch.context.categories)
                for adam, rows in zip(self.row_optimizers, sampled_rows.rows, strict=True):
                    adam.catch_up(step, rows)
                    row_values.append(adam.read(rows))
            nats: Tensor = model.sampled_nats(batch, samples, sampled_rows, row_values) if samples else model(batch)
        model.eval()
        return nats * self.shared_targets.mask(batch) if self.shared_targets else nats, sampled_rows, row_values

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    def _clip(self, gradients: list[Tensor]) -> Tensor:
        """Scale the gradients down to the maximum norm of the config; return their original norm."""
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.clip and bool(norm > self.config.clip):
            torch._foreach_mul_(gradients, float(self.config.clip / norm))
        return norm

    def _not_finite_error(self, batch: Batch, nats: Tensor) -> UserError:
        """Return the error about a loss that is not finite; its message names the rows of the batch that cause it."""
        rows = self._rows_not_finite(batch, nats)
        listing = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        return UserError(
            f"the loss is not finite at step {self.progress.step + 1}, {'row' if len(rows) == 1 else 'rows'} {listing} "
            f"of the training data; the checkpoint before this step is in {self.run.folder} "
            "(try a lower learning rate or a lower --clip)"
        )

    def _rows_not_finite(self, batch: Batch, nats: Tensor) -> list[int]:
        """Return the numbers (from 1) of the rows of a batch that cause a loss or gradient that is not finite.

        These are the rows with nats that are not finite; if there are none, the rows with gradients that are not
        finite; if there are none either, all rows of the batch.
        """
        rows = batch.rows[~torch.isfinite(nats.detach()).all(dim=1)].tolist()
        for row in [] if rows else batch.rows.tolist():
            self.run.model.zero_grad(set_to_none=True)
            self.run.model(self.run.batch(self.corpus, np.array([row]))).sum().backward()
            if not bool(torch.isfinite(torch.nn.utils.get_total_norm(self._gradients()))):
                rows.append(row)
        return sorted(row + 1 for row in rows or batch.rows.tolist())

    def evaluate(self) -> Row:
        """Evaluate the model on the development texts, and save the weights if they are the best so far.

        Raises:
            Stopped: On a stop request during the evaluation.
        """
        self.catch_up()
        with self.stop.interruptible():
            row, figures = development_figures(self.run, self.dev)
        self.last_evaluation = self.progress.step
        # Until a perplexity is finite, each evaluation counts as the best.
        is_best = row["perplexity"] < self.progress.best or math.isinf(self.progress.best)
        if is_best:
            self.progress.best, self.progress.worse = row["perplexity"], 0
            self.run.save_weights({"step": self.progress.step, **row})
            text_figures.save(self.run.folder, figures)
        else:
            self.progress.worse += 1
        return {"split": "dev", **row, "best": self.progress.best}

    def log(self, row: Row) -> Row:
        """Write a row of the log, after adding the current step, tokens and seconds."""
        progress = self.progress
        row = {
            "step": progress.step,
            "steps": self.steps,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
            **row,
        }
        files.append_row(self.run.log_path, row)
        progress.rows += 1
        return row

    def catch_up(self) -> None:
        """Update all table rows to the current step."""
        for adam in self.row_optimizers:
            adam.catch_up(self.progress.step)

    @property
    def checkpoint(self) -> Path:
        """The path of the checkpoint."""
        return self.run.folder / CHECKPOINT

    def save(self) -> None:
        """Write a checkpoint with the weights, the moments of Adam and the progress."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            tensors |= {f"{name}:{key}": value for key, value in self._moments(parameter).items()}
            tensors[f"{name}:value"] = parameter
        tensors |= {f"{number}:done": adam.last_steps for number, adam in enumerate(self.row_optimizers)}
        files.save_tensors(self.checkpoint, tensors, {"format": FORMAT, **vars(self.progress)})

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return Adam's state of a parameter; empty if the parameter has not had a gradient."""
        for adam in self.row_optimizers:
            if parameter in adam.state:
                return adam.state[parameter]
        state: dict[Tensor, dict[str, Tensor]] = self.optimizer.state
        return state.get(parameter, {})

    def load(self) -> None:
        """Load the checkpoint, if it exists, and remove the rows of the log that were written after it."""
        if self.checkpoint.exists():
            self._restore()
        rows = self.run.log()[: self.progress.rows]
        self.last_evaluation = max((row["step"] for row in rows if row["split"] == "dev"), default=-1)
        files.write_rows(self.run.log_path, rows)

    def _restore(self) -> None:
        """Set the weights, Adam's state and the progress to those of the checkpoint."""
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
                    self.optimizer.state[parameter] = saved
            for number, adam in enumerate(self.row_optimizers):
                adam.last_steps.copy_(tensors[f"{number}:done"])
