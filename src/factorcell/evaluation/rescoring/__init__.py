"""Hypotheses of a recogniser, scored in context and chosen anew."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.evaluation.rescoring.nbest import NBest, read_nbest
    from factorcell.evaluation.rescoring.rescore import Scored, ScoreWeights

__all__ = ["NBest", "ScoreWeights", "Scored", "read_nbest"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "nbest": ("NBest", "read_nbest"),
        "rescore": ("Scored", "ScoreWeights"),
    },
)
