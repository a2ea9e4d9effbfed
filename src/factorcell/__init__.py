"""Language models that adapt to the context of a text: who is writing, where, when, about what."""

import os
from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

# Let PyTorch's threads sleep while they wait for each other. If another program uses a core, threads that wait actively
# can make training ten times slower. PyTorch reads this variable once, when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from factorcell.adapters.adapted_linear import AdaptedLinear as AdaptedLinear
    from factorcell.adapters.adapters import register_adapter as register_adapter
    from factorcell.completion.blend import Blend as Blend
    from factorcell.completion.completer import Completer as Completer
    from factorcell.completion.fuzzy import TypoTolerantLookup as TypoTolerantLookup
    from factorcell.completion.online import Learner as Learner
    from factorcell.completion.online import LearningRule as LearningRule
    from factorcell.completion.online import User as User
    from factorcell.completion.online import learn_one as learn_one
    from factorcell.completion.popularity import History as History
    from factorcell.completion.popularity import Popularity as Popularity
    from factorcell.config import Config as Config
    from factorcell.config import DataConfig as DataConfig
    from factorcell.config import ModelConfig as ModelConfig
    from factorcell.config import TrainingConfig as TrainingConfig
    from factorcell.data.cache import prepare as prepare
    from factorcell.data.corpus import Corpus as Corpus
    from factorcell.data.tokenizers.tokenizer import register_tokenizer as register_tokenizer
    from factorcell.errors import UserError as UserError
    from factorcell.evaluation.advice import advise as advise
    from factorcell.evaluation.classification import classify as classify
    from factorcell.evaluation.explaining.likelihood_ratios import explain as explain
    from factorcell.evaluation.likelihoods import log_likelihoods as log_likelihoods
    from factorcell.evaluation.perplexity import evaluate as evaluate
    from factorcell.evaluation.perplexity import evaluate_by as evaluate_by
    from factorcell.evaluation.point_classification import classify_points as classify_points
    from factorcell.generation.generate import GenerationOptions as GenerationOptions
    from factorcell.generation.generate import generate as generate
    from factorcell.generation.generate import stream as stream
    from factorcell.hf.context_config import ContextConfig as ContextConfig
    from factorcell.hf.context_model import ContextModel as ContextModel
    from factorcell.hf.context_model import get_context_model as get_context_model
    from factorcell.hf.context_reading import ContextCollator as ContextCollator
    from factorcell.hf.context_reading import read_names as read_names
    from factorcell.hf.context_reading import read_schema as read_schema
    from factorcell.io.version import __version__ as __version__
    from factorcell.nn.backbones.backbone import register_backbone as register_backbone
    from factorcell.nn.backbones.cells import register_cell as register_cell
    from factorcell.nn.head import register_head as register_head
    from factorcell.nn.language_model import LanguageModel as LanguageModel
    from factorcell.nn.scoring import Tally as Tally
    from factorcell.runs.exporting import export as export
    from factorcell.runs.run import Run as Run
    from factorcell.training.check import check as check
    from factorcell.training.compare import compare as compare
    from factorcell.training.finetuning import finetune as finetune
    from factorcell.training.fit import fit as fit
    from factorcell.training.loop import train as train
    from factorcell.training.mixture import MixedModels as MixedModels
    from factorcell.training.mixture import mix as mix
    from factorcell.training.mixture import open_scorer as open_scorer
    from factorcell.training.plan import Budget as Budget


__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "completion.blend": ("Blend",),
        "completion.completer": ("Completer",),
        "completion.fuzzy": ("TypoTolerantLookup",),
        "completion.online": ("Learner", "LearningRule", "User", "learn_one"),
        "completion.popularity": ("History", "Popularity"),
        "config": ("Config", "DataConfig", "ModelConfig", "TrainingConfig"),
        "errors": ("UserError",),
        "data.cache": ("prepare",),
        "data.corpus": ("Corpus",),
        "data.tokenizers.tokenizer": ("register_tokenizer",),
        "evaluation.advice": ("advise",),
        "evaluation.classification": ("classify",),
        "evaluation.likelihoods": ("log_likelihoods",),
        "evaluation.point_classification": ("classify_points",),
        "evaluation.explaining.likelihood_ratios": ("explain",),
        "evaluation.perplexity": ("evaluate", "evaluate_by"),
        "generation.generate": ("GenerationOptions", "generate", "stream"),
        "adapters.adapted_linear": ("AdaptedLinear",),
        "adapters.adapters": ("register_adapter",),
        "nn.backbones.backbone": ("register_backbone",),
        "nn.backbones.cells": ("register_cell",),
        "hf.context_config": ("ContextConfig",),
        "hf.context_model": ("ContextModel", "get_context_model"),
        "hf.context_reading": ("ContextCollator", "read_names", "read_schema"),
        "runs.exporting": ("export",),
        "nn.head": ("register_head",),
        "nn.language_model": ("LanguageModel",),
        "runs.run": ("Run",),
        "nn.scoring": ("Tally",),
        "training.check": ("check",),
        "training.compare": ("compare",),
        "training.finetuning": ("finetune",),
        "training.fit": ("fit",),
        "training.mixture": ("MixedModels", "mix", "open_scorer"),
        "training.loop": ("train",),
        "training.plan": ("Budget",),
        "io.version": ("__version__",),
    },
)
