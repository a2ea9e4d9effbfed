"""What another package adds: adapters and cells that know factorcell by its documented names alone.

`install` makes an installed package of this file: a module, and a dist-info folder with its entry points.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from factorcell.model import Adapter, CellState, LayerSizes, RecurrentStep, Shift
from factorcell.model.cells import Coupled, Drop, Norm

MODULE = "their_package"


class Bottleneck(Adapter):
    """A shifted bias that depends on two numbers of the context only."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.down = nn.Parameter(torch.randn(sizes.context, 2))
        self.up = nn.Parameter(0.1 * torch.randn(2, sizes.outputs))

    def forward(self, vector: Tensor) -> Shift:
        """See `Adapter`."""
        return Shift(bias=torch.tanh(vector @ self.down) @ self.up)


class Everything(Adapter):
    """All parts of a shift at once, of its own rank, some of them transposed or expanded views."""

    needs_rank = True

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        rank = 1 + sizes.rank
        self.left = nn.Parameter(0.1 * torch.randn(sizes.context, rank, sizes.inputs))
        self.right = nn.Parameter(0.1 * torch.randn(rank, sizes.outputs))
        self.both = nn.Parameter(0.1 * torch.randn(sizes.context, sizes.outputs))
        self.outputs = sizes.outputs

    def forward(self, vector: Tensor) -> Shift:
        """See `Adapter`."""
        left = torch.einsum("bk,krd->brd", vector, self.left).transpose(1, 2)
        both = torch.tanh(vector @ self.both)
        scale = (1 + both[:, :1]).expand(-1, self.outputs)
        return Shift(left, self.right.expand(len(vector), -1, -1), both, scale)


class Minimal:
    """The minimal gated unit, its gate after the product with h (Zhou et al. 2016): f, n; h <- (1 - f) h + f n."""

    gates, memory, separate_products = 2, False, True

    def __call__(self, given: Tensor, product: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        """See `RecurrentStep`."""
        (f, n), (recurrent_f, recurrent_n) = given.chunk(2, dim=-1), product.chunk(2, dim=-1)
        f = torch.sigmoid(norm(0, f + recurrent_f))
        n = torch.tanh(norm(1, n + f * recurrent_n))
        return CellState((1 - f) * state.hidden + f * drop(n), state.memory)


class Leaky(Coupled):
    """The coupled cell with half of what it writes: a step of its own under a class that is compiled."""

    def __call__(self, given: Tensor, product: Tensor, state: CellState, norm: Norm, drop: Drop) -> CellState:
        """See `RecurrentStep`."""
        return super().__call__(given, product, state, norm, lambda candidate: drop(candidate) / 2)


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
    """A folder for `sys.path` with the package in it, its `source` this file's own unless it is given."""
    folder.mkdir(exist_ok=True)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    (folder / f"{name}.py").write_text(source or Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    return folder
