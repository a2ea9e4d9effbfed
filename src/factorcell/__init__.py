"""Language models that adapt to the context of a text: who is writing, where, when, about what.

This package has the names of the usual work; `factorcell.completion`, `data`, `evaluation`, `generation`, `hf`, `nn`
and `training` have further ones.
"""

import os
from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

# Let PyTorch's threads sleep while they wait for each other. If another program uses a core, threads that wait actively
# can make training ten times slower. PyTorch reads this variable once, when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from factorcell.completion.completer import Completer as Completer
    from factorcell.completion.online import Learner as Learner
    from factorcell.errors import UserError as UserError
    from factorcell.evaluation.classification import classify as classify
    from factorcell.evaluation.explaining.token_evidence import explain as explain
    from factorcell.evaluation.perplexity import evaluate as evaluate
    from factorcell.generation.generate import generate as generate
    from factorcell.io.extras import __version__ as __version__
    from factorcell.options.columns import Category as Category
    from factorcell.options.columns import Cyclic as Cyclic
    from factorcell.options.columns import Hour as Hour
    from factorcell.options.columns import Longitude as Longitude
    from factorcell.options.columns import Number as Number
    from factorcell.options.columns import Prompt as Prompt
    from factorcell.options.columns import Text as Text
    from factorcell.options.columns import Vector as Vector
    from factorcell.options.columns import Weekday as Weekday
    from factorcell.options.columns import Yearday as Yearday
    from factorcell.runs.run import Run as Run
    from factorcell.training.compare import compare as compare
    from factorcell.training.fit import fit as fit

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
