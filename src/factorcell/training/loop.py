"""The training loop: a generator of log rows that is deterministic for a given seed.

The saved progress of a training determines which log rows, evaluations and checkpoints are due after a step.
Therefore a training that was stopped between a step and its evaluation begins with this evaluation when it resumes.
"""

import math
import sys
from collections.abc import Callable, Generator, Iterator
from time import perf_counter

from factorcell.data.corpus import Corpus
from factorcell.interrupts import Stop, Stopped
from factorcell.model.run import Run
from factorcell.progress import progress_bar
from factorcell.training.schedule import TimeLimit
from factorcell.training.trainer import Row, Trainer

MAX_GROWTH = 1.5  # largest factor by which a new plan increases the number of further steps
KEPT_WEIGHT = 0.75  # factor on the weight of earlier steps each time: a window of about 8 % of the time limit
PLANNING_SHARE = 0.02  # share of the time limit after which the number of steps is planned again
MIN_CHANGE = 0.1  # relative change of the number of steps from which a notice explains it


def train(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    *,
    resume: bool = False,
    progress: bool = False,
    limit: TimeLimit | None = None,
) -> Generator[Row]:
    """Return a generator that trains a run and yields the rows of its log; at the end the run has its best weights.

    Args:
        run: A run folder with an untrained model.
        corpus: The training texts.
        dev: The development texts, on which the best weights are selected.
        resume: Whether to continue from the checkpoint.
        progress: Whether to show a progress bar, and to print notices after a request to stop and about a large change
            of the number of steps.
        limit: The time limit, which changes the number of steps when the machine gets faster or slower. A resumed
            training has the limit of its checkpoint. At the end, the config of the run has the number of passes of
            these steps.

    Returns:
        A generator of the rows of the log. A row has the key `split`, which is "train" or "dev".

    Raises:
        KeyboardInterrupt: On Ctrl-C or SIGTERM; `Stopped`, a subclass, if a checkpoint was saved.
        UserError: If the loss is not finite or the folder cannot be written.
    """
    trainer = Trainer(run, corpus, dev, limit)
    if resume:
        trainer.load()
    return _train(trainer, progress=progress, is_saved=resume or limit is None)


def _train(trainer: Trainer, *, progress: bool, is_saved: bool) -> Generator[Row]:
    """Train and yield the rows of the log; unless `is_saved`, first write a checkpoint, which has the time limit."""
    run, name = trainer.run, trainer.run.folder.name
    if not is_saved:
        trainer.save()
    trainer.stop = Stop(verbose=progress)
    loop = _Loop(trainer)
    bar = progress_bar(
        desc=name, unit="steps", show=progress, leave=None, total=trainer.steps, initial=trainer.progress.step
    )
    planned_steps, is_explained = trainer.steps, not progress

    def after_step() -> None:
        """Advance the bar; explain the first large change of its total."""
        nonlocal is_explained
        if not is_explained and abs(trainer.steps - planned_steps) > MIN_CHANGE * planned_steps:
            bar.write(_describe_change(name, planned_steps, trainer.steps), file=sys.stderr)
            is_explained = True
        bar.total = trainer.steps
        bar.update()

    with bar, trainer.stop:
        try:
            for row in loop.rows(after_step):
                if row["split"] == "dev":
                    bar.set_description(f"{name} perplexity {row['perplexity']:.2f} (best {row['best']:.2f})")
                else:
                    bar.set_postfix_str(f"{row['tokens_per_second']:,.0f} tokens/s, loss {row['loss']:.3f}")
                yield row
        except Stopped:
            raise Stopped(loop.save_stopped()) from None
    if math.isfinite(trainer.progress.max_seconds):
        run.set_epochs(trainer.epochs)
    run.load_weights()


def _describe_change(name: str, planned_steps: int, steps: int) -> str:
    """Return a notice about a large change of the number of steps."""
    change = "more" if steps < planned_steps else "less"
    return (
        f"{name}: {steps:,} instead of {planned_steps:,} steps, because a step takes {change} time than expected; "
        "the number of steps follows the time limit"
    )


