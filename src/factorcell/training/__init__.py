"""Training, fine-tuning, comparison, mixtures and hyperparameter search.

`factorcell.fit` and `factorcell.compare` are functions; `factorcell.training.fit` and `factorcell.training.compare` are
the modules that contain them.
"""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.training.fit import finetune as finetune
    from factorcell.training.mixture import MixedModels as MixedModels
    from factorcell.training.mixture import mix as mix
    from factorcell.training.mixture import open_scorer as open_scorer
    from factorcell.training.trainer import train as train
    from factorcell.training.tuning import tune as tune

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
