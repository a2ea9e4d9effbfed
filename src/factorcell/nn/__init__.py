"""The language model: backbones, heads, output biases and compiled kernels; and the parts that other packages add."""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.adapters.adapters import AdaptedLinear as AdaptedLinear
    from factorcell.adapters.adapters import Adapter as Adapter
    from factorcell.adapters.adapters import LayerSizes as LayerSizes
    from factorcell.adapters.adapters import Shift as Shift
    from factorcell.adapters.adapters import register_adapter as register_adapter
    from factorcell.nn.backbones.backbone import Backbone as Backbone
    from factorcell.nn.backbones.backbone import BackboneSizes as BackboneSizes
    from factorcell.nn.backbones.backbone import Footprint as Footprint
    from factorcell.nn.backbones.backbone import register_backbone as register_backbone
    from factorcell.nn.backbones.cells import CellState as CellState
    from factorcell.nn.backbones.cells import RecurrentStep as RecurrentStep
    from factorcell.nn.backbones.cells import register_cell as register_cell
    from factorcell.nn.language_model import LanguageModel as LanguageModel
    from factorcell.nn.output import Head as Head
    from factorcell.nn.output import HeadSizes as HeadSizes
    from factorcell.nn.output import register_head as register_head

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
