"""The language model and its run folder: a context to a change of the weights, tokens to log probabilities."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.model.adapted_linear import AdaptedLinear
    from factorcell.model.adapters import Adapter, LayerSizes, Shift
    from factorcell.model.cells import Kind, State
    from factorcell.model.language_model import LanguageModel
    from factorcell.model.run import Run
    from factorcell.model.scoring import Ranker, Scorer, Tally

__all__ = [
    "AdaptedLinear",
    "Adapter",
    "Kind",
    "LanguageModel",
    "LayerSizes",
    "Ranker",
    "Run",
    "Scorer",
    "Shift",
    "State",
    "Tally",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "adapted_linear": ("AdaptedLinear",),
        "adapters": ("Adapter", "LayerSizes", "Shift"),
        "cells": ("Kind", "State"),
        "language_model": ("LanguageModel",),
        "run": ("Run",),
        "scoring": ("Ranker", "Scorer", "Tally"),
    },
)
