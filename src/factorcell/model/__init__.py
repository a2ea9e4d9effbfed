"""The language model, whose weights depend on a context, and the run folder that stores the model."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.model.adapted_linear import AdaptedLinear as AdaptedLinear
    from factorcell.model.adapters import Adapter as Adapter
    from factorcell.model.adapters import LayerSizes as LayerSizes
    from factorcell.model.adapters import Shift as Shift
    from factorcell.model.backbone import Backbone as Backbone
    from factorcell.model.backbone import BackboneSizes as BackboneSizes
    from factorcell.model.backbone import Footprint as Footprint
    from factorcell.model.head import Head as Head
    from factorcell.model.head import HeadSizes as HeadSizes
    from factorcell.model.language_model import LanguageModel as LanguageModel
    from factorcell.model.recurrent_loop import CellState as CellState
    from factorcell.model.recurrent_loop import RecurrentStep as RecurrentStep
    from factorcell.model.run import Run as Run
    from factorcell.model.scoring import Scorer as Scorer
    from factorcell.model.scoring import Tally as Tally


__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "adapted_linear": ("AdaptedLinear",),
        "adapters": ("Adapter", "LayerSizes", "Shift"),
        "backbone": ("Backbone", "BackboneSizes", "Footprint"),
        "head": ("Head", "HeadSizes"),
        "language_model": ("LanguageModel",),
        "recurrent_loop": ("CellState", "RecurrentStep"),
        "run": ("Run",),
        "scoring": ("Scorer", "Tally"),
    },
)
