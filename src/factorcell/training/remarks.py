"""What of two tables would make a training disappoint, said before it begins."""

from collections.abc import Iterator

import numpy as np

from factorcell.data.corpus import Corpus, known_targets

FAR = 15.0  # deviations that the largest of a column's numbers lies off their mean
MUCH = 0.2  # share of targets out of vocabulary from which a model of words says little


def remarks(corpus: Corpus, dev: Corpus) -> Iterator[str]:
    """A line for each: development texts learned from, words that are too rare, columns of one value or none."""
    if np.array_equal(corpus.tokens, dev.tokens):
        yield "the development texts are the training texts: their perplexity says nothing of new ones; give others"
    unknown = 1 - float(known_targets(dev).mean())
    if unknown > MUCH and not corpus.tokenizer.is_character_level:
        yield (
            f"{unknown:.0%} of the development targets are out of vocabulary; "
            "a model of characters knows all: --tokenizer char"
        )
    for variable in corpus.schema.numbers:
        if variable.low >= 0 and variable.high > variable.mean + FAR * variable.deviation:
            yield (
                f"{variable.name}: a few values are far larger than all others, up to {variable.high:.4g} "
                f"where the mean is {variable.mean:.4g}; a column of their logarithms says more"
            )
    for variable in corpus.schema.categories:
        if not variable.rare and len(variable.values) == 2:
            yield f"{variable.name} says nothing: all texts have {variable.values[1]!r}, or no value"
        if variable.rare and len(variable.values) == 1:
            least = f"{variable.least} texts, the least (--min-context-count or --min-user-count)"
            yield f"{variable.name} says nothing: no value has {least}"
