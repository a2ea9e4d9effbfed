"""The development texts of a training: their perplexities, and what each text adds to them."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus, known_targets
from factorcell.evaluation import text_figures
from factorcell.model.run import Run
from factorcell.training.distributed import World

Row = dict[str, Any]


class Development:
    """Development texts, of which each process of `world` evaluates its part."""

    def __init__(self, corpus: Corpus, world: World) -> None:
        self.corpus, self.world, self.key = corpus, world, text_figures.key_of(corpus) if world.first else ""
        self.rows = np.arange(world.rank, len(corpus), world.size)
        self.part = corpus.select(self.rows) if world.size > 1 else corpus
        self.nats: NDArray[np.float64] = np.zeros(0)  # of the last evaluation

    def evaluate(self, run: Run) -> Row:
        """Return `perplexity`, `perplexity_known` (without out-of-vocabulary targets) and `bits_per_byte`."""
        nats = self.nats = run.nats(self.part).astype(np.float64)
        known = known_targets(self.part)
        sums = [nats.sum(), len(nats), nats[known].sum(), known.sum(), *_bits(nats, self.part)]
        totals = self.world.sum(torch.tensor(sums, dtype=torch.float64)).tolist()
        total, count, total_known, count_known, bits, size, bounds = totals
        with np.errstate(over="ignore"):  # a diverged model has an infinite perplexity
            row = {
                "perplexity": float(np.exp(total / count)),
                "perplexity_known": float(np.exp(total_known / count_known)) if count_known else math.nan,
            }
        return {**row, "bits_per_byte": bits / size, "bits_per_byte_bound": bounds > 0} if size else row

    def keep(self, run: Run) -> None:
        """Write what each text added in the last evaluation into the folder of `run`, in the first process."""
        known = np.where(known_targets(self.part), self.nats, 0.0)
        sums = np.stack([text_figures.per_text(values, self.part) for values in (self.nats, known)], axis=1)
        order = self.world.gather(torch.from_numpy(self.rows)).numpy()
        found = np.empty((len(self.corpus), 2))
        found[order] = self.world.gather(torch.from_numpy(sums)).numpy()
        if self.world.first:
            text_figures.keep(run.folder, text_figures.of_sums(self.key, found[:, 0], found[:, 1], self.corpus))


def _bits(nats: NDArray[np.float64], part: Corpus) -> tuple[float, float, float]:
    """Return the bits and bytes of the texts that were read whole, and how many of them are lower bounds."""
    sums = text_figures.bits_per_byte("", text_figures.per_text(nats, part), part)
    if sums is None:
        return 0.0, 0.0, 0.0
    bounds = text_figures.lower_bounds(part) & sums.counted
    return float(sums.above[sums.counted].sum()), float(sums.below[sums.counted].sum()), float(bounds.sum())
