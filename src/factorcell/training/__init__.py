"""From a corpus to a trained run.

`factorcell.fit` and `factorcell.compare` are the functions; the modules that they live in have the same names.
"""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.training.finetuning import finetune
    from factorcell.training.loop import train
    from factorcell.training.mixture import Mixture, mix, open_scorer
    from factorcell.training.per_value import Separate, separate

__all__ = ["Mixture", "Separate", "finetune", "mix", "open_scorer", "separate", "train"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "finetuning": ("finetune",),
        "mixture": ("Mixture", "mix", "open_scorer"),
        "per_value": ("Separate", "separate"),
        "loop": ("train",),
    },
)
