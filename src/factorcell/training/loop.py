"""The loop of a training: a generator of log rows, the same rows and weights for the same seed.

What is due after a step (a row of losses, an evaluation, a checkpoint) follows from the state alone, so a training that
was stopped between a step and its evaluation makes up for it when it resumes. An early look at the development set,
which comes by the clock, changes nothing but the log.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import torch

from factorcell.data.corpus import Corpus
from factorcell.interrupts import Stop, Stopped
from factorcell.model.run import Run
from factorcell.progress import progress_bar
from factorcell.training.distributed import World
from factorcell.training.trainer import Row, Trainer

SOON = 30.0  # seconds after which a training without an evaluation has an early one


def due(step: int, steps: int, times: int) -> bool:
    """Whether what is to happen `times` in `steps`, evenly and the last time at the end, happens at `step`."""
    return step * times // steps > (step - 1) * times // steps


def train(run: Run, corpus: Corpus, dev: Corpus, *, resume: bool = False, world: World | None = None) -> Iterator[Row]:
    """Train `run` on `corpus`; yields each row of the log. At the end `run` has its best weights.

    `resume` continues from the checkpoint; the processes of `world` share the work. Ctrl-C and SIGTERM save a
    checkpoint and raise `Stopped`, a `KeyboardInterrupt`; the second one is a `KeyboardInterrupt` at once.
    `UserError` on a loss that is not finite or a folder that cannot be written.
    """
    trainer = Trainer(run, corpus, dev, world)
    if resume:
        trainer.load()
    yield from log_rows(trainer)


def watched(
    run: Run,
    corpus: Corpus,
    dev: Corpus,
    world: World | None = None,
    *,
    resume: bool,
    progress: bool,
) -> Generator[Row]:
    """The rows of `train` under a progress bar: tokens a second, time left, present and best perplexity."""
    trainer, name = Trainer(run, corpus, dev, world), run.folder.name
    if resume:
        trainer.load()
    bar = progress_bar(
        desc=name, unit="steps", show=progress, leave=None, total=trainer.steps, initial=trainer.progress.step
    )
    with bar, closing(log_rows(trainer, bar.update, aloud=progress)) as rows:
        for row in rows:
            if row["split"] == "dev":
                bar.set_description(f"{name} perplexity {row['perplexity']:.2f} (best {row['best']:.2f})")
            elif row["split"] == "early":
                bar.set_description(f"{name} perplexity {row['perplexity']:.2f} (early, of {row['texts']:,} texts)")
            else:
                bar.set_postfix_str(f"{row['tokens_per_second']:,.0f} tokens/s, loss {row['loss']:.3f}")
            yield row


def log_rows(trainer: Trainer, each: Callable[[], object] = lambda: None, *, aloud: bool = False) -> Generator[Row]:
    """As `train`, of a trainer; `each` is called after every step. A stop is announced `aloud`, or not."""
    trainer.stop, loop = Stop(aloud), _Loop(trainer)
    with trainer.stop:
        try:
            yield from loop.rows(each)
        except Stopped:
            raise Stopped(loop.stopped()) from None
        except RuntimeError:
            if trainer.world.first or not trainer.stop.asked:
                raise
            raise Stopped from None  # the first process has left in an evaluation
    trainer.run.load_weights()


class _Loop:
    """The steps of a trainer, and what follows each of them."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.looked = trainer, False
        self.begun = self.clock = time.perf_counter()
        self.tokens = trainer.progress.tokens  # when the clock was set

    def rows(self, each: Callable[[], object]) -> Iterator[Row]:
        """All rows to the end; `Stopped` where a stop was asked for."""
        trainer, patience = self.trainer, self.trainer.config.patience
        yield from self._after()
        for batch in trainer.batches():
            if patience and trainer.progress.worse >= patience:
                break
            stopping, early = trainer.step(batch, trainer.stop.asked, self._waits())
            each()
            if stopping:
                raise Stopped
            if early:
                self.looked = True
                yield self._timed(trainer.early)
            yield from self._after()
        self._agree()  # and the first process has written the last weights

    def _agree(self) -> None:
        """Wait for all processes; `Stopped` if any of them is asked to stop."""
        _, [stopping] = self.trainer.world.sum_and_any(torch.zeros(()), self.trainer.stop.asked)
        if stopping:
            raise Stopped

    def stopped(self) -> str:
        """Save the training where it stands; where that is."""
        trainer = self.trainer
        trainer.progress.seconds += time.perf_counter() - self.clock
        trainer.save()
        return f"stopped at step {trainer.progress.step:,} of {trainer.steps:,}, saved in {trainer.run.folder}"

    def _after(self) -> Iterator[Row]:
        """What is due at the present step and was not done yet."""
        trainer, progress, config = self.trainer, self.trainer.progress, self.trainer.config
        step, last = progress.step, progress.step == trainer.steps
        evaluated = due(step, trainer.steps, config.evaluations) if step else trainer.start is not None
        if progress.tokens > progress.since and (step % config.log_every == 0 or last or evaluated):
            yield self._losses()
        if evaluated and trainer.evaluated < step:
            yield self._timed(trainer.evaluate)
        elif not step or step % config.save_every:
            return
        trainer.catch_up()
        trainer.save()

    def _losses(self) -> Row:
        """The row of the losses since the last one; the pace is that of this process."""
        progress, now = self.trainer.progress, time.perf_counter()
        spent, fresh = now - self.clock, progress.tokens - self.tokens
        progress.seconds += spent
        pace = fresh / spent if fresh else progress.tokens / progress.seconds
        loss = progress.nats / (progress.tokens - progress.since)
        progress.nats, progress.since = 0.0, progress.tokens
        self.clock, self.tokens = now, progress.tokens
        return self.trainer.log({"split": "train", "loss": loss, "tokens_per_second": pace})

    def _timed(self, evaluation: Callable[[], Row]) -> Row:
        """The row of an evaluation; its seconds count for the training, not for the pace of the steps."""
        self._agree()
        begun = time.perf_counter()
        row = evaluation()
        spent = time.perf_counter() - begun
        self.trainer.progress.seconds += spent
        self.clock += spent
        return self.trainer.log(row)

    def _waits(self) -> bool:
        """Whether the first evaluation is so long in coming that there should be an early look."""
        return self.trainer.evaluated < 0 and not self.looked and time.perf_counter() - self.begun > SOON
