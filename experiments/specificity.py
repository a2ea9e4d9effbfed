"""Context-specificity of generated texts (thesis 2018, chapter 6): the share that fit their context.

A judge, which is a classifier of real texts, predicts the value that each text was generated for. The share of correct
predictions is the context-specificity of the model; the judge's accuracy on held-out real texts is the reference.
Another figure is the share of n-grams that occur in the training texts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifiers import FastText
from factorcell.config import Config
from factorcell.data.corpus import Corpus, extend_hashes
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.evaluation import linear_classifier
from factorcell.generation.generate import GenerationOptions, generate, provenance, repair_and_count_rows
from factorcell.io import files
from factorcell.runs.run import Run
from study import Row

COPIED = 5  # length of the n-grams that are counted as copied if a training text has them


class Judge:
    """A fastText classifier of the column `target`, trained on the real texts of the table `train`.

    `tokenizer` is that of the models, so that all read the same tokens. `order` lists the values from low to high, if
    their names are not numbers. `real` has the figures of the real texts of `held_out`.
    """

    def __init__(
        self, train: Any, held_out: Any, config: Config, target: str, order: Sequence[str], tokenizer: Tokenizer
    ) -> None:
        self.target, self.config = target, linear_classifier.with_target(config, target)
        self.train, unseen = linear_classifier.read_train_and_test(
            train, held_out, target, self.config, tokenizer=tokenizer
        )
        self.classify, self.training_ngrams = FastText(self.train), np.unique(ngrams(self.train))
        names = self.train.schema.categories[0].values[1:]
        self.scale = np.array([float(order.index(name) if order else name) for name in names])
        self.real = self._figures(unseen)[0]

    def judge(self, texts: Sequence[str], values: Sequence[str]) -> tuple[Row, NDArray[np.bool_]]:
        """Return the figures of texts that were generated for `values`, and which texts fit their value."""
        table = [{self.config.data.text: text, self.target: value} for text, value in zip(texts, values, strict=True)]
        return self._figures(prepare(table, self.config, tokenizer=self.train.tokenizer, schema=self.train.schema))

    def _figures(self, corpus: Corpus) -> tuple[Row, NDArray[np.bool_]]:
        classification, hashes = self.classify(corpus), ngrams(corpus)
        known, fits = classification.truth >= 0, classification.predicted == classification.truth
        deviations = np.abs(self.scale[classification.predicted] - self.scale[classification.truth])
        figures = {
            "accuracy": fits[known],
            "deviation": deviations[known],
            f"copied_{COPIED}": np.isin(hashes, self.training_ngrams),
        }
        return {name: float(values.mean()) for name, values in figures.items() if len(values)}, fits


def ngrams(corpus: Corpus) -> NDArray[np.uint64]:
    """Return 64-bit hashes of all n-grams without special or unknown tokens."""
    tokens = np.asarray(corpus.tokens).astype(np.uint64)
    plain, count = ~np.isin(tokens, corpus.tokenizer.specials), max(0, len(tokens) - COPIED + 1)
    hashes, inside = np.zeros(count, dtype=np.uint64), np.ones(count, dtype=bool)
    for offset in range(COPIED):
        hashes = extend_hashes(hashes, tokens[offset : offset + count])
        inside &= plain[offset : offset + count]  # each text begins with a special token
    return hashes[inside]


def write_texts(run: Run, contexts: Sequence[Mapping[str, str]], options: GenerationOptions, file: Path) -> list[Row]:
    """Generate a text for each context into `file`, resuming an unfinished file; return all rows."""
    done = repair_and_count_rows(file, provenance(run, options), contexts, 1) if file.exists() else 0
    for row in generate(run, contexts, options=options, unknown="group", first=done):
        files.append_row(file, row)
    return files.read_rows(file)
