"""Rules for the options that the user does not set, made from trials on many tables (see LOG.md).

A rule reads the `Facts` of a table and the number of targets that a training sees, all passes together.
"""

import math
from dataclasses import dataclass
from typing import Any

from factorcell.choices import PRESETS
from factorcell.config import choose
from factorcell.data.corpus import Corpus

PASSES = dict(zip(PRESETS, (2.0, 6.0, 12.0), strict=True))  # over a million targets; more targets need fewer passes
FEWEST, MAX_PASSES, MAX_WORD_PASSES = 0.25, 40.0, 12.0  # passes; more would memorize a small table of words
EXACT = 3000  # largest vocabulary for which the exact softmax costs little more than a sampled one
FEW_TEXTS = 60  # texts of a value, from which little can be learned about it
FEW_TARGETS = 150_000  # targets that are soon memorized
SHARE = 0.1  # of a training that evaluations may take
BATCH, LEAST_BATCH = 1000, 100  # tokens; smaller batches where a table would make fewer steps than these:
STEPS, GENTLE_STEPS = 600, 300  # of a training, of a fine-tuning

Options = dict[str, dict[str, Any]]  # section of the config -> option -> value


@dataclass(frozen=True)
class TableFacts:
    """The properties of a table that its options follow from.

    `values` is the number of values of the context column with the most values, and `texts_per_value` its texts per
    value; both are 0 without a category. `held` counts the development targets.
    """

    targets: int
    vocabulary: int
    is_character_level: bool
    values: int = 0
    texts_per_value: float = 0.0
    dev_targets: int = 0

    @classmethod
    def of(cls, corpus: Corpus, held: Corpus) -> "TableFacts":
        """Return the facts of training and development texts."""
        values = max((len(variable.values) for variable in corpus.schema.categories), default=0)
        per_value = len(corpus) / values if values else 0.0
        characters = corpus.tokenizer.is_character_level
        return cls(corpus.target_count, len(corpus.tokenizer), characters, values, per_value, held.target_count)

    @property
    def most(self) -> float:
        """The largest number of passes."""
        return MAX_PASSES if self.is_character_level else MAX_WORD_PASSES


def default_passes(facts: TableFacts, preset: str) -> float:
    """Return the passes over a table by its size and a preset."""
    choose("preset", preset, PRESETS)
    times = PASSES[preset] * (1e6 / max(1, facts.targets)) ** 0.35
    return float(f"{min(facts.most, max(FEWEST, times)):.2g}")


def default_options(facts: TableFacts, epochs: float, sized_for: float | None = None) -> Options:
    """Return the options of a training of `epochs` passes; sizes may be those of another number of passes."""
    seen = (epochs if sized_for is None else sized_for) * facts.targets
    batch = batch_tokens(facts.targets, facts.most, STEPS, BATCH)
    if facts.is_character_level:
        hidden, norm = _step(seen, {5e5: (150, False), 2e6: (250, False), 2e7: (300, False), math.inf: (600, True)})
        embedding, rates = 50, {"learning_rate": 7e-3, "token_rate": 3.0, "weight_decay": 0.0}
    else:
        embedding, hidden = _step(seen, {2e6: (100, 150), 8e6: (150, 200), 4e7: (200, 300), math.inf: (256, 400)})
        norm, rates = False, {"learning_rate": 5e-3, "token_rate": 3.0, "weight_decay": 0.01}
    loss = {"loss": "full"} if facts.vocabulary <= EXACT else {"loss": "sampled", "samples": 1000}
    return {
        "model": {"embedding_size": embedding, **_context(facts)},
        "backbone": {"hidden_size": hidden, "layer_norm": norm, **_dropout(facts, epochs)},
        "training": {"epochs": epochs, "batch_tokens": batch, **rates, **loss, **_evaluations(facts, epochs)},
    }


def _step(amount: float, steps: dict[float, Any]) -> Any:
    """Return the value of the first step that is not below the amount."""
    return next(value for most, value in steps.items() if amount <= most)


def _context(facts: TableFacts) -> dict[str, Any]:
    """Size the context vector by its values; values with few texts get a low rank and dropout."""
    scarce = 0 < facts.texts_per_value < FEW_TEXTS
    size = 8 if 0 < facts.values <= 10 else 16 if facts.values <= 100 else 24
    rank, dropout = (4, 0.2) if scarce else (12, 0.0)
    return {"context_size": size, "variable_size": size, "rank": rank, "dropout_context": dropout}


def _dropout(facts: TableFacts, epochs: float) -> dict[str, Any]:
    """More dropout for more passes over fewer texts."""
    if facts.is_character_level:
        rate = _step(epochs, {4: 0.0, 10: 0.1, math.inf: 0.15})
        return {"dropout_recurrent": rate, "dropout_input": 0.0, "dropout_output": 0.0}
    rate = _step(epochs, {3: 0.0, 6: 0.1, math.inf: 0.3 if facts.targets < FEW_TARGETS else 0.2})
    return {"dropout_recurrent": rate, "dropout_input": rate, "dropout_output": round(1.5 * rate, 2)}


def _evaluations(facts: TableFacts, epochs: float) -> dict[str, Any]:
    """Return as many evaluations as take a small share of the training.

    Evaluating a target of letters costs a third of learning it. With words it costs more, and grows with the
    vocabulary, because an evaluation reads all words and a sampled loss only a few.
    """
    cost = 0.35 if facts.is_character_level else 0.5 + facts.vocabulary / 15_000
    times = SHARE * epochs * facts.targets / max(1.0, facts.dev_targets * cost)
    count = min(10, max(1, int(times)))
    return {"evaluations": count, "patience": 3 if count >= 6 else 0}


def batch_tokens(targets: int, epochs: float, steps: int, most: int) -> int:
    """Return the tokens in a batch: at most `most`, and fewer where a table would make less than `steps` steps."""
    return max(1, min(most, max(LEAST_BATCH, round(targets * epochs / steps))))
