"""The training loop: the trainer takes steps, evaluates the model, and writes the log and checkpoints.

The random numbers of a step depend only on the seed and the step, and the batches of an epoch only on the seed and the
epoch. Therefore a checkpoint needs no random state, and a resumed training has bitwise the same result on one thread.
"""

import math
from collections.abc import Generator, Iterator
from dataclasses import asdict, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from factorcell.data.corpus import Batch, Corpus, is_known_target, target_frequencies
from factorcell.data.counts import SharedTargets
from factorcell.errors import UserError, check_format
from factorcell.evaluation import text_figures
from factorcell.evaluation.text_figures import DEVELOPMENT_RESULT, Figures, texts_digest
from factorcell.io import files, memory
from factorcell.io.arrays import list_blocks
from factorcell.io.interrupts import Stop, Stopped
from factorcell.io.progress import progress_bar
from factorcell.io.torchrun import process_count
from factorcell.nn import sizes
from factorcell.nn.language_model import LanguageModel
from factorcell.runs.run import CHECKPOINT, WEIGHTS, Run
from factorcell.training.optimization import Optimization, Step
from factorcell.training.proximal import StartingPoint
from factorcell.training.schedule import Progress, TimeLimit, learning_rate, warmup_share

if TYPE_CHECKING:
    from factorcell.training.processes import Group

FORMAT = 2  # version of checkpoints
LOG_EVERY, SAVE_SECONDS = 50, 60.0  # steps between rows of losses in the log, and seconds between checkpoints

Row = dict[str, Any]


def observe(model: LanguageModel, corpus: Corpus) -> None:
    """Let a hashed softmax bias record which training targets occur with which context values."""
    for texts in list_blocks(corpus.offsets):
        offsets = corpus.offsets[texts.start : texts.stop + 1]
        tokens = np.asarray(corpus.tokens[offsets[0] : offsets[-1]], dtype=np.int64)
        categories = np.repeat(corpus.categories[texts].astype(np.int64), np.diff(offsets), axis=0)
        is_target = tokens != corpus.tokenizer.specials.start
        model.head.observe(tokens[is_target], categories[is_target])


def development_figures(run: Run, dev: Corpus, group: "Group | None" = None) -> tuple[Row, Figures]:
    """Return perplexities and bits per byte of the development texts, and the contribution of each text to them."""
    nats = (group.nats(run, dev) if group else run.nats(dev)).astype(np.float64)
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


