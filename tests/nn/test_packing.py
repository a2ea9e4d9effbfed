"""Tests of which models the compiled search supports."""

import pytest
import torch
from torch import Tensor

from factorcell.adapters import adapters
from factorcell.adapters.adapters import Adapter, LayerSizes, Shift
from factorcell.config import EXTENSIBLE
from factorcell.nn.backbones.backbone import register_backbone
from factorcell.nn.packing import PackedModel
from tests.kernels import compiled
from tests.plugins import Growing
from tests.small_runs import make_letters


class ConfigurableAdapter(Adapter):
    """An adapter whose class attribute `change` says which part of a shift it returns."""

    change = "scale"

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.sizes = sizes.inputs, sizes.outputs

    def forward(self, vector: Tensor) -> Shift:
        """Return a shift of zeros with the selected part."""
        (inputs, gates), count = self.sizes, len(vector)
        if self.change == "scale":
            return Shift(scale=vector.new_zeros(count, gates))
        return Shift(left=vector.new_zeros(count, inputs, 3), right=vector.new_zeros(count, 3, gates))


@compiled
def test_support_depends_on_the_parts_of_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(adapters.ADAPTERS, "concat", ConfigurableAdapter)
    assert PackedModel.from_model(make_letters(adapt=["concat"]).model) is None
    monkeypatch.setattr(ConfigurableAdapter, "change", "low rank")
    model = make_letters(adapt=["concat", "factor"]).model
    packed = PackedModel.from_model(model)
    assert packed is not None
    assert packed.layout.rank == 3 + model.config.rank


@compiled
@pytest.mark.parametrize(
    ("options", "is_supported"),
    [
        ({}, True),
        ({"adapt": []}, True),
        ({"adapt": ["concat", "factor"]}, True),
        ({"adapt": ["scale"]}, False),
        ({"adapt": ["scale", "factor"]}, False),
        ({"adapt": ["prefix"]}, True),
        ({"layers": 2}, False),
        ({"cell": "gru"}, False),
    ],
)
def test_supported_models_are_packed(options: dict[str, object], is_supported: bool) -> None:
    model = make_letters(**options).model  # type: ignore[arg-type]
    assert (PackedModel.from_model(model) is not None) == is_supported
    assert PackedModel.from_model(model.to(torch.float64)) is None


@compiled
def test_other_backbones_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXTENSIBLE["backbone"], "registered", {})
    register_backbone("growing", Growing)
    assert PackedModel.from_model(make_letters(backbone="growing").model) is None
