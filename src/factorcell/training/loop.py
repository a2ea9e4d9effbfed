"""The training loop: a generator of log rows that is deterministic for a given seed.

The saved progress of a training determines which log rows, evaluations and checkpoints are due after a step.
Therefore a training that was stopped between a step and its evaluation begins with this evaluation when it resumes.
"""

import math
from collections.abc import Generator, Iterator
from time import perf_counter, thread_time

from factorcell.data.corpus import Corpus
from factorcell.io.interrupts import Stopped
from factorcell.io.progress import progress_bar
from factorcell.runs.run import Run
from factorcell.training.schedule import TimeLimit
from factorcell.training.trainer import Row, Trainer

LOG_EVERY, SAVE_EVERY = 50, 500  # steps between rows of losses in the log, and between checkpoints


def train(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    *,
    resume: bool = False,
    limit: TimeLimit | None = None,
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
    trainer = Trainer(run, corpus, dev, limit)
    if resume:
        trainer.load()
    return _train(trainer, is_saved=resume or limit is None)


def _train(trainer: Trainer, is_saved: bool) -> Generator[Row]:
    """Train and yield the rows of the log; unless `is_saved`, first write a checkpoint, which has the time limit."""
    run, progress = trainer.run, trainer.progress
    if not is_saved:
        trainer.save()
    loop = _Loop(trainer)
    with loop.bar, trainer.stop:
        try:
            yield from loop.rows()
        except Stopped:
            loop.count_seconds()
            trainer.save()
            place = f"step {progress.step:,} of {progress.total_steps:,}"
            raise Stopped(f"stopped at {place}, saved in {run.folder}") from None
    if math.isfinite(progress.max_seconds):
        steps = progress.total_steps
        run.set_steps(steps, float(f"{steps / trainer.steps_per_pass:.3g}"))
    run.load_weights()


class _Loop:
    """The steps of a trainer, with the log rows, evaluations and checkpoints between them."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.progress = trainer, trainer.progress
        total, step = self.progress.total_steps, self.progress.step
        self.bar = progress_bar(desc="  training", unit="steps", total=total, initial=step)
        self.clock, self.processor_clock = perf_counter(), thread_time()  # until which `progress.seconds` counts
        # The seconds of the steps since the last row of losses in this process, and `progress.tokens` before them.
        self.row_seconds, self.tokens_at_start = 0.0, self.progress.tokens
        self.best = ""  # of the progress bar

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the log to the end of the training; raise `Stopped` after a stop request."""
        trainer, patience = self.trainer, self.trainer.config.patience
        yield from self._due_rows()
        for batch in trainer.batches():
            if patience and self.progress.evaluations_since_best >= patience:
                break
            trainer.step(batch)
            self.row_seconds += self.count_seconds()
            self.bar.total = self.progress.total_steps
            self.bar.update()
            if trainer.stop.is_requested:
                raise Stopped
            yield from self._due_rows()
        if trainer.stop.is_requested:
            raise Stopped
        yield from self._due_rows()  # the time may have ended after the rows of the last step

    def count_seconds(self) -> float:
        """Add the seconds since the last call to the duration of the training, and return them."""
        now, processor_now = perf_counter(), thread_time()
        seconds, processor_seconds = now - self.clock, processor_now - self.processor_clock
        self.clock, self.processor_clock = now, processor_now
        self.progress.count_seconds(seconds, processor_seconds)
        return seconds

    def _due_rows(self) -> Iterator[Row]:
        """Yield the rows that are due at the current step, and save a checkpoint if it is due.

        A checkpoint is due after each evaluation, and after every `SAVE_EVERY` steps.
        """
        trainer, progress, config = self.trainer, self.progress, self.trainer.config
        step = progress.step
        # Before its first step, only a fine-tuning is evaluated: its starting weights may be the best.
        is_starting_point_due = trainer.starting_point is not None and not progress.rows
        has_due_evaluation = progress.events_due(config.evaluations) > progress.evaluations
        is_evaluation_due = has_due_evaluation if step else is_starting_point_due
        has_new_losses = progress.tokens > progress.tokens_at_last_row
        if has_new_losses and (step % LOG_EVERY == 0 or progress.share >= 1 or is_evaluation_due):
            yield self._log_losses()
        if is_evaluation_due:
            yield self._log_evaluation()
        if is_evaluation_due or (step > 0 and step % SAVE_EVERY == 0):
            trainer.catch_up()
            trainer.save()

    def _log_losses(self) -> Row:
        """Log the mean loss since the last row of losses, and the speed of the steps."""
        progress = self.progress
        measured_tokens = progress.tokens - self.tokens_at_start
        # If the measurement has no steps, for example after resuming, the speed is that of the whole training.
        speed = measured_tokens / self.row_seconds if measured_tokens else progress.tokens / progress.seconds
        loss = progress.nats / (progress.tokens - progress.tokens_at_last_row)
        progress.nats, progress.tokens_at_last_row = 0.0, progress.tokens
        self.row_seconds, self.tokens_at_start = 0.0, progress.tokens
        self.bar.set_postfix_str(f"{self.best}loss {loss:.3f}, {speed:,.0f} tokens/s")
        return self.trainer.log({"split": "train", "loss": loss, "tokens_per_second": speed})

    def _log_evaluation(self) -> Row:
        """Evaluate and log the result; the training time includes the evaluation, the speed of the steps does not."""
        row = self.trainer.evaluate()
        self.count_seconds()
        self.progress.evaluations = self.progress.events_due(self.trainer.config.evaluations)
        self.best = f"best perplexity {row['best']:.2f}, "
        return self.trainer.log(row)
