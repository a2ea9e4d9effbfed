"""Which models the compiled search takes: by what their adapters change, not by what these are called."""

import pytest
import torch
from torch import Tensor

from factorcell.config import EXTENSIBLE
from factorcell.model import adapters
from factorcell.model.adapters import Adapter, LayerSizes, Shift
from factorcell.model.backbone import register_backbone
from factorcell.model.kernels import library
from factorcell.model.packing import PackedModel
from tests.plugins import Growing
from tests.small_runs import make_letters

compiled = pytest.mark.skipif(library.library() is None, reason="no compiled kernels here")


class Odd(Adapter):
    """An adapter of another name that changes what it is told to change."""

    change = "scale"

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.sizes = sizes.inputs, sizes.outputs

    def forward(self, vector: Tensor) -> Shift:
        """See `Adapter`."""
        (inputs, gates), count = self.sizes, len(vector)
        if self.change == "scale":
            return Shift(scale=vector.new_zeros(count, gates))
        return Shift(left=vector.new_zeros(count, inputs, 3), right=vector.new_zeros(count, 3, gates))


@compiled
def test_a_model_is_packed_by_what_its_adapters_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(adapters.ADAPTERS, "concat", Odd)
    assert PackedModel.from_model(make_letters(adapt=["concat"]).model) is None
    monkeypatch.setattr(Odd, "change", "low rank")
    model = make_letters(adapt=["concat", "factor"]).model
    packed = PackedModel.from_model(model)
    assert packed is not None
    assert packed.layout.rank == 3 + model.config.rank


@compiled
@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, True),
        ({"adapt": []}, True),
        ({"adapt": ["concat", "factor"]}, True),
        ({"adapt": ["scale"]}, False),
        ({"adapt": ["scale", "factor"]}, False),
        ({"adapt": ["prefix"]}, False),
        ({"layers": 2}, False),
        ({"cell": "gru"}, False),
    ],
)
def test_what_is_packed(options: dict[str, object], taken: bool) -> None:
    model = make_letters(**options).model  # type: ignore[arg-type]
    assert (PackedModel.from_model(model) is not None) == taken
    assert PackedModel.from_model(model.to(torch.float64)) is None


@compiled
def test_another_backbone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXTENSIBLE["backbone"], "registered", {})
    register_backbone("growing", Growing)
    assert PackedModel.from_model(make_letters(backbone="growing").model) is None