class Trainer(Optimization):
    """The training of a run: its data and its progress, with the methods that take steps and evaluate the model."""

    def __init__(self, run: Run, corpus: Corpus, dev: Corpus, limit: TimeLimit | None = None) -> None:
        token_count, training = int(corpus.read_lengths.sum()) + len(corpus), run.config.training
        required_bytes = sizes.step_bytes(run.config, len(run.tokenizer), run.schema, token_count, len(corpus))
        tokens_per_batch = min(token_count, training.batch_tokens)
        memory.check(required_bytes, f"training with batches of {tokens_per_batch:,} tokens")
        self.corpus, self.dev, self.checkpoint = corpus, dev, run.folder / CHECKPOINT
        self.data_digests = [texts_digest(corpus), texts_digest(dev)]
        self.stop = Stop()
        # With the shorter warm-up, some trainings of a pretrained base diverge (docs/results/transformers.md).
        self.warmup = warmup_share(run.config)
        self.steps_per_pass = len(corpus.batches(training.batch_tokens, training.seed, 0))
        steps = training.steps or max(1, round(training.epochs * self.steps_per_pass))
        starting_point = StartingPoint.read(run.folder)
        # In a fine-tuning, the sampled loss may draw every token, also those that do not occur in the texts.
        token_counts = target_frequencies(corpus, min_count=1 if starting_point else 0)
        super().__init__(run, token_counts, starting_point, steps)
        self.progress = Progress(steps)
        if limit is not None:
            self.progress = Progress(steps, limit.remaining_seconds(perf_counter()), **limit.reserves)
        self.saved_seconds = 0.0  # `progress.seconds` of the last checkpoint
        self.shared_targets = SharedTargets.of(corpus, training.min_users) if training.min_users else None
        hashed = getattr(run.model.head, "hashed", None)
        if hashed is not None and hashed.weight.requires_grad:  # a fine-tuning of other parts does not change the bias
            observe(run.model, corpus)

    def start_clocks(self) -> None:
        """Start the progress bar, and the clock up to which `progress.seconds` counts."""
        total, step = self.progress.total_steps, self.progress.step
        self.bar = progress_bar(desc="  training", unit="steps", total=total, initial=step)
        self.clock = perf_counter()
        # `progress.tokens` and `progress.seconds` after the last log row or evaluation in this process.
        self.tokens_before, self.seconds_before = self.progress.tokens, self.progress.seconds

    def rows(self) -> Iterator[Row]:
        """Train to the end, and yield the rows of the log; raise `Stopped` after a stop request."""
        patience = self.config.patience
        yield from self._due_rows()
        for batch in self.batches():
            if patience and self.progress.evaluations_since_best >= patience:
                break
            tokens = self.progress.tokens
            self.step(batch)
            self.count_seconds(self.progress.tokens - tokens)
            self.bar.total = self.progress.total_steps
            self.bar.update()
            yield from self._due_rows()
        yield from self._due_rows()  # the time may have ended after the rows of the last step
        if self.progress.seconds > self.saved_seconds:
            self.save()

    def count_seconds(self, targets: int = 0) -> None:
        """Add the seconds since the last call, in which a step learned `targets`, to the duration of the training."""
        now = perf_counter()
        self.progress.count_seconds(now - self.clock, targets)
        self.clock = now

    def _due_rows(self) -> Iterator[Row]:
        """Yield the rows that are due at the current step, and save a checkpoint every `SAVE_SECONDS`.

        The progress, which a checkpoint stores, determines what is due: a training that was stopped between a step and
        its evaluation begins with this evaluation when it resumes.
        """
        if self.stop.is_requested:
            raise Stopped
        progress, evaluations = self.progress, self.config.evaluations
        step = progress.step
        # Before its first step, only a fine-tuning is evaluated: its starting weights may be the best.
        is_starting_point_due = self.starting_point is not None and not progress.rows
        is_evaluation_due = progress.is_evaluation_due(evaluations) if step else is_starting_point_due
        has_new_losses = progress.tokens > progress.tokens_at_last_row
        if has_new_losses and (step % LOG_EVERY == 0 or progress.share >= 1 or is_evaluation_due):
            yield self._log_losses()
        if is_evaluation_due:
            row, start = self.evaluate(), progress.seconds
            self.count_seconds()
            progress.evaluation_seconds += progress.seconds - start
            progress.evaluations = progress.events_due(evaluations)
            self.seconds_before = progress.seconds
            yield self.log(row)
        if step and progress.seconds > self.saved_seconds + SAVE_SECONDS:
            self.save()
            self.count_seconds()
            self.saved_seconds = progress.seconds  # even if saving takes longer than `SAVE_SECONDS`

    def _log_losses(self) -> Row:
        """Log the mean loss since the last row of losses, and the speed of the steps."""
        progress = self.progress
        tokens, seconds = progress.tokens - self.tokens_before, progress.seconds - self.seconds_before
        # If this process has taken no steps since it resumed, the speed is that of the whole training.
        speed = tokens / seconds if tokens else progress.tokens / progress.seconds
        loss = progress.nats / (progress.tokens - progress.tokens_at_last_row)
        progress.nats, progress.tokens_at_last_row = 0.0, progress.tokens
        self.tokens_before, self.seconds_before = progress.tokens, progress.seconds
        best = f"best perplexity {progress.best:.2f}, " if math.isfinite(progress.best) else ""
        self.bar.set_postfix_str(f"{best}loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
        return self.log({"split": "train", "loss": loss, "tokens_per_second": speed})

    def batches(self) -> Iterator[Batch]:
        """Yield the batches from the current step to the last."""
        first_step, epoch = 0, 0  # the first step of the current epoch, and the number of the epoch
        while True:
            batch_rows = self.corpus.batches(self.config.batch_tokens, self.config.seed, epoch)
            steps_taken = max(0, self.progress.step - first_step)  # of this epoch, before the training was resumed
            for rows in batch_rows[steps_taken:]:
                if self.progress.share >= 1:
                    return
                yield self.corpus.batch(rows)
            first_step, epoch = first_step + len(batch_rows), epoch + 1

    def step(self, batch: Batch) -> None:
        """Take one step of Adam on `batch`."""
        step = self.plan_step(batch)
        loss, nats = self.group.take_step(self, step) if self.group else self.take_step(step)
        if math.isnan(loss):
            if all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters.values()):
                self.save()
            raise self._not_finite_error(batch, nats)
        self.progress.step += 1
        self.progress.tokens += step.target_count
        self.progress.nats += loss * step.target_count

    def plan_step(self, batch: Batch) -> Step:
        """Return the next step, on `batch`: its learning rate, its contexts after dropout, and its learned targets."""
        number, steps, dropout = self.progress.step, self.progress.steps, self.run.config.model.dropout_context
        rate = learning_rate(self.progress.share * steps, steps, self.config.learning_rate, self.warmup)
        if dropout:
            batch = replace(batch, context=batch.context.drop_categories(dropout, (self.config.seed, number)))
        is_learned = self.shared_targets.mask(batch) if self.shared_targets else batch.mask()
        return Step(number, rate, batch, is_learned, max(1, int(is_learned.sum())))

    def _not_finite_error(self, batch: Batch, nats: Tensor) -> UserError:
        """Return the error about a loss that is not finite, with the rows of such nats, or gradients, or all."""
        # With several processes, `nats` are those of other texts.
        rows = [] if self.group else batch.rows[~torch.isfinite(nats.cpu()).all(dim=1)].tolist()
        if not self.is_divided:  # a gradient would need all processes
            rows = rows or [row for row in batch.rows.tolist() if not self._has_finite_gradient(row)]
        numbers = sorted((self.corpus.source_rows[rows or batch.rows] + 1).tolist())
        noun = "row" if len(numbers) == 1 else "rows"
        listing = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
        return UserError(
            f"the loss is not finite at step {self.progress.step + 1}, {noun} {listing} of the training data; "
            f"the checkpoint before this step is in {self.run.folder} (try a lower learning rate)"
        )

    def _has_finite_gradient(self, row: int) -> bool:
        self.run.model.zero_grad(set_to_none=True)
        self.run.model(self.run.batch(self.corpus, np.array([row]))).sum().backward()
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(self.gradients())))

    def evaluate(self) -> Row:
        """Evaluate the model on the development texts, and save the weights if they are the best so far.

        Raises:
            Stopped: On a stop request during the evaluation.
        """
        if self.group and self.row_optimizers:
            self.group.catch_up()
        self.catch_up()
        with self.stop.interruptible():
            row, figures = development_figures(self.run, self.dev, self.group)
        # Until a perplexity is finite, each evaluation counts as the best.
        is_best = row["perplexity"] < self.progress.best or not math.isfinite(self.progress.best)
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
        counters = {"step": progress.step, "steps": progress.total_steps, "tokens": progress.tokens}
        row = {**counters, "seconds": progress.seconds, **row}
        files.append_row(self.run.log_path, row)
        progress.rows += 1
        return row

    def save(self) -> None:
        """Write a checkpoint with the weights, the moments of Adam and the progress."""
        facts = {"format": FORMAT, "data": self.data_digests, **asdict(self.progress)}
        files.save_tensors(self.checkpoint, self.tensors(), facts)
        self.saved_seconds = self.progress.seconds

    def load(self) -> None:
        """Load the checkpoint, if it exists, and remove the rows of the log that were written after it."""
        if self.checkpoint.exists():
            tensors, facts = files.load_tensors(self.checkpoint)
            version = facts.pop("format", None)
            check_format(version, FORMAT, self.checkpoint)
            if version < FORMAT:
                raise UserError(f"{self.checkpoint}: an older version of factorcell wrote it; train the run again")
            if facts.pop("data") != self.data_digests:
                raise UserError(f"{self.run.folder}: cannot resume with other texts; choose another folder")
            shapes = {name: tensor.shape for name, tensor in tensors.items() if name.endswith(":value")}
            if shapes != {f"{name}:value": parameter.shape for name, parameter in self.parameters.items()}:
                raise UserError(f"{self.checkpoint}: does not belong to this config, schema and vocabulary")
            self.restore(tensors)
            self.progress = Progress(**facts)
            self.saved_seconds = self.progress.seconds
            weights = self.run.folder / WEIGHTS
            # If a later evaluation has replaced the best weights, those of the next one count as the best.
            if weights.exists() and files.load_tensors(weights)[1].get("step", 0) > self.progress.step:
                self.progress.best = math.inf
        files.write_rows(self.run.log_path, self.run.log()[: self.progress.rows])


