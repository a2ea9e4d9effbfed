"""The built-in backbones and heads, by the names of their kinds."""

from factorcell.kinds import check_kind
from factorcell.model.backbone import Backbone
from factorcell.model.head import Head
from factorcell.model.output import SoftmaxHead
from factorcell.model.recurrent import RecurrentBackbone
from factorcell.option_fields import EXTENSIBLE

BACKBONES: dict[str, type[Backbone]] = {"recurrent": RecurrentBackbone}
HEADS: dict[str, type[Head]] = {"softmax": SoftmaxHead}


def backbone_class(kind: str) -> type[Backbone]:
    """Return the backbone of a kind: a built-in one, a registered one, or one of an installed package."""
    found: type[Backbone] = BACKBONES[kind] if kind in BACKBONES else EXTENSIBLE["backbone"].find(kind, check_kind)
    return found


def head_class(kind: str) -> type[Head]:
    """Return the head of a kind: a built-in one, a registered one, or one of an installed package."""
    found: type[Head] = HEADS[kind] if kind in HEADS else EXTENSIBLE["head"].find(kind, check_kind)
    return found
