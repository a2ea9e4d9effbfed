"""Evaluation of models: perplexity, classification, comparison, and inspection of what a model has learned."""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.evaluation.advice import Advice as Advice
    from factorcell.evaluation.advice import advise as advise
    from factorcell.evaluation.arrow_batches import embed_arrow as embed_arrow
    from factorcell.evaluation.arrow_batches import generate_arrow as generate_arrow
    from factorcell.evaluation.arrow_batches import predict_arrow as predict_arrow
    from factorcell.evaluation.arrow_batches import score_arrow as score_arrow
    from factorcell.evaluation.classification import classify as classify
    from factorcell.evaluation.classification import classify_points as classify_points
    from factorcell.evaluation.explaining.token_evidence import explain as explain
    from factorcell.evaluation.likelihoods import log_likelihoods as log_likelihoods
    from factorcell.evaluation.perplexity import Evaluation as Evaluation
    from factorcell.evaluation.perplexity import evaluate as evaluate

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
