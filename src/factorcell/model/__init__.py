"""The language model and its run folder: a context to a change of the weights, tokens to log probabilities."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.model.language_model import LanguageModel
    from factorcell.model.run import Run
    from factorcell.model.scoring import Ranker, Scorer, Tally

__all__ = ["LanguageModel", "Ranker", "Run", "Scorer", "Tally"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "language_model": ("LanguageModel",),
        "run": ("Run",),
        "scoring": ("Ranker", "Scorer", "Tally"),
    },
)
