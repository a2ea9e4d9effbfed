"""Classifiers of the tables: naive Bayes of scikit-learn, and fastText (Joulin et al. 2017).

They read the token ids of a corpus, and predict the first category of its schema.

Shapes: B texts, K values, V vocabulary.
"""

import tempfile
from pathlib import Path

import fasttext
import numpy as np
from scipy.sparse import csr_array
from sklearn.naive_bayes import MultinomialNB

from factorcell.data.corpus import Corpus, target_ids, target_offsets
from factorcell.evaluation.bayes_rule import Classification
from factorcell.evaluation.linear_classifier import discriminative_classification, target_labels

CHARACTER_ORDER, WORD_ORDER = 5, 2  # default maximum lengths of n-grams of characters, and of words or pieces
SMOOTHING = 0.5  # added to every count of naive Bayes


class NaiveBayes:
    """A unigram model for each value, with a uniform prior."""

    def __init__(self, train: Corpus) -> None:
        target = train.schema.categories[0]
        labels = target_labels(train, target.name)
        self.model = MultinomialNB(alpha=SMOOTHING, fit_prior=False)
        self.model.partial_fit(_counts(train)[labels >= 0], labels[labels >= 0], np.arange(len(target.values) - 1))

    def __call__(self, test: Corpus) -> Classification:
        """Classify the texts of `test`."""
        return discriminative_classification(test, self.model.predict_log_proba(_counts(test)))


def _counts(corpus: Corpus) -> csr_array:
    """Return the count of each token in each text (B, V - 1), without the start token, which is never predicted."""
    ids = target_ids(corpus)
    start = corpus.tokenizer.specials.start
    ids = ids - (ids > start)
    return csr_array((np.ones(len(ids)), ids, target_offsets(corpus)), (len(corpus), len(corpus.tokenizer) - 1))


class FastText:
    """The classifier of the fastText library with n-grams of up to `order` tokens, 10 dimensions and 5 passes."""

    def __init__(self, train: Corpus, *, order: int | None = None, seed: int = 0) -> None:
        default = CHARACTER_ORDER if train.tokenizer.is_character_level else WORD_ORDER
        labels = target_labels(train, train.schema.categories[0].name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.txt"
            labelled_texts = zip(labels, _token_lines(train), strict=True)
            lines = (f"__label__{label} {text}\n" for label, text in labelled_texts if label >= 0)
            path.write_text("".join(lines), encoding="utf-8")
            self.model = fasttext.train_supervised(
                input=str(path),
                dim=10,
                lr=0.5,
                epoch=5,
                wordNgrams=order or default,
                thread=1,
                seed=seed % (1 << 31),
                verbose=0,
            )

    def __call__(self, test: Corpus) -> Classification:
        """Classify the texts of `test`; a value that fastText does not return has probability 0."""
        log_posterior = np.full((len(test), len(test.schema.categories[0].values) - 1), -np.inf)
        all_labels, all_probabilities = self.model.predict(_token_lines(test), k=-1)
        for row, (labels, probabilities) in enumerate(zip(all_labels, all_probabilities, strict=True)):
            columns = [int(label.removeprefix("__label__")) for label in labels]
            log_posterior[row, columns] = np.log(probabilities)
        return discriminative_classification(test, log_posterior)


def _token_lines(corpus: Corpus) -> list[str]:
    """Return a line for each text with the ids of its tokens, separated by spaces."""
    return [" ".join(map(str, text.tolist())) for text in np.split(corpus.tokens, corpus.offsets[1:-1])]
