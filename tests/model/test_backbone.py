"""The contract of a backbone, held by every one of them: the recurrent kinds, and one whose state is a growing list."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from factorcell.model.backbone import Backbone, BackboneSizes
from factorcell.model.recurrent import RecurrentBackbone
from factorcell.option_fields import CELLS, RecurrentOptions
from tests.plugins import Growing, GrowingOptions

B, T, E, H, K = 4, 5, 3, 6, 2
ADAPT = ("concat", "scale", "factor")


def sizes(context: int) -> BackboneSizes:
    return BackboneSizes(E, context, ADAPT if context else (), 2)


def recurrent(**options: Any) -> Callable[[int], Any]:
    return lambda size: RecurrentBackbone(RecurrentOptions(hidden_size=H, **options), sizes(size))


BACKBONES: dict[str, Callable[[int], Any]] = {
    **{cell: recurrent(cell=cell) for cell in CELLS},
    "two layers": recurrent(layers=2, layer_norm=True),
    "growing": lambda size: Growing(GrowingOptions(width=H), sizes(size)),
}


@dataclass(frozen=True)
class Given:
    """A backbone with random weights, inputs (B, T, E) and what B contexts decide."""

    backbone: Backbone
    inputs: Tensor
    conditions: Any

    def read(self, steps: int, rows: slice = slice(None)) -> tuple[list[Tensor], Any]:
        """Vectors (N, H) after each of the first tokens of some texts, a token at a time, and the last state."""
        which = torch.arange(B)[rows]
        conditions = self.conditions.select(which)
        state, vectors = self.backbone.start(conditions, len(which)), []
        for step in range(steps):
            vector, state = self.backbone.step(self.inputs[rows, step], conditions, state)
            vectors.append(vector)
        return vectors, state

    def after(self, state: Any, rows: Tensor) -> Tensor:
        """What a state of texts in the contexts `rows` (N,) makes of one more token: all that can be seen of it."""
        vectors, _ = self.backbone.step(self.inputs[rows, -1], self.conditions.select(rows), state)
        return vectors


@pytest.fixture(params=BACKBONES)
def given(request: pytest.FixtureRequest) -> Given:
    return made(request.param, K)


def made(name: str, size: int) -> Given:
    """One of `BACKBONES` in contexts of `size` numbers."""
    backbone = BACKBONES[name](size).eval()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    return Given(backbone, torch.randn(B, T, E), backbone.condition(torch.randn(B, size)))


def test_step_by_step_is_all_at_once(given: Given) -> None:
    start = given.backbone.start(given.conditions, B)
    whole, last = given.backbone.forward(given.inputs, given.conditions, start)
    vectors, state = given.read(T)
    assert whole.shape == (B, T, given.backbone.size) == (B, T, H)
    torch.testing.assert_close(torch.stack(vectors, 1), whole)
    every = torch.arange(B)
    torch.testing.assert_close(given.after(state, every), given.after(last, every))
    lengths = torch.tensor([5, 2, 0, 3])
    cut, last = given.backbone.forward(given.inputs, given.conditions, start, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(cut[row, :length], whole[row, :length])
        _, alone = given.read(length, slice(row, row + 1))
        own = torch.tensor([row])
        torch.testing.assert_close(given.after(last.select(own), own), given.after(alone, own))


def test_states_can_be_selected_joined_and_kept(given: Given) -> None:
    rows = torch.tensor([2, 0, 0, 3])
    _, state = given.read(3)
    torch.testing.assert_close(given.after(state.select(rows), rows), given.after(state, torch.arange(B))[rows])
    _, longer = given.read(4, slice(2, 4))
    _, shorter = given.read(1, slice(0, 2))
    parts = torch.cat([given.after(longer, torch.tensor([2, 3])), given.after(shorter, torch.tensor([0, 1]))])
    both = longer.cat([shorter])
    torch.testing.assert_close(given.after(both, torch.tensor([2, 3, 0, 1])), parts)
    torch.testing.assert_close(given.after(longer.cat([]), torch.tensor([2, 3])), parts[:2])
    room = state.reserve(6)
    room.put(4, shorter)
    room.put(0, longer)
    torch.testing.assert_close(given.after(room.select(torch.tensor([1, 4])), torch.tensor([3, 0])), parts[[1, 2]])
    torch.testing.assert_close(given.after(longer, torch.tensor([2, 3])), parts[:2], msg="a state is a value")


def test_no_text_is_a_text_like_any_other(given: Given) -> None:
    _, state = given.read(2)
    none = torch.zeros(0, dtype=torch.long)
    assert given.after(state.select(none), none).shape == (0, H)


def test_folded_conditions_are_the_same(given: Given) -> None:
    folded = Given(given.backbone, given.inputs, given.backbone.fold(given.conditions))
    for ours, theirs in zip(folded.read(3)[0], given.read(3)[0], strict=True):
        torch.testing.assert_close(ours, theirs)
    one = torch.tensor([1])
    shared = given.backbone.fold(given.conditions.select(one), shared=True)
    state = given.backbone.start(shared, 1).select(torch.zeros(3, dtype=torch.long))
    vectors, _ = given.backbone.step(given.inputs[:3, 0], shared, state)
    same = given.conditions.select(one.expand(3))
    expected, _ = given.backbone.step(given.inputs[:3, 0], same, given.backbone.start(same, 3))
    torch.testing.assert_close(vectors, expected)


def test_packed_conditions_are_the_same(given: Given) -> None:
    vector = torch.randn(B, K)
    every = [given.backbone.condition(vector, packed) for packed in (None, given.backbone.pack())]
    read = [given.backbone.forward(given.inputs, one, given.backbone.start(one, B))[0] for one in every]
    torch.testing.assert_close(*read)


@pytest.mark.parametrize("name", BACKBONES)
def test_without_a_context_all_is_shared(name: str) -> None:
    given = made(name, 0)
    vectors, _ = given.read(2)
    swapped = Given(given.backbone, given.inputs, given.conditions.select(torch.tensor([3, 2, 1, 0])))
    for ours, theirs in zip(vectors, swapped.read(2)[0], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_comes_later_changes_nothing_before(given: Given) -> None:
    start = given.backbone.start(given.conditions, B)
    before, _ = given.backbone.forward(given.inputs, given.conditions, start)
    changed = given.inputs.clone()
    changed[:, 3:] += 1
    changed[0] += 1
    after, _ = given.backbone.forward(changed, given.conditions, start)
    torch.testing.assert_close(after[1:, :3], before[1:, :3])
    assert not torch.allclose(after[1:, 3:], before[1:, 3:])


def test_every_weight_learns(given: Given) -> None:
    vector = torch.randn(B, K, requires_grad=True)
    conditions = given.backbone.condition(vector)
    read, _ = given.backbone.forward(given.inputs, conditions, given.backbone.start(conditions, B))
    module: Any = given.backbone
    read.square().sum().backward()  # type: ignore[no-untyped-call]
    assert vector.grad is not None
    assert bool(vector.grad.any())
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize(("adapt", "printed"), [("concat", 0.0017), ("factor", 0.0625)])
def test_the_share_that_a_context_sets_is_the_printed_one(adapt: str, printed: float) -> None:
    """Of an LSTM of 400 units that reads words of 200 numbers, at a rank of 25 (thesis 2018, section 6.4)."""
    made = RecurrentBackbone(RecurrentOptions(hidden_size=400), BackboneSizes(200, 3, (adapt,), 25))
    assert made.adapted_share() == pytest.approx(printed, abs=0.0002)


def test_the_share_that_a_context_sets_counts_what_differs() -> None:
    options = RecurrentOptions(hidden_size=H, layers=2)
    gates, whole, own = 3 * H, 0, 0
    for rows in (E + H, H + H):
        whole += rows * gates + gates
        own += gates + gates + 2 * (rows + gates)  # a bias, a factor a column, left and right of rank 2
    assert RecurrentBackbone(options, sizes(K)).adapted_share() == own / whole
    assert RecurrentBackbone(options, sizes(0)).adapted_share() == 0.0
