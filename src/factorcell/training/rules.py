"""Which options fit which table: rules for what nobody says, made from trials on many tables.

A rule reads the `Facts` of a table and how many targets a training may see of it, all passes together: that number
decides how large a model pays for itself. LOG.md has the trials, and how far the rules are from the best of them.
"""

import math
from dataclasses import dataclass
from typing import Any

from factorcell.choices import PRESETS
from factorcell.config import choose
from factorcell.data.corpus import Corpus

PASSES = dict(zip(PRESETS, (2.0, 6.0, 12.0), strict=True))  # of a million targets; more targets need fewer
FEWEST, MOST, MOST_OF_WORDS = 0.25, 40.0, 12.0  # passes; more of few words are learned by heart
EXACT = 3000  # tokens up to which the exact softmax costs little more than a sampled one
FEW_TEXTS = 60  # of a value, from which little can be learned about it
FEW_TARGETS = 150_000  # that are soon learned by heart
SHARE = 0.1  # of a training that evaluations may take
BATCH, LEAST_BATCH = 1000, 100  # tokens; fewer where the texts, read most often, would not make so many steps:
STEPS, GENTLE_STEPS = 600, 300  # of a training, of a fine-tuning

Options = dict[str, dict[str, Any]]  # section of the config -> option -> value


@dataclass(frozen=True)
class Facts:
    """What of a table its options follow from: how much text of what kind, and how much of it each value has.

    `texts_per_value` are those of a value of the context column with the most values, `values` its values; both are 0
    without a category. `held` are the targets of the development texts.
    """

    texts: int
    targets: int
    vocabulary: int
    letters: bool
    values: int = 0
    texts_per_value: float = 0.0
    held: int = 0

    @classmethod
    def of(cls, corpus: Corpus, held: Corpus) -> "Facts":
        """Return the facts of training texts and their development texts."""
        values = max((len(variable.values) for variable in corpus.schema.categories), default=0)
        return cls(
            texts=len(corpus),
            targets=corpus.targets,
            vocabulary=len(corpus.tokenizer),
            letters=corpus.tokenizer.is_character_level,
            values=values,
            texts_per_value=len(corpus) / values if values else 0.0,
            held=held.targets,
        )


def passes(facts: Facts, preset: str) -> float:
    """How often a training deserves to read a table: the more often, the smaller it is."""
    choose("preset", preset, PRESETS)
    times = PASSES[preset] * (1e6 / max(1, facts.targets)) ** 0.35
    return float(f"{min(_most(facts), max(FEWEST, times)):.2g}")


def _most(facts: Facts) -> float:
    """Passes that no training exceeds."""
    return MOST if facts.letters else MOST_OF_WORDS


def options(facts: Facts, epochs: float, sized_for: float | None = None) -> Options:
    """The options of a training that reads the table so many times, with sizes for another number if that is given."""
    seen = (epochs if sized_for is None else sized_for) * facts.targets
    embedding, hidden, norm = _letters(seen) if facts.letters else _words(seen)
    return {
        "model": {"embedding_size": embedding, **_context(facts)},
        "backbone": {"hidden_size": hidden, "layer_norm": norm, **_dropout(facts, epochs)},
        "training": {"epochs": epochs, **_steps(facts), **_loss(facts), **_evaluations(facts, epochs)},
    }


def _words(seen: float) -> tuple[int, int, bool]:
    """Return embedding size, hidden size and layer normalization of a model of words, by the targets that it sees."""
    embedding, hidden = _of_size(seen, {2e6: (100, 150), 8e6: (150, 200), 4e7: (200, 300), math.inf: (256, 400)})
    return embedding, hidden, False


def _letters(seen: float) -> tuple[int, int, bool]:
    """Return the same for a model of characters: small embeddings, a larger recurrent layer."""
    hidden, norm = _of_size(seen, {5e5: (150, False), 2e6: (250, False), 2e7: (300, False), math.inf: (600, True)})
    return 50, hidden, norm


def _of_size(amount: float, steps: dict[float, Any]) -> Any:
    """The value of the first step that is not below the amount."""
    return next(value for most, value in steps.items() if amount <= most)


def _context(facts: Facts) -> dict[str, Any]:
    """Size of the context vector by its values; of values of few texts a low rank and forgetting."""
    scarce = 0 < facts.texts_per_value < FEW_TEXTS
    size = 8 if 0 < facts.values <= 10 else 16 if facts.values <= 100 else 24
    return {
        "context_size": size,
        "variable_size": size,
        "rank": 4 if scarce else 12,
        "dropout_context": 0.2 if scarce else 0.0,
    }


def _dropout(facts: Facts, epochs: float) -> dict[str, Any]:
    """More with every time that the same texts are read, and the fewer there are of them."""
    if facts.letters:
        rate = _of_size(epochs, {4: 0.0, 10: 0.1, math.inf: 0.15})
        return {"dropout_recurrent": rate, "dropout_input": 0.0, "dropout_output": 0.0}
    rate = _of_size(epochs, {3: 0.0, 6: 0.1, math.inf: 0.3 if facts.targets < FEW_TARGETS else 0.2})
    return {"dropout_recurrent": rate, "dropout_input": rate, "dropout_output": round(1.5 * rate, 2)}


def _steps(facts: Facts) -> dict[str, Any]:
    """Batches and rates: small batches, for many steps."""
    batch = _batch(facts.targets, _most(facts), STEPS, BATCH)
    if facts.letters:
        return {"batch_tokens": batch, "learning_rate": 7e-3, "token_rate": 3.0, "weight_decay": 0.0}
    return {"batch_tokens": batch, "learning_rate": 5e-3, "token_rate": 3.0, "weight_decay": 0.01}


def _loss(facts: Facts) -> dict[str, Any]:
    """An exact loss of few tokens, a sampled one of many."""
    if facts.vocabulary <= EXACT:
        return {"loss": "full"}
    return {"loss": "sampled", "samples": 1000}


def _evaluations(facts: Facts, epochs: float) -> dict[str, Any]:
    """As many as take a small share of the training.

    A target of letters costs a third to judge of what it costs to learn; one of words more than that, the more words
    there are, since all of them are looked at, where a sampled loss looks at a few.
    """
    cost = 0.35 if facts.letters else 0.5 + facts.vocabulary / 15_000
    times = SHARE * epochs * facts.targets / max(1.0, facts.held * cost)
    count = min(10, max(1, int(times)))
    return {"evaluations": count, "patience": 3 if count >= 6 else 0}


def gentle_batch(targets: int, epochs: float, most: int) -> int:
    """Tokens in a batch of a fine-tuning: a few hundred steps even of few texts, and no more than `most`."""
    return _batch(targets, epochs, GENTLE_STEPS, most)


def _batch(targets: int, epochs: float, steps: int, most: int) -> int:
    """Tokens in a batch of so many steps, within `LEAST_BATCH` and `most`."""
    return max(1, min(most, max(LEAST_BATCH, round(targets * epochs / steps))))
