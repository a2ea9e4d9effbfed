"""Measure before a training how long its steps, its evaluations and the work after it take on this machine.

A temporary model takes steps on the first batches. All other work is measured on samples of the texts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time

import numpy as np

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.evaluation import conditional_prior, run_warnings
from factorcell.model.run import Run
from factorcell.training.mixture_fit import fit_mixture, limit_texts
from factorcell.training.trainer import Trainer

WARMUP_STEPS = 3  # the first steps are slower, so they are not measured
MEASURED_SECONDS = 3.0  # steps are measured for at least this time; a warm-up ends after it
# Other work is measured on 64 texts, then on twice as many, until it takes a third of a second of processor time.
FIRST_TEXTS, MIN_WORK_SECONDS = 64, 0.33
MAX_GROWTH = 3.0  # twice as many texts that take more than this factor longer include a cost that occurs once


@dataclass(frozen=True)
class Speed:
    """The measured speed of a training.

    Attributes:
        step_seconds: Seconds per step.
        steps_per_pass: Steps per pass.
        evaluation_seconds: Seconds per evaluation.
        slowdown: How much longer the steps take on this machine, which other processes use too, than their processor
            time; at least 1.
    """

    step_seconds: float
    steps_per_pass: int
    evaluation_seconds: float
    slowdown: float = 1.0

    def total_seconds(self, config: Config) -> float:
        """Return the duration of a training with `config`."""
        training = config.training
        steps = self.steps_per_pass * training.epochs
        return self.step_seconds * steps + self.evaluation_seconds * training.evaluations


def measure_speed(config: Config, corpus: Corpus, dev: Corpus, models: Sequence[str] = ()) -> Speed:
    """Measure on this machine the speed of a training with `config`, or the mean speed of trainings of `models`."""
    model_configs = [config.with_model(name) for name in models] or [config]
    speeds = [_measure_one_speed(model_config, corpus, dev) for model_config in model_configs]
    return Speed(
        step_seconds=fmean(speed.step_seconds for speed in speeds),
        steps_per_pass=speeds[0].steps_per_pass,
        evaluation_seconds=fmean(speed.evaluation_seconds for speed in speeds),
        slowdown=fmean(speed.slowdown for speed in speeds),
    )


def _measure_one_speed(config: Config, corpus: Corpus, dev: Corpus) -> Speed:
    """Measure the speed of a training with `config` on its first batches and on some development texts."""
    trainer = temporary_trainer(config, corpus, dev)
    start, processor_start, measured_steps, is_warm = perf_counter(), process_time(), 0, False
    for step_number, batch in enumerate(trainer.batches()):
        is_long = perf_counter() - start > MEASURED_SECONDS
        if is_warm and is_long:
            break
        if not is_warm and (is_long or step_number == WARMUP_STEPS):  # a shorter pass is measured from its first step
            start, processor_start, measured_steps, is_warm = perf_counter(), process_time(), 0, True
        trainer.step(batch)
        measured_steps += 1
    seconds = perf_counter() - start
    slowdown = max(1.0, seconds / max(1e-9, process_time() - processor_start))
    evaluation_seconds = _extrapolate_seconds(trainer.run.nats, dev, slowdown)
    return Speed(seconds / measured_steps, trainer.steps, evaluation_seconds, slowdown)


def measure_finishing(config: Config, corpus: Corpus, dev: Corpus, speed: Speed, *, has_ngrams: bool) -> float:
    """Measure the seconds of the work after a training with `config`, which depends little on the trained weights.

    This work fits the n-gram mixture (if `has_ngrams` is true) and the conditional priors, and reads some development
    texts twice to measure the effect of removing the context.
    """
    run, seconds = _temporary_run(config, corpus), 0.0
    if has_ngrams:
        counted, scored = limit_texts(corpus, dev)

        def fit_on_sample(sample: Corpus) -> None:
            """Fit a mixture on a sample of the training texts, and on the same share of the development texts."""
            fit_mixture(run, sample, _evenly_spaced(scored, math.ceil(len(sample) / len(counted) * len(scored))))

        seconds += _extrapolate_seconds(fit_on_sample, counted, speed.slowdown)
    for target in conditional_prior.prior_targets(run):

        def fit_prior(sample: Corpus, target: str = target) -> None:
            """Fit the prior of the target on a sample of the training texts."""
            conditional_prior.fit_prior(target, sample, sample)

        most_texts = conditional_prior.ConditionalPrior(run.schema, target).max_texts
        seconds += _extrapolate_seconds(fit_prior, _evenly_spaced(corpus, most_texts), speed.slowdown)
    if run.model.is_adapted:
        seconds += 2 * min(1.0, run_warnings.MAX_TEXTS / max(1, len(dev))) * speed.evaluation_seconds
    return seconds


def _extrapolate_seconds(work: Callable[[Corpus], object], corpus: Corpus, slowdown: float) -> float:
    """Return the duration of `work` on all texts of `corpus`, extrapolated from samples.

    All work has a fixed cost, which an extrapolation from one sample multiplies, and the first calls also load code and
    memory. So there are two samples or more, the last one is not too small, and the last two give the cost of further
    texts. It is at least half the mean cost per target, because the measured difference may be too small by chance.

    Processor time decides which sample is large enough, because a short interruption by other processes would end the
    measurement at a sample that is too small. For the same reason, a duration is at most the processor time multiplied
    by the `slowdown` of longer work.
    """
    text_count, previous_targets, previous_seconds, previous_processor = FIRST_TEXTS, 0, 0.0, 0.0
    while True:
        sample = _evenly_spaced(corpus, text_count)
        start, processor_start = perf_counter(), process_time()
        work(sample)
        seconds, processor_seconds = perf_counter() - start, process_time() - processor_start
        seconds, targets = min(seconds, processor_seconds * slowdown), max(1, sample.target_count)
        if text_count >= len(corpus):
            return seconds
        if MIN_WORK_SECONDS < processor_seconds < MAX_GROWTH * previous_processor:
            mean = seconds / targets
            further = (seconds - previous_seconds) / max(1, targets - previous_targets)
            return seconds + min(mean, max(mean / 2, further)) * (corpus.target_count - targets)
        text_count, previous_targets = 2 * text_count, targets
        previous_seconds, previous_processor = seconds, processor_seconds


def _evenly_spaced(corpus: Corpus, count: int) -> Corpus:
    """Return a sample of `count` texts, or all texts if there are fewer."""
    return corpus.select(np.unique(np.linspace(0, len(corpus) - 1, min(count, len(corpus))).astype(np.int64)))


def temporary_trainer(config: Config, corpus: Corpus, dev: Corpus) -> Trainer:
    """Return a trainer of one pass over the training texts for measurements."""
    trainer = Trainer(_temporary_run(config, corpus), corpus, dev)
    trainer.raises_if_not_finite = False  # the real training raises the error
    return trainer


def _temporary_run(config: Config, corpus: Corpus) -> Run:
    one_pass = replace(config, training=replace(config.training, epochs=1.0, canaries=0))
    return Run(Path("measured"), one_pass, corpus.tokenizer, corpus.schema)
