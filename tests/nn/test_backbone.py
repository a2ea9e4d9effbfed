"""Tests of the contract of backbones, for all recurrent cells and a backbone whose state is a growing list."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from factorcell.config import CELLS, HuggingFaceOptions, RecurrentOptions
from factorcell.nn.backbones.backbone import Backbone, BackboneSizes
from factorcell.nn.backbones.huggingface import HuggingFaceBackbone
from factorcell.nn.backbones.recurrent import RecurrentBackbone
from tests.plugins import Growing, GrowingOptions

B, T, E, H, K = 4, 5, 3, 6, 2
ADAPT = ("concat", "scale", "factor")


def sizes(context: int) -> BackboneSizes:
    return BackboneSizes(E, context, ADAPT if context else (), 2)


def recurrent(**options: Any) -> Callable[[int], Any]:
    return lambda context: RecurrentBackbone(RecurrentOptions(hidden_size=H, **options), sizes(context))


def transformer(architecture: str, **options: Any) -> Callable[[int], Any]:
    options = {"layers": 2, "hidden_size": 8, **options}
    return lambda context: HuggingFaceBackbone(
        HuggingFaceOptions(architecture=architecture, **options), replace(sizes(context), inputs=8)
    )


BACKBONES: dict[str, Callable[[int], Any]] = {
    **{cell: recurrent(cell=cell) for cell in CELLS},
    **{name: transformer(name) for name in ("gpt2", "llama", "qwen2", "gemma", "mistral")},
    "llama with a prefix": transformer("llama", prefix_vectors=3),
    "llama with one adapted map": transformer("llama", target_modules=("q_proj",)),
    "two layers": recurrent(layers=2, layer_norm=True),
    "growing": lambda context: Growing(GrowingOptions(width=H), sizes(context)),
}


@dataclass(frozen=True)
class Setup:
    """A backbone with random weights, inputs (B, T, E) and the conditions of B contexts."""

    backbone: Backbone
    inputs: Tensor
    conditions: Any

    def read(self, steps: int, rows: slice = slice(None)) -> tuple[list[Tensor], Any]:
        """Read the first tokens of some texts one by one; return vectors (N, H) after each and the last state."""
        texts = torch.arange(B)[rows]
        conditions = self.conditions.select(texts)
        state, vectors = self.backbone.start(conditions, len(texts)), []
        for step in range(steps):
            vector, state = self.backbone.step(self.inputs[rows, step], conditions, state)
            vectors.append(vector)
        return vectors, state

    def next_vectors(self, state: Any, rows: Tensor) -> Tensor:
        """Read one more token in the contexts `rows` (N,), which shows the content of an opaque state."""
        vectors, _ = self.backbone.step(self.inputs[rows, -1], self.conditions.select(rows), state)
        return vectors


@pytest.fixture(params=BACKBONES)
def setup(request: pytest.FixtureRequest) -> Setup:
    return make_setup(request.param, K)


def make_setup(name: str, context: int) -> Setup:
    """Make one of `BACKBONES` for context vectors of size `context`."""
    backbone = BACKBONES[name](context).eval()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    inputs = backbone.size if isinstance(backbone, HuggingFaceBackbone) else E
    return Setup(backbone, torch.randn(B, T, inputs), backbone.condition(torch.randn(B, context)))


def test_steps_equal_forward(setup: Setup) -> None:
    start = setup.backbone.start(setup.conditions, B)
    whole, last = setup.backbone.forward(setup.inputs, setup.conditions, start)
    vectors, state = setup.read(T)
    assert whole.shape == (B, T, setup.backbone.size)
    torch.testing.assert_close(torch.stack(vectors, 1), whole)
    every = torch.arange(B)
    torch.testing.assert_close(setup.next_vectors(state, every), setup.next_vectors(last, every))
    lengths = torch.tensor([5, 2, 0, 3])
    cut, last = setup.backbone.forward(setup.inputs, setup.conditions, start, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(cut[row, :length], whole[row, :length])
        _, alone = setup.read(length, slice(row, row + 1))
        index = torch.tensor([row])
        torch.testing.assert_close(setup.next_vectors(last.select(index), index), setup.next_vectors(alone, index))


def test_states_can_be_selected_concatenated_and_stored(setup: Setup) -> None:
    rows = torch.tensor([2, 0, 0, 3])
    _, state = setup.read(3)
    torch.testing.assert_close(
        setup.next_vectors(state.select(rows), rows), setup.next_vectors(state, torch.arange(B))[rows]
    )
    _, longer = setup.read(4, slice(2, 4))
    _, shorter = setup.read(1, slice(0, 2))
    parts = torch.cat(
        [setup.next_vectors(longer, torch.tensor([2, 3])), setup.next_vectors(shorter, torch.tensor([0, 1]))]
    )
    both = longer.cat([shorter])
    torch.testing.assert_close(setup.next_vectors(both, torch.tensor([2, 3, 0, 1])), parts)
    torch.testing.assert_close(setup.next_vectors(longer.cat([]), torch.tensor([2, 3])), parts[:2])
    buffer = state.reserve(6)
    buffer.put(4, shorter)
    buffer.put(0, longer)
    selected = buffer.select(torch.tensor([1, 4]))
    torch.testing.assert_close(setup.next_vectors(selected, torch.tensor([3, 0])), parts[[1, 2]])
    torch.testing.assert_close(setup.next_vectors(longer, torch.tensor([2, 3])), parts[:2], msg="states do not change")


def test_state_without_texts_works(setup: Setup) -> None:
    _, state = setup.read(2)
    none = torch.zeros(0, dtype=torch.long)
    assert setup.next_vectors(state.select(none), none).shape == (0, setup.backbone.size)


def test_folding_does_not_change_vectors(setup: Setup) -> None:
    folded = Setup(setup.backbone, setup.inputs, setup.backbone.fold(setup.conditions))
    for vector, expected in zip(folded.read(3)[0], setup.read(3)[0], strict=True):
        torch.testing.assert_close(vector, expected)
    context = torch.tensor([1])
    shared = setup.backbone.fold(setup.conditions.select(context), shared=True)
    state = setup.backbone.start(shared, 1).select(torch.zeros(3, dtype=torch.long))
    vectors, _ = setup.backbone.step(setup.inputs[:3, 0], shared, state)
    repeated = setup.conditions.select(context.expand(3))
    expected, _ = setup.backbone.step(setup.inputs[:3, 0], repeated, setup.backbone.start(repeated, 3))
    torch.testing.assert_close(vectors, expected)


def test_packed_weights_do_not_change_vectors(setup: Setup) -> None:
    vector = torch.randn(B, K)
    both = [setup.backbone.condition(vector, packed) for packed in (None, setup.backbone.pack())]
    vectors = [
        setup.backbone.forward(setup.inputs, conditions, setup.backbone.start(conditions, B))[0] for conditions in both
    ]
    torch.testing.assert_close(*vectors)


@pytest.mark.parametrize("name", BACKBONES)
def test_conditions_without_a_context_are_equal_for_all_texts(name: str) -> None:
    setup = make_setup(name, 0)
    vectors, _ = setup.read(2)
    swapped = Setup(setup.backbone, setup.inputs, setup.conditions.select(torch.tensor([3, 2, 1, 0])))
    for vector, expected in zip(swapped.read(2)[0], vectors, strict=True):
        torch.testing.assert_close(vector, expected)


def test_vectors_depend_on_earlier_tokens_only(setup: Setup) -> None:
    start = setup.backbone.start(setup.conditions, B)
    before, _ = setup.backbone.forward(setup.inputs, setup.conditions, start)
    changed = setup.inputs.clone()
    changed[:, 3:, 0] += 1  # layer normalization would remove a change of all numbers
    changed[0] += 1
    after, _ = setup.backbone.forward(changed, setup.conditions, start)
    torch.testing.assert_close(after[1:, :3], before[1:, :3])
    assert not torch.allclose(after[1:, 3:], before[1:, 3:])


def test_all_parameters_have_gradients(setup: Setup) -> None:
    vector = torch.randn(B, K, requires_grad=True)
    conditions = setup.backbone.condition(vector)
    vectors, _ = setup.backbone.forward(setup.inputs, conditions, setup.backbone.start(conditions, B))
    module: Any = setup.backbone
    vectors.square().sum().backward()  # type: ignore[no-untyped-call]
    assert vector.grad is not None
    assert bool(vector.grad.any())
    assert all(parameter.grad is not None for parameter in module.parameters())
