"""Adapters and cells of another package, which uses only the documented names of factorcell.

`install` turns this file into an installed package: a module, and a dist-info folder with its entry points.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from factorcell.nn import Adapter, CellState, LayerSizes, RecurrentStep, Shift
from factorcell.nn.backbones.cells import Coupled, Drop, Norm

MODULE = "their_package"


class Bottleneck(Adapter):
    """A shift of the bias that depends on the context through only two numbers."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.down = nn.Parameter(torch.randn(sizes.context, 2))
        self.up = nn.Parameter(0.1 * torch.randn(2, sizes.outputs))

    def forward(self, vector: Tensor) -> Shift:
        """Shift the bias."""
        return Shift(bias=torch.tanh(vector @ self.down) @ self.up)


class Everything(Adapter):
    """All parts of a shift at once, with its own rank; some parts are transposed or expanded views."""

    needs_rank = True

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        rank = 1 + sizes.rank
        self.left = nn.Parameter(0.1 * torch.randn(sizes.context, rank, sizes.inputs))
        self.right = nn.Parameter(0.1 * torch.randn(rank, sizes.outputs))
        self.both = nn.Parameter(0.1 * torch.randn(sizes.context, sizes.outputs))
        self.outputs = sizes.outputs

    def forward(self, vector: Tensor) -> Shift:
        """Change everything."""
        left = torch.einsum("bk,krd->brd", vector, self.left).transpose(1, 2)
        both = torch.tanh(vector @ self.both)
        scale = (1 + both[:, :1]).expand(-1, self.outputs)
        return Shift(left, self.right.expand(len(vector), -1, -1), both, scale)


class Minimal:
    """The minimal gated unit (Zhou et al. 2016), with its gate applied after the product: h <- (1 - f) h + f n."""

    gates, memory, separate_products = 2, False, True

    def __call__(self, from_input: Tensor, from_hidden: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        """Compute the next state."""
        (f, n), (recurrent_f, recurrent_n) = from_input.chunk(2, dim=-1), from_hidden.chunk(2, dim=-1)
        f = torch.sigmoid(norm(0, f + recurrent_f))
        n = torch.tanh(norm(1, n + f * recurrent_n))
        return CellState((1 - f) * state.hidden + f * drop(n), state.memory)


class Leaky(Coupled):
    """The coupled cell with half of its candidate: a step of its own that extends a class with compiled code."""

    def __call__(self, from_input: Tensor, from_hidden: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        """Halve the candidate."""
        return super().__call__(from_input, from_hidden, state, norm, lambda candidate: drop(candidate) / 2)


ADAPTERS: dict[str, type[Adapter]] = {"bottleneck": Bottleneck, "everything": Everything}
CELLS: dict[str, type[RecurrentStep]] = {"minimal": Minimal, "leaky": Leaky}
ENTRY_POINTS = f"""
[factorcell.adapters]
bottleneck = {MODULE}:Bottleneck
everything = {MODULE}:Everything

[factorcell.cells]
minimal = {MODULE}:Minimal
leaky = {MODULE}:Leaky
"""


def install(folder: Path, source: str = "", entry_points: str = ENTRY_POINTS, name: str = MODULE) -> Path:
    """Install the package into `folder`, for `sys.path`; without `source` its module is a copy of this file."""
    folder.mkdir(exist_ok=True)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    (folder / f"{name}.py").write_text(source or Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    return folder
