"""The training loop: a generator of log rows that is deterministic for a given seed.

The saved progress of a training determines which log rows, evaluations and checkpoints are due after a step.
Therefore a training that was stopped between a step and its evaluation begins with this evaluation when it resumes.
"""

import time
from collections.abc import Callable, Generator, Iterator

from factorcell.data.corpus import Corpus
from factorcell.interrupts import Stop, Stopped
from factorcell.model.run import Run
from factorcell.progress import progress_bar
from factorcell.training.trainer import Row, Trainer


def is_due(step: int, steps: int, count: int) -> bool:
    """Return whether an event is due at `step`, if it occurs `count` times in `steps`, evenly spread and at the end."""
    return step * count // steps > (step - 1) * count // steps


def train(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    *,
    resume: bool = False,
    progress: bool = False,
) -> Generator[Row]:
    """Train a run and yield the rows of its log; at the end the run has its best weights.

    Args:
        run: A run folder with an untrained model.
        corpus: The training texts.
        dev: The development texts, on which the best weights are selected.
        resume: Whether to continue from the checkpoint.
        progress: Whether to show a progress bar, and to print a notice after a request to stop.

    Returns:
        A generator of the rows of the log. A row has the key `split`, which is "train" or "dev".

    Raises:
        KeyboardInterrupt: On Ctrl-C or SIGTERM; `Stopped`, a subclass, if a checkpoint was saved.
        UserError: If the loss is not finite or the folder cannot be written.
    """
    name = run.folder.name
    trainer = Trainer(run, corpus, dev)
    if resume:
        trainer.load()
    trainer.stop = Stop(verbose=progress)
    loop = _Loop(trainer)
    bar = progress_bar(
        desc=name, unit="steps", show=progress, leave=None, total=trainer.steps, initial=trainer.progress.step
    )
    with bar, trainer.stop:
        try:
            for row in loop.rows(bar.update):
                if row["split"] == "dev":
                    bar.set_description(f"{name} perplexity {row['perplexity']:.2f} (best {row['best']:.2f})")
                else:
                    bar.set_postfix_str(f"{row['tokens_per_second']:,.0f} tokens/s, loss {row['loss']:.3f}")
                yield row
        except Stopped:
            raise Stopped(loop.save_stopped()) from None
    run.load_weights()


class _Loop:
    """The steps of a trainer, with the log rows, evaluations and checkpoints between them."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        # When the current measurement of speed began, and `progress.tokens` at this time. `progress.seconds` includes
        # the training time until then.
        self.measurement_start, self.tokens_at_start = time.perf_counter(), trainer.progress.tokens

    def rows(self, after_step: Callable[[], object]) -> Iterator[Row]:
        """Yield the rows of the log to the end of the training; raise `Stopped` after a stop request."""
        trainer, patience = self.trainer, self.trainer.config.patience
        yield from self._due_rows()
        for batch in trainer.batches():
            if patience and trainer.progress.evaluations_since_best >= patience:
                break
            trainer.step(batch)
            after_step()
            if trainer.stop.is_requested:
                raise Stopped
            yield from self._due_rows()
        if trainer.stop.is_requested:
            raise Stopped

    def save_stopped(self) -> str:
        """Save a checkpoint and return the message for the user who stopped the training."""
        trainer = self.trainer
        trainer.progress.seconds += time.perf_counter() - self.measurement_start
        trainer.save()
        return f"stopped at step {trainer.progress.step:,} of {trainer.steps:,}, saved in {trainer.run.folder}"

    def _due_rows(self) -> Iterator[Row]:
        """Yield the rows that are due at the current step, and save a checkpoint if one is due."""
        trainer, progress, config = self.trainer, self.trainer.progress, self.trainer.config
        step = progress.step
        if step == 0:
            # Before its first step, only a fine-tuning is evaluated: its starting weights may be the best.
            is_evaluation_due = trainer.starting_point is not None
        else:
            is_evaluation_due = is_due(step, trainer.steps, config.evaluations)
        has_new_losses = progress.tokens > progress.tokens_at_last_row
        if has_new_losses and (step % config.log_every == 0 or step == trainer.steps or is_evaluation_due):
            yield self._log_losses()
        # A checkpoint is due after each evaluation, and after every `save_every` steps.
        is_checkpoint_due = step > 0 and step % config.save_every == 0
        if is_evaluation_due and trainer.last_evaluation < step:
            yield self._log_evaluation()
            is_checkpoint_due = True
        if is_checkpoint_due:
            trainer.catch_up()
            trainer.save()

    def _log_losses(self) -> Row:
        """Log the mean loss since the last row of losses, and the speed of the steps."""
        progress, now = self.trainer.progress, time.perf_counter()
        seconds, measured_tokens = now - self.measurement_start, progress.tokens - self.tokens_at_start
        progress.seconds += seconds
        # If the measurement has no steps, for example after resuming, the speed is that of the whole training.
        speed = measured_tokens / seconds if measured_tokens else progress.tokens / progress.seconds
        tokens_since_last_row = progress.tokens - progress.tokens_at_last_row
        mean_loss = progress.nats / tokens_since_last_row
        progress.nats, progress.tokens_at_last_row = 0.0, progress.tokens
        self.measurement_start, self.tokens_at_start = now, progress.tokens
        return self.trainer.log({"split": "train", "loss": mean_loss, "tokens_per_second": speed})

    def _log_evaluation(self) -> Row:
        """Evaluate and log the result; the training time includes the evaluation, the speed of the steps does not."""
        start = time.perf_counter()
        row = self.trainer.evaluate()
        seconds = time.perf_counter() - start
        self.trainer.progress.seconds += seconds
        self.measurement_start += seconds
        return self.trainer.log(row)
