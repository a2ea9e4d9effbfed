"""Language models that adapt to context: who is writing, where, when, about what."""

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.fuzzy import Forgiving
from factorcell.completion.online import User, learn_one
from factorcell.completion.popularity import History, Popularity
from factorcell.config import Config, DataConfig, ModelConfig, TrainingConfig, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.evaluation.classification import classify, classify_points, log_likelihoods
from factorcell.evaluation.perplexity import evaluate, evaluate_by
from factorcell.generation.generate import GenerationOptions, fill, generate, stream
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run
from factorcell.model.scoring import Tally
from factorcell.training.compare import compare
from factorcell.training.finetuning import finetune
from factorcell.training.fit import fit
from factorcell.training.mixture import Mixture, mix, open_scorer
from factorcell.training.per_value import Separate, separate
from factorcell.training.trainer import train

__all__ = [
    "Blend",
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
    "classify",
    "classify_points",
    "compare",
    "evaluate",
    "evaluate_by",
    "fill",
    "finetune",
    "fit",
    "generate",
    "learn_one",
    "log_likelihoods",
    "mix",
    "open_scorer",
    "prepare",
    "separate",
    "stream",
    "train",
]
