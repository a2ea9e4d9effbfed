"""Masks: their values, their share of zeros, their seed."""

import pytest
import torch

from factorcell.model.dropout import dropout_mask


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_mask_drops_its_share_and_keeps_the_mean(rate: float) -> None:
    drawn = dropout_mask((500, 400), rate, torch.zeros(1, dtype=torch.double))
    assert drawn.dtype == torch.double
    torch.testing.assert_close(torch.unique(drawn), torch.tensor([0.0, 1 / (1 - rate)], dtype=torch.double))
    assert abs(float((drawn == 0).double().mean()) - rate) < 5 * (rate * (1 - rate) / drawn.numel()) ** 0.5
    assert (drawn[0] != drawn[1]).any()


def test_a_mask_follows_the_seed() -> None:
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks += [dropout_mask((50,), 0.5, torch.zeros(1)), dropout_mask((50,), 0.5, torch.zeros(1))]
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[4])
