"""The language model and its run folder: a context to a change of the weights, tokens to log probabilities."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.model.adapted_linear import AdaptedLinear
    from factorcell.model.adapters import Adapter, LayerSizes, Shift
    from factorcell.model.backbone import Backbone, BackboneSizes, Footprint
    from factorcell.model.cells import Kind, State
    from factorcell.model.head import Head, HeadSizes
    from factorcell.model.language_model import LanguageModel
    from factorcell.model.run import Run
    from factorcell.model.scoring import Scorer, Tally

__all__ = [
    "AdaptedLinear",
    "Adapter",
    "Backbone",
    "BackboneSizes",
    "Footprint",
    "Head",
    "HeadSizes",
    "Kind",
    "LanguageModel",
    "LayerSizes",
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
        "backbone": ("Backbone", "BackboneSizes", "Footprint"),
        "cells": ("Kind", "State"),
        "head": ("Head", "HeadSizes"),
        "language_model": ("LanguageModel",),
        "run": ("Run",),
        "scoring": ("Scorer", "Tally"),
    },
)
