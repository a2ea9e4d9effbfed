"""How good a model is, and what it has learned."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.evaluation.bayes_rule import Classification
    from factorcell.evaluation.classification import classify, classify_points, log_likelihoods
    from factorcell.evaluation.embeddings import Embeddings
    from factorcell.evaluation.ngram import NGram
    from factorcell.evaluation.perplexity import evaluate, evaluate_by
    from factorcell.evaluation.specificity import Judge

__all__ = [
    "Classification",
    "Embeddings",
    "Judge",
    "NGram",
    "classify",
    "classify_points",
    "evaluate",
    "evaluate_by",
    "log_likelihoods",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "classification": ("Classification", "classify", "classify_points", "log_likelihoods"),
        "embeddings": ("Embeddings",),
        "ngram": ("NGram",),
        "perplexity": ("evaluate", "evaluate_by"),
        "specificity": ("Judge",),
    },
)
