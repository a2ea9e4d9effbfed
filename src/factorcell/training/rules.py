"""Rules that choose the options of a training that the user did not specify.

The rules were derived from trials on many tables (LOG.md). Their inputs are the `TableFacts` of a table and the number
of passes.
"""

import math
from dataclasses import dataclass
from typing import Any

from factorcell.choices import PRESETS
from factorcell.config import choose
from factorcell.data.corpus import Corpus

# Passes over a table of a million targets; larger tables need fewer passes.
PASSES_PER_PRESET = dict(zip(PRESETS, (2.0, 6.0, 12.0), strict=True))
MIN_PASSES, MAX_PASSES = 0.25, 40.0
MAX_WORD_PASSES = 12.0  # more passes would memorize a small table of words
MAX_EXACT_VOCABULARY = 3000  # with at most this number of tokens, the exact softmax is hardly slower than a sampled one
FEW_TEXTS = 60  # a value with fewer texts gets a low rank and context dropout
FEW_TARGETS = 150_000  # a table with fewer targets is memorized after a few passes
EVALUATION_SHARE = 0.1  # largest share of the training time that evaluations may take
MAX_BATCH_TOKENS, MIN_BATCH_TOKENS = 1000, 100
MIN_STEPS, MIN_FINETUNING_STEPS = 600, 300  # batches are made smaller if a training would have fewer steps

Options = dict[str, dict[str, Any]]  # section of the config -> option -> value


@dataclass(frozen=True)
class TableFacts:
    """Properties of a table that determine its options.

    Attributes:
        targets: The number of training targets.
        vocabulary: The number of tokens in the vocabulary.
        is_character_level: Whether tokens are characters or graphemes.
        max_values: The largest number of values of a categorical context column; 0 without such a column.
        texts_per_value: The mean number of texts per value of the column with `max_values`; 0 without such a column.
        dev_targets: The number of development targets.
    """

    targets: int
    vocabulary: int
    is_character_level: bool
    max_values: int = 0
    texts_per_value: float = 0.0
    dev_targets: int = 0

    @classmethod
    def of(cls, corpus: Corpus, dev: Corpus) -> "TableFacts":
        """Return the facts of the training texts `corpus` and the development texts `dev`."""
        values = max((len(variable.values) for variable in corpus.schema.categories), default=0)
        per_value = len(corpus) / values if values else 0.0
        characters = corpus.tokenizer.is_character_level
        return cls(corpus.target_count, len(corpus.tokenizer), characters, values, per_value, dev.target_count)

    @property
    def max_passes(self) -> float:
        """The largest number of passes that does not memorize the table."""
        return MAX_PASSES if self.is_character_level else MAX_WORD_PASSES


def default_passes(facts: TableFacts, preset: str) -> float:
    """Return the number of passes over a table that a preset stands for."""
    choose("preset", preset, PRESETS)
    passes = PASSES_PER_PRESET[preset] * (1e6 / max(1, facts.targets)) ** 0.35
    return float(f"{min(facts.max_passes, max(MIN_PASSES, passes)):.2g}")


def default_options(facts: TableFacts, epochs: float, sized_for: float | None = None) -> Options:
    """Return the options of a training of `epochs` passes; `sized_for` is the number for the layer sizes."""
    targets = (epochs if sized_for is None else sized_for) * facts.targets
    batch = batch_tokens(facts.targets, facts.max_passes, MIN_STEPS, MAX_BATCH_TOKENS)
    if facts.is_character_level:
        hidden, norm = _look_up(
            targets, {5e5: (150, False), 2e6: (250, False), 2e7: (300, False), math.inf: (600, True)}
        )
        embedding, rates = 50, {"learning_rate": 7e-3, "token_rate": 3.0, "weight_decay": 0.0}
    else:
        embedding, hidden = _look_up(targets, {2e6: (100, 150), 8e6: (150, 200), 4e7: (200, 300), math.inf: (256, 400)})
        norm, rates = False, {"learning_rate": 5e-3, "token_rate": 3.0, "weight_decay": 0.01}
    is_small = facts.vocabulary <= MAX_EXACT_VOCABULARY
    loss = {"loss": "full"} if is_small else {"loss": "sampled", "samples": 1000}
    return {
        "model": {"embedding_size": embedding, **_context_options(facts)},
        "backbone": {"hidden_size": hidden, "layer_norm": norm, **_dropout_options(facts, epochs)},
        "training": {"epochs": epochs, "batch_tokens": batch, **rates, **loss, **_evaluation_options(facts, epochs)},
    }


def _look_up(amount: float, table: dict[float, Any]) -> Any:
    """Return the value of the first key (in ascending order) that is not below `amount`."""
    return next(value for limit, value in table.items() if amount <= limit)


def _context_options(facts: TableFacts) -> dict[str, Any]:
    """Choose the context vector's size from the number of values, and rank and dropout from the texts per value."""
    is_scarce = 0 < facts.texts_per_value < FEW_TEXTS
    size = 8 if 0 < facts.max_values <= 10 else (16 if facts.max_values <= 100 else 24)
    rank, dropout = (4, 0.2) if is_scarce else (12, 0.0)
    return {"context_size": size, "variable_size": size, "rank": rank, "dropout_context": dropout}


def _dropout_options(facts: TableFacts, epochs: float) -> dict[str, Any]:
    """Choose dropout rates, which grow with the number of passes and are higher for small tables of words."""
    if facts.is_character_level:
        rate = _look_up(epochs, {4: 0.0, 10: 0.1, math.inf: 0.15})
        return {"dropout_recurrent": rate, "dropout_input": 0.0, "dropout_output": 0.0}
    rate = _look_up(epochs, {3: 0.0, 6: 0.1, math.inf: 0.3 if facts.targets < FEW_TARGETS else 0.2})
    return {"dropout_recurrent": rate, "dropout_input": rate, "dropout_output": round(1.5 * rate, 2)}


def _evaluation_options(facts: TableFacts, epochs: float) -> dict[str, Any]:
    """Choose the number of evaluations, which may take at most `EVALUATION_SHARE` of the training time.

    With characters, evaluating a target costs about a third of training on it. With words the cost grows with the
    vocabulary, because an evaluation computes the logits of all tokens, and a sampled loss computes only a few.
    """
    cost = 0.35 if facts.is_character_level else 0.5 + facts.vocabulary / 15_000
    affordable = EVALUATION_SHARE * epochs * facts.targets / max(1.0, facts.dev_targets * cost)
    count = min(10, max(1, int(affordable)))
    return {"evaluations": count, "patience": 3 if count >= 6 else 0}


def batch_tokens(targets: int, epochs: float, min_steps: int, max_tokens: int) -> int:
    """Return the tokens per batch: `max_tokens`, or fewer if the training would have less than `min_steps` steps."""
    return max(1, min(max_tokens, max(MIN_BATCH_TOKENS, round(targets * epochs / min_steps))))