class _Loop:
    """The steps of a trainer, with the log rows, evaluations and checkpoints between them."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.clock = perf_counter()  # the time until which `progress.seconds` counts
        # The seconds of the steps since the last row of losses in this process, and `progress.tokens` before them.
        self.row_seconds, self.tokens_at_start = 0.0, trainer.progress.tokens

    def rows(self, after_step: Callable[[], object]) -> Iterator[Row]:
        """Yield the rows of the log to the end of the training; raise `Stopped` after a stop request."""
        trainer, patience = self.trainer, self.trainer.config.patience
        yield from self._due_rows()
        for batch in trainer.batches():
            if patience and trainer.progress.evaluations_since_best >= patience:
                break
            trainer.step(batch)
            self._count_step()
            after_step()
            if trainer.stop.is_requested:
                raise Stopped
            yield from self._due_rows()
        if trainer.stop.is_requested:
            raise Stopped

    def save_stopped(self) -> str:
        """Save a checkpoint and return the message for the user who stopped the training."""
        trainer = self.trainer
        self._count_seconds()
        trainer.save()
        return f"stopped at step {trainer.progress.step:,} of {trainer.steps:,}, saved in {trainer.run.folder}"

    def _count_seconds(self) -> float:
        """Add the seconds since the last call to the duration of the training, and return them."""
        now = perf_counter()
        seconds, self.clock = now - self.clock, now
        self.trainer.progress.seconds += seconds
        return seconds

    def _count_step(self) -> None:
        """Measure the step that ends now."""
        seconds, progress = self._count_seconds(), self.trainer.progress
        self.row_seconds += seconds
        progress.measured_seconds += seconds
        progress.measured_steps += 1

    def _due_rows(self) -> Iterator[Row]:
        """Yield the rows that are due at the current step, change its schedule and save a checkpoint, if they are due.

        A checkpoint is due after each evaluation, and after every `save_every` steps.
        """
        trainer, progress, config = self.trainer, self.trainer.progress, self.trainer.config
        step = progress.step
        evaluations = progress.schedule.events_until(step, config.evaluations)
        # Before its first step, only a fine-tuning is evaluated: its starting weights may be the best.
        is_starting_point_due = trainer.starting_point is not None and not progress.rows
        is_evaluation_due = evaluations > progress.evaluations if step else is_starting_point_due
        has_new_losses = progress.tokens > progress.tokens_at_last_row
        if has_new_losses and (step % config.log_every == 0 or step == trainer.steps or is_evaluation_due):
            yield self._log_losses()
        is_checkpoint_due = step > 0 and step % config.save_every == 0
        if is_evaluation_due:
            yield self._log_evaluation(evaluations)
            is_checkpoint_due = True
        self._plan_steps()
        if is_checkpoint_due:
            trainer.catch_up()
            trainer.save()

    def _log_losses(self) -> Row:
        """Log the mean loss since the last row of losses, and the speed of the steps."""
        progress = self.trainer.progress
        measured_tokens = progress.tokens - self.tokens_at_start
        # If the measurement has no steps, for example after resuming, the speed is that of the whole training.
        speed = measured_tokens / self.row_seconds if measured_tokens else progress.tokens / progress.seconds
        tokens_since_last_row = progress.tokens - progress.tokens_at_last_row
        mean_loss = progress.nats / tokens_since_last_row
        progress.nats, progress.tokens_at_last_row = 0.0, progress.tokens
        self.row_seconds, self.tokens_at_start = 0.0, progress.tokens
        return self.trainer.log({"split": "train", "loss": mean_loss, "tokens_per_second": speed})

    def _log_evaluation(self, evaluations: int) -> Row:
        """Evaluate and log the result; the training time includes the evaluation, the speed of the steps does not.

        With this evaluation, `evaluations` evaluations were due so far.
        """
        row, progress = self.trainer.evaluate(), self.trainer.progress
        seconds, progress.evaluations = self._count_seconds(), evaluations
        if progress.measured_steps:
            progress.evaluation_steps = seconds * progress.measured_steps / progress.measured_seconds
        return self.trainer.log(row)

    def _plan_steps(self) -> None:
        """If the training has a time limit, plan the number of steps from the speed of the last steps."""
        progress = self.trainer.progress
        is_due = progress.seconds - progress.planned_at >= PLANNING_SHARE * progress.max_seconds
        if not (is_due and progress.measured_steps) or progress.step >= self.trainer.steps:
            return
        step_seconds = progress.measured_seconds / progress.measured_steps
        possible_steps = progress.possible_steps(step_seconds, self.trainer.config.evaluations)
        # A short burst of fast steps does not multiply the number of steps.
        largest_count = progress.step + math.ceil(MAX_GROWTH * (self.trainer.steps - progress.step))
        self.trainer.change_steps(min(possible_steps, largest_count))
        progress.planned_at = progress.seconds
        # Later steps count more. The weights fall slowly, because the speed of a busy machine varies from second to
        # second: with fast falling weights, the number of steps would vary by a factor of three.
        progress.measured_steps *= KEPT_WEIGHT
        progress.measured_seconds *= KEPT_WEIGHT
