"""Tests of dropout masks: their values, share of zeros and seed."""

import pytest
import torch

from factorcell.nn.backbones.backbone import dropout_mask


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_mask_drops_its_share_and_preserves_the_mean(rate: float) -> None:
    mask = dropout_mask((500, 400), rate, torch.zeros(1, dtype=torch.double))
    assert mask.dtype == torch.double
    torch.testing.assert_close(torch.unique(mask), torch.tensor([0.0, 1 / (1 - rate)], dtype=torch.double))
    assert abs(float((mask == 0).double().mean()) - rate) < 5 * (rate * (1 - rate) / mask.numel()) ** 0.5
    assert (mask[0] != mask[1]).any()


def test_mask_depends_on_the_seed() -> None:
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks += [dropout_mask((50,), 0.5, torch.zeros(1)), dropout_mask((50,), 0.5, torch.zeros(1))]
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[4])
