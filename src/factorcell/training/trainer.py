"""The trainer, which takes steps, evaluates the model, and writes the log and checkpoints.

The random numbers of a step depend only on the seed and the step, and the batches of an epoch only on the seed and the
epoch. Therefore a checkpoint needs no random state, and a resumed training has bitwise the same result on one thread.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from factorcell.adapters.adapters import Adapter
from factorcell.config import Config
from factorcell.data.corpus import (
    Batch,
    Corpus,
    extend_hashes,
    is_known_target,
    target_frequencies,
    target_offsets,
)
from factorcell.data.counts import count_users
from factorcell.errors import UserError, check_format
from factorcell.evaluation import text_figures
from factorcell.evaluation.text_figures import DEVELOPMENT_RESULT, Figures
from factorcell.io import files, memory
from factorcell.io.interrupts import Stop
from factorcell.nn import sizes
from factorcell.nn.devices import find_device, find_precision
from factorcell.nn.kernels import library
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.output import Proposal, RowValues, SampledRows
from factorcell.runs.run import Run
from factorcell.runs.training_state import CHECKPOINT
from factorcell.training import proximal
from factorcell.training.proximal import StartingPoint
from factorcell.training.row_adam import RowAdam
from factorcell.training.schedule import Progress, TimeLimit, learning_rate, warmup_share

FORMAT = 1  # version of checkpoints
TEXTS_PER_PART = 1 << 18  # texts that `observe` reads at a time
MAX_GRADIENT_NORM = 1.0  # larger gradients are scaled down to this norm
# n of the n-grams that `min_users` users must have written: of words, and of characters, graphemes and pieces of words.
WORD_ORDER, CHARACTER_ORDER = 2, 4

Row = dict[str, Any]


def observe(model: LanguageModel, corpus: Corpus) -> None:
    """Pass all training targets, with the context values of their texts, to the head of the model.

    A hashed softmax bias records in a filter which tokens occur with which values; other heads ignore the targets.
    """
    for start in range(0, len(corpus), TEXTS_PER_PART):
        end = min(start + TEXTS_PER_PART, len(corpus))
        tokens = np.asarray(corpus.tokens[corpus.offsets[start] : corpus.offsets[end]], dtype=np.int64)
        token_counts = corpus.lengths[start:end] + 1  # per text, with its start token
        categories = np.repeat(corpus.categories[start:end].astype(np.int64), token_counts, axis=0)
        is_target = tokens != corpus.tokenizer.specials.start
        model.head.observe(tokens[is_target], categories[is_target])


def development_figures(run: Run, dev: Corpus) -> tuple[Row, Figures]:
    """Return perplexities and bits per byte of the development texts, and the contribution of each text to them."""
    nats = run.nats(dev).astype(np.float64)
    is_known = is_known_target(dev)
    figures = text_figures.figures_from_nats(nats, dev)
    with np.errstate(over="ignore"):  # a diverged model has an infinite perplexity
        row = {
            "perplexity": float(np.exp(nats.mean())),
            "perplexity_known": float(np.exp(nats[is_known].mean())) if is_known.any() else math.nan,
        }
    bits_per_byte = figures.get("bits_per_byte")
    if bits_per_byte is not None and bits_per_byte.denominator[bits_per_byte.is_included].any():
        row["bits_per_byte"] = bits_per_byte.ratio
    return row, figures


@dataclass(frozen=True)
class SharedTargets:
    """Which targets of a corpus are learned, because at least `min_users` users wrote their n-grams.

    The n-gram is the target and the n - 1 tokens before it, or fewer at the start of a text. The model reads all texts,
    but rare content (a password, a name) adds nothing to the loss.
    """

    is_learned: Tensor  # whether each target is learned, text after text (targets,)
    starts: Tensor  # index of the first target of each text, followed by the number of targets (texts + 1,)

    @classmethod
    def of(cls, corpus: Corpus, config: Config) -> "SharedTargets":
        """Find the targets whose n-gram at least `min_users` users wrote; texts without a user are not counted."""
        is_word_level = not (corpus.tokenizer.is_character_level or corpus.tokenizer.is_subword)
        order = WORD_ORDER if is_word_level else CHARACTER_ORDER
        distinct_ngrams, ngram_of_target = np.unique(ngram_hashes(corpus, order), return_inverse=True)
        user_of_target = np.repeat(corpus.users, corpus.lengths)
        user_counts = count_users(ngram_of_target, user_of_target, len(distinct_ngrams))
        is_learned = (user_counts >= config.training.min_users)[ngram_of_target]
        return cls(torch.from_numpy(is_learned), torch.from_numpy(target_offsets(corpus)))

    def mask(self, batch: Batch) -> Tensor:
        """Return a mask (B, T) that is true at the learned targets of `batch`."""
        positions = torch.arange(batch.tokens.shape[1] - 1)
        first_targets = self.starts[batch.rows.cpu()]
        # The index of each target in the corpus. Indices of padding are limited to the last target.
        targets = (first_targets[:, None] + positions).clamp(max=len(self.is_learned) - 1)
        return self.is_learned[targets].to(batch.tokens.device) & batch.mask()


def ngram_hashes(corpus: Corpus, order: int) -> NDArray[np.uint64]:
    """Return, for each target, a 64-bit hash of the n-gram that ends with it: up to `order` tokens of the same text."""
    tokens = np.asarray(corpus.tokens, dtype=np.uint64) + np.uint64(1)  # 0 stands for positions before the text
    positions = np.arange(len(tokens)) - np.repeat(np.asarray(corpus.offsets[:-1]), corpus.lengths + 1)
    hashes = np.zeros(len(tokens), dtype=np.uint64)
    for distance in range(order - 1, -1, -1):
        # The token `distance` positions before each token, or 0 if that position is before the text.
        previous = np.zeros_like(tokens)
        earlier_tokens = tokens[: len(tokens) - distance]
        previous[distance:] = np.where(positions[distance:] >= distance, earlier_tokens, 0)
        hashes = extend_hashes(hashes, previous)
    return hashes[positions > 0]


class Trainer:
    """The training of a run: its data, its optimizers and its progress, with the methods that take steps."""

    def __init__(self, run: Run, corpus: Corpus, dev: Corpus, limit: TimeLimit | None = None) -> None:
        token_count = int(corpus.read_lengths.sum()) + len(corpus)
        required_bytes = sizes.step_bytes(run.config, len(run.tokenizer), run.schema, token_count, len(corpus))
        tokens_per_batch = min(token_count, run.config.training.batch_tokens)
        memory.check(required_bytes, f"training with batches of {tokens_per_batch:,} tokens")
        library.retain_freed_memory()
        self.device = find_device(run.config.training.device, run.config.backbone)
        self.precision = find_precision(run.config.training.precision, self.device, run.config.backbone)
        run.model.to(self.device)
        self.run, self.config = run, run.config.training
        self.corpus, self.dev = corpus, dev
        self.stop = Stop()
        # With the shorter warm-up, some trainings of a pretrained base diverge (docs/results/transformers.md).
        self.warmup = warmup_share(run.config)
        self.parameters = run.model.own_parameters()
        self.starting_point = StartingPoint.read(run.folder)
        # In a fine-tuning, the sampled loss may draw every token, also those that do not occur in the texts.
        token_counts = target_frequencies(self.corpus, min_count=1 if self.starting_point else 0)
        self.proposal: Proposal | None = None
        if self.config.samples:
            self.proposal = Proposal(torch.from_numpy(token_counts), self.config.samples, self.device)
        self.steps_per_pass = len(self._batch_rows(0))
        steps = self.config.steps or max(1, round(self.config.epochs * self.steps_per_pass))
        max_seconds = math.inf if limit is None else limit.remaining_seconds(perf_counter())
        self.progress = Progress(steps, max_seconds, 0.0 if limit is None else limit.reserve)
        self.shared_targets = SharedTargets.of(self.corpus, run.config) if self.config.min_users else None
        if self.starting_point:
            self.starting_point.apply_to(run.model)
        else:
            with torch.no_grad():  # Adam would need thousands of steps to reach the unigram frequencies
                smoothed_counts = token_counts + 1
                run.model.head.initialize(torch.from_numpy(np.log(smoothed_counts / smoothed_counts.sum())))
        self.penalties = proximal.penalties(run, self.starting_point)
        token_tables = list(itertools.chain.from_iterable(run.model.head.row_tables()))
        # `RowAdam` can neither freeze a table, as a fine-tuning of other parts requires, nor apply penalties.
        is_row_adam_possible = all(table.requires_grad and table not in self.penalties for table in token_tables)
        row_tables = run.model.head.row_tables() if self.proposal and is_row_adam_possible else []
        self.row_optimizers = [RowAdam(tables, steps, self.config.weight_decay) for tables in row_tables]
        parameter_groups = self._parameter_groups(token_tables)
        self.optimizer = torch.optim.AdamW(parameter_groups, lr=self.config.learning_rate, fused=True)
        observe(run.model, self.corpus)

    def _parameter_groups(self, token_tables: list[nn.Parameter]) -> list[dict[str, Any]]:
        """Return the parameter groups of dense Adam: matrices, vectors (without weight decay), and tables.

        The learning rate of a group is that of the step times its `factor`; adapters of high rank have groups of their
        own. Most steps read few rows of the tables. `RowAdam` optimizes token tables, if there is one.
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

    def _batch_rows(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the rows of the texts of each batch of an epoch, in the order of the batches."""
        return self.corpus.batches(self.config.batch_tokens, self.config.seed, epoch)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches from the current step to the last."""
        first_step, epoch = 0, 0  # the first step of the current epoch, and the number of the epoch
        while True:
            batch_rows = self._batch_rows(epoch)
            steps_taken = max(0, self.progress.step - first_step)  # of this epoch, before the training was resumed
            for rows in batch_rows[steps_taken:]:
                if self.progress.share >= 1:
                    return
                yield self.corpus.batch(rows)
            first_step, epoch = first_step + len(batch_rows), epoch + 1

    def step(self, batch: Batch) -> None:
        """Take one step of Adam on `batch`."""
        position, steps = self.progress.share * self.progress.steps, self.progress.steps
        rate = learning_rate(position, steps, self.config.learning_rate, self.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = group["factor"] * rate
        target_count = self.target_count(batch)
        batch = batch.to(self.device)
        nats, sampled_rows, row_values = self.nats(batch)
        loss = nats.sum() / target_count
        self.run.model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        row_gradients = [[_gradient_or_zeros(values) for values in group_values] for group_values in row_values]
        norm = self._clip([*self._gradients(), *itertools.chain.from_iterable(row_gradients)])
        if not bool(torch.isfinite(loss.detach() + norm)):
            if all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters.values()):
                self.save()
            raise self._not_finite_error(batch, nats)
        self.progress.step += 1
        self.optimizer.step()
        rows_per_optimizer = sampled_rows.rows if sampled_rows else ()
        for row_optimizer, rows, gradients in zip(self.row_optimizers, rows_per_optimizer, row_gradients, strict=True):
            row_optimizer.step(self.config.token_rate * rate, rows, gradients)
        proximal.take_proximal_steps(self.optimizer, self.penalties)
        self.progress.tokens += target_count
        self.progress.nats += float(loss.detach()) * target_count

    def target_count(self, batch: Batch) -> int:
        """Return the number of learned targets of `batch`, or 1 if it has none, so that it can divide the loss."""
        return max(1, int((self.shared_targets.mask(batch) if self.shared_targets else batch.lengths).sum()))

    def nats(self, batch: Batch) -> tuple[Tensor, SampledRows | None, RowValues]:
        """Return the nats (B, T) of the targets of a batch, 0 for padding and for targets that are not learned.

        With `RowAdam`, also return the rows of the token tables that the loss reads, and the values of these rows.
        """
        step, seed, model = self.progress.step, self.config.seed, self.run.model
        dropout = model.config.dropout_context
        if dropout:
            batch = replace(batch, context=batch.context.drop_categories(dropout, (seed, step)))
        model.train()
        forked_devices = [] if self.device.type == "cpu" else [self.device]  # in addition to the CPU
        with torch.random.fork_rng(forked_devices), library.precision(self.precision, self.device):
            torch.manual_seed(seed * 1_000_003 + step)
            samples = self.proposal.draw() if self.proposal else None
            sampled_rows, row_values = None, []
            if samples and self.row_optimizers:
                sampled_rows = model.sampled_rows(batch, samples)
                for row_optimizer, rows in zip(self.row_optimizers, sampled_rows.rows, strict=True):
                    row_optimizer.catch_up(rows)
                    row_values.append(row_optimizer.read(rows))
            nats: Tensor = model.sampled_nats(batch, samples, sampled_rows, row_values) if samples else model(batch)
        model.eval()
        if self.shared_targets:
            nats = nats * self.shared_targets.mask(batch)
        return nats, sampled_rows, row_values

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    def _clip(self, gradients: list[Tensor]) -> Tensor:
        """Scale the gradients down to the maximum norm; return their original norm."""
        norm = torch.nn.utils.get_total_norm(gradients)
        if bool(norm > MAX_GRADIENT_NORM):
            torch._foreach_mul_(gradients, float(MAX_GRADIENT_NORM / norm))
        return norm

    def _not_finite_error(self, batch: Batch, nats: Tensor) -> UserError:
        """Return the error about a loss that is not finite; it lists the rows of the batch that cause it.

        These are the rows with nats that are not finite, or else with such gradients, or else all rows.
        """
        rows = batch.rows[~torch.isfinite(nats.detach()).all(dim=1)].tolist()
        rows = rows or [row for row in batch.rows.tolist() if not self._has_finite_gradient(row)]
        row_numbers = sorted(row + 1 for row in rows or batch.rows.tolist())
        noun = "row" if len(row_numbers) == 1 else "rows"
        listing = ", ".join(map(str, row_numbers[:5])) + (", ..." if len(row_numbers) > 5 else "")
        return UserError(
            f"the loss is not finite at step {self.progress.step + 1}, {noun} {listing} of the training data; "
            f"the checkpoint before this step is in {self.run.folder} (try a lower learning rate)"
        )

    def _has_finite_gradient(self, row: int) -> bool:
        self.run.model.zero_grad(set_to_none=True)
        self.run.model(self.run.batch(self.corpus, np.array([row]))).sum().backward()
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(self._gradients())))

    def evaluate(self) -> Row:
        """Evaluate the model on the development texts, and save the weights if they are the best so far.

        Raises:
            Stopped: On a stop request during the evaluation.
        """
        self.catch_up()
        with self.stop.interruptible():
            row, figures = development_figures(self.run, self.dev)
        # Until a perplexity is finite, each evaluation counts as the best.
        is_best = row["perplexity"] < self.progress.best or math.isinf(self.progress.best)
        if is_best:
            self.progress.best, self.progress.evaluations_since_best = row["perplexity"], 0
            self.run.save_weights({"step": self.progress.step, **row})
            text_figures.save(self.run.folder, figures, DEVELOPMENT_RESULT)
        else:
            self.progress.evaluations_since_best += 1
        return {"split": "dev", **row, "best": self.progress.best}

    def log(self, row: Row) -> Row:
        """Add the current step, tokens and seconds to `row`, write it into the log, and return it."""
        progress = self.progress
        counters = {"step": progress.step, "steps": progress.total_steps}
        row = {**counters, "tokens": progress.tokens, "seconds": progress.seconds, **row}
        files.append_row(self.run.log_path, row)
        progress.rows += 1
        return row

    def catch_up(self) -> None:
        """Update all rows of the tables that `RowAdam` optimizes to the current step."""
        for row_optimizer in self.row_optimizers:
            row_optimizer.catch_up()

    @property
    def checkpoint(self) -> Path:
        """The path of the checkpoint."""
        return self.run.folder / CHECKPOINT

    def save(self) -> None:
        """Write a checkpoint with the weights, the moments of Adam and the progress."""
        tensors: dict[str, Tensor] = {}
        states = {**self.optimizer.state, **self._row_states()}
        for name, parameter in self.parameters.items():
            tensors |= {f"{name}:{key}": value for key, value in states.get(parameter, {}).items()}
            tensors[f"{name}:value"] = parameter
        for number, optimizer in enumerate(self.row_optimizers):
            rates = torch.tensor(optimizer.rates, dtype=torch.float64)
            tensors |= {f"{number}:done": optimizer.last_steps, f"{number}:rates": rates}
        files.save_tensors(self.checkpoint, tensors, {"format": FORMAT, **asdict(self.progress)})

    def _row_states(self) -> dict[Tensor, dict[str, Tensor]]:
        """Return the moments of the tables that `RowAdam` optimizes."""
        return {table: state for optimizer in self.row_optimizers for table, state in optimizer.state.items()}

    def load(self) -> None:
        """Load the checkpoint, if it exists, and remove the rows of the log that were written after it."""
        if self.checkpoint.exists():
            self._restore()
        files.write_rows(self.run.log_path, self.run.log()[: self.progress.rows])

    def _restore(self) -> None:
        tensors, facts = files.load_tensors(self.checkpoint)
        check_format(facts.pop("format", None), FORMAT, self.checkpoint)
        shapes = {name: tensor.shape for name, tensor in tensors.items() if name.endswith(":value")}
        if shapes != {f"{name}:value": parameter.shape for name, parameter in self.parameters.items()}:
            raise UserError(f"{self.checkpoint}: does not belong to this config, schema and vocabulary")
        self.progress = Progress(**facts)
        row_states = self._row_states()
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"{name}:value"])
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}:{key}" in tensors]
                moments = {key: _with_layout_of(parameter, tensors[f"{name}:{key}"]) for key in keys}
                if parameter in row_states:
                    for key, moment in moments.items():
                        row_states[parameter][key].copy_(moment)
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


def _gradient_or_zeros(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