def train(
    run: Run, corpus: Corpus, dev: Corpus, *, resume: bool = False, limit: TimeLimit | None = None
) -> Generator[Row]:
    """Return a generator that trains a run and yields the rows of its log; at the end the run has its best weights.

    Args:
        run: A run folder with an untrained model.
        corpus: The training texts.
        dev: The development texts, on which the best weights are selected.
        resume: Whether to continue from the checkpoint.
        limit: The time limit, over which the learning rate decays. A resumed training has the limit of its checkpoint.
            At the end, the config of the run has the number of steps.

    Returns:
        A generator of the rows of the log. A row has the key `split`, which is "train" or "dev".

    Raises:
        KeyboardInterrupt: On Ctrl-C or SIGTERM; `Stopped`, a subclass, if a checkpoint was saved.
        UserError: If the loss is not finite or the folder cannot be written.
    """
    if threads := run.config.training.threads:
        torch.set_num_threads(threads)
    trainer = Trainer(run, corpus, dev, limit)
    if resume:
        trainer.load()
    elif limit is not None:
        trainer.save()  # the checkpoint has the time limit
    if process_count() > 1:
        from factorcell.training.processes import leading_group

        leading_group().start(trainer)
    return _train(trainer)


def _train(trainer: Trainer) -> Generator[Row]:
    run, progress = trainer.run, trainer.progress
    trainer.start_clocks()
    with trainer.bar, trainer.stop:
        try:
            yield from trainer.rows()
        except Stopped:
            trainer.count_seconds()
            trainer.save()
            place = f"step {progress.step:,} of {progress.total_steps:,}"
            raise Stopped(f"stopped at {place}, saved in {run.folder}") from None
    if math.isfinite(progress.max_seconds):
        steps = progress.total_steps
        run.set_steps(steps, float(f"{steps / trainer.steps_per_pass:.3g}"))
    run.load_weights()
