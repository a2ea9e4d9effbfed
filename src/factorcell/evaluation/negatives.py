"""Which tokens stand for the vocabulary where a text is compared under many values: the same for all texts and values.

    unigram    as often as they are targets in training, as the papers draw them (thesis 2018, sections 3.4 and 4.3)
    rank       by their place in the vocabulary, which is by frequency: of any run, without its counts

With replacement; the logits of those that were drawn are lowered by how likely that was (Jean et al. 2015).
"""

import torch

from factorcell import limits, memory
from factorcell.choices import PROPOSALS
from factorcell.config import choose
from factorcell.model.output import Proposal, Samples
from factorcell.model.run import Run

DRAW = 24  # bytes of a token that is drawn


def draw(run: Run, count: int, seed: int = 0, proposal: str = "rank") -> Samples:
    """`count` draws from the vocabulary of `run`. `UserError` where it keeps no counts."""
    choose("proposal", proposal, PROPOSALS)
    limits.check(samples=count, seed=seed)
    memory.check(DRAW * count, f"{count:,} samples")
    by = by_unigrams(run, count) if proposal == "unigram" else Proposal.by_rank(run.tokenizer, count, run.device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return by.draw()


def by_unigrams(run: Run, count: int) -> Proposal:
    """The proposal of `count` draws from the targets of training; a token that was none counts as seen once."""
    counts = run.unigrams().clamp(min=1)
    counts[run.tokenizer.specials.start] = 0  # no text has it as a target
    return Proposal(counts, count, run.device)
