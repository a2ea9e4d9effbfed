"""The training loop: a generator of log rows that yields the same rows and weights for the same seed.

Which rows, evaluations and checkpoints are due after a step follows from the state alone.
So a training that was stopped between a step and its evaluation makes the evaluation when it resumes.
"""

import time
from collections.abc import Callable, Generator, Iterator

from factorcell.data.corpus import Corpus
from factorcell.interrupts import Stop, Stopped
from factorcell.model.run import Run
from factorcell.progress import progress_bar
from factorcell.training.trainer import Row, Trainer


def is_due(step: int, steps: int, times: int) -> bool:
    """Return whether an event that occurs `times` in `steps`, evenly and finally at the end, occurs at `step`."""
    return step * times // steps > (step - 1) * times // steps


def train(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    *,
    resume: bool = False,
    progress: bool = False,
) -> Generator[Row]:
    """Train `run` on `corpus` and yield each row of the log; at the end `run` has its best weights.

    Args:
        run: A run folder with an untrained model.
        corpus: The training texts.
        dev: The development texts, which select the best weights.
        resume: Whether to continue from the checkpoint.
        progress: Whether to show a progress bar and to confirm a stop request.

    Raises:
        KeyboardInterrupt: On Ctrl-C or SIGTERM; `Stopped`, a subclass, if a checkpoint was saved before.
        UserError: If the loss is not finite or the folder cannot be written.
    """
    trainer, name = Trainer(run, corpus, dev), run.folder.name
    if resume:
        trainer.load()
    trainer.stop, loop = Stop(progress), _Loop(trainer)
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
    """The steps of a trainer, and what is due after each of them."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.clock = trainer, time.perf_counter()
        self.tokens = trainer.progress.tokens  # at the time of the clock

    def rows(self, after_step: Callable[[], object]) -> Iterator[Row]:
        """Yield all rows to the end; raise `Stopped` after a stop request."""
        trainer, patience = self.trainer, self.trainer.config.patience
        yield from self._due()
        for batch in trainer.batches():
            if patience and trainer.progress.worse >= patience:
                break
            trainer.step(batch)
            after_step()
            if trainer.stop.is_requested:
                raise Stopped
            yield from self._due()
        if trainer.stop.is_requested:
            raise Stopped

    def save_stopped(self) -> str:
        """Save a checkpoint and return the message of a stopped training."""
        trainer = self.trainer
        trainer.progress.seconds += time.perf_counter() - self.clock
        trainer.save()
        return f"stopped at step {trainer.progress.step:,} of {trainer.steps:,}, saved in {trainer.run.folder}"

    def _due(self) -> Iterator[Row]:
        """Do what is due at the current step and was not done yet."""
        trainer, progress, config = self.trainer, self.trainer.progress, self.trainer.config
        step, last = progress.step, progress.step == trainer.steps
        evaluated = is_due(step, trainer.steps, config.evaluations) if step else trainer.start is not None
        if progress.tokens > progress.since and (step % config.log_every == 0 or last or evaluated):
            yield self._losses()
        if evaluated and trainer.evaluated < step:
            yield self._evaluated()
        elif not step or step % config.save_every:
            return
        trainer.catch_up()
        trainer.save()

    def _losses(self) -> Row:
        """Log the mean loss since the last row, and the speed of the steps."""
        progress, now = self.trainer.progress, time.perf_counter()
        seconds, tokens = now - self.clock, progress.tokens - self.tokens
        progress.seconds += seconds
        speed = tokens / seconds if tokens else progress.tokens / progress.seconds
        loss = progress.nats / (progress.tokens - progress.since)
        progress.nats, progress.since = 0.0, progress.tokens
        self.clock, self.tokens = now, progress.tokens
        return self.trainer.log({"split": "train", "loss": loss, "tokens_per_second": speed})

    def _evaluated(self) -> Row:
        """Log an evaluation; its time counts for the training, but not for the speed of the steps."""
        begun = time.perf_counter()
        row = self.trainer.evaluate()
        seconds = time.perf_counter() - begun
        self.trainer.progress.seconds += seconds
        self.clock += seconds
        return self.trainer.log(row)
