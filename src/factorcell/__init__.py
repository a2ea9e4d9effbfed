"""Language models that adapt to context: who is writing, where, when, about what."""

import os
from typing import TYPE_CHECKING

from factorcell.lazy import lazy

# PyTorch's threads then sleep while they wait for one another. Where other work takes a core they would turn in circles
# for whole slices of its time, and a training be ten times as slow. Read once, when PyTorch is imported: whoever has
# imported it before, has its threads as they were.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from factorcell.completion.blend import Blend
    from factorcell.completion.completer import Completer
    from factorcell.completion.fuzzy import Forgiving
    from factorcell.completion.online import User, learn_one
    from factorcell.completion.popularity import History, Popularity
    from factorcell.config import Config, DataConfig, ModelConfig, TrainingConfig, UserError
    from factorcell.data.cache import prepare
    from factorcell.data.corpus import Corpus
    from factorcell.data.tokenizer import register_tokenizer
    from factorcell.evaluation.classification import classify, classify_points, log_likelihoods
    from factorcell.evaluation.exposure import audit
    from factorcell.evaluation.perplexity import evaluate, evaluate_by
    from factorcell.generation.generate import GenerationOptions, generate, stream
    from factorcell.model.adapted_linear import AdaptedLinear
    from factorcell.model.adapters import register_adapter
    from factorcell.model.backbone import register_backbone
    from factorcell.model.cells import register_cell
    from factorcell.model.head import register_head
    from factorcell.model.language_model import LanguageModel
    from factorcell.model.run import Run
    from factorcell.model.scoring import Tally
    from factorcell.training.check import check
    from factorcell.training.compare import compare
    from factorcell.training.finetuning import finetune
    from factorcell.training.fit import fit
    from factorcell.training.loop import train
    from factorcell.training.mixture import Mixture, mix, open_scorer
    from factorcell.training.per_value import Separate, separate
    from factorcell.training.plan import Budget
    from factorcell.version import __version__

__all__ = [
    "AdaptedLinear",
    "Blend",
    "Budget",
    "Completer",
    "Config",
    "Corpus",
    "DataConfig",
    "Forgiving",
    "GenerationOptions",
    "History",
    "LanguageModel",
    "Mixture",
    "ModelConfig",
    "Popularity",
    "Run",
    "Separate",
    "Tally",
    "TrainingConfig",
    "User",
    "UserError",
    "__version__",
    "audit",
    "check",
    "classify",
    "classify_points",
    "compare",
    "evaluate",
    "evaluate_by",
    "finetune",
    "fit",
    "generate",
    "learn_one",
    "log_likelihoods",
    "mix",
    "open_scorer",
    "prepare",
    "register_adapter",
    "register_backbone",
    "register_cell",
    "register_head",
    "register_tokenizer",
    "separate",
    "stream",
    "train",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "completion.blend": ("Blend",),
        "completion.completer": ("Completer",),
        "completion.fuzzy": ("Forgiving",),
        "completion.online": ("User", "learn_one"),
        "completion.popularity": ("History", "Popularity"),
        "config": ("Config", "DataConfig", "ModelConfig", "TrainingConfig", "UserError"),
        "data.cache": ("prepare",),
        "data.corpus": ("Corpus",),
        "data.tokenizer": ("register_tokenizer",),
        "evaluation.classification": ("classify", "classify_points", "log_likelihoods"),
        "evaluation.exposure": ("audit",),
        "evaluation.perplexity": ("evaluate", "evaluate_by"),
        "generation.generate": ("GenerationOptions", "generate", "stream"),
        "model.adapted_linear": ("AdaptedLinear",),
        "model.adapters": ("register_adapter",),
        "model.backbone": ("register_backbone",),
        "model.cells": ("register_cell",),
        "model.head": ("register_head",),
        "model.language_model": ("LanguageModel",),
        "model.run": ("Run",),
        "model.scoring": ("Tally",),
        "training.check": ("check",),
        "training.compare": ("compare",),
        "training.finetuning": ("finetune",),
        "training.fit": ("fit",),
        "training.mixture": ("Mixture", "mix", "open_scorer"),
        "training.per_value": ("Separate", "separate"),
        "training.loop": ("train",),
        "training.plan": ("Budget",),
        "version": ("__version__",),
    },
)
