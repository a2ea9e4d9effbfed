"""What every adapter and every cell computes, in plain numpy from its equation: the one table that the tests ask.

Whoever adds an adapter or a cell adds its function here; until then the tests that loop over all of them say so.

Shapes of one text: K context, E inputs, H hidden, D = E + H, G gate columns, R rank.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]  # of one adapter, by their names
Norm = Callable[[int, Array], Array]  # layer normalisation of a gate (H,) by its number, or of m, which is the last


@dataclass
class Adapted:
    """What adapters change: `matrix` (D, G), `bias` (G,) and the `factors` (D, G) on the matrix."""

    matrix: Array
    bias: Array
    factors: Array


def concat(to: Adapted, p: Parameters, c: Array) -> None:
    """TACL 2018, equation 2: b' = b + V c."""
    for k, value in enumerate(c):
        to.bias += value * p["weight"][k]


def scale(to: Adapted, p: Parameters, c: Array) -> None:
    """Thesis 2018, equation 3.2: a factor on every row of W as printed, which is a column here, 1 + C c."""
    to.factors *= 1 + sum(value * p["weight"][k] for k, value in enumerate(c))


def factor(to: Adapted, p: Parameters, c: Array) -> None:
    """TACL 2018, equation 3: W' = W + Z_L(c) Z_R(c)."""
    for k, value in enumerate(c):
        for j, other in enumerate(c):
            to.matrix += value * other * (p["left"][k] @ p["right"][j])


ADAPTERS: dict[str, Callable[[Adapted, Parameters, Array], None]] = {
    "concat": concat,
    "scale": scale,
    "factor": factor,
}


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-value))


def tanh(given: Array, product: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    return np.array([math.tanh(value) for value in norm(0, given[0] + product[0])]), m


def relu(given: Array, product: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    return np.array([max(value, 0.0) for value in norm(0, given[0] + product[0])]), m


def gru(given: Array, product: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """Cho et al. 2014, the reset gate after the product with h."""
    r = [sigmoid(value) for value in norm(0, given[0] + product[0])]
    z = [sigmoid(value) for value in norm(1, given[1] + product[1])]
    n = norm(2, given[2] + np.array(r) * product[2])
    return np.array([z[j] * h[j] + (1 - z[j]) * math.tanh(n[j]) for j in range(len(h))]), m


def coupled(given: Array, product: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """TACL 2018, equations 8 and 9."""
    i, f, o = (norm(j, gate) for j, gate in enumerate(given + product))
    share = [sigmoid(value + 1) for value in f]
    after = np.array([share[j] * m[j] + (1 - share[j]) * math.tanh(i[j]) for j in range(len(h))])
    return _shown(norm(3, after), o), after


def lstm(given: Array, product: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """Gers et al. 2000."""
    i, f, g, o = (norm(j, gate) for j, gate in enumerate(given + product))
    after = np.array([sigmoid(f[j] + 1) * m[j] + sigmoid(i[j]) * math.tanh(g[j]) for j in range(len(h))])
    return _shown(norm(4, after), o), after


def _shown(memory: Array, gate: Array) -> Array:
    return np.array([math.tanh(value) * sigmoid(o) for value, o in zip(memory, gate, strict=True)])


# A step: the shares of the gates (G/H, H) of x and b and of h, then h and m (H,) -> the next h and m.
CELLS: dict[str, Callable[[Array, Array, Array, Array, Norm], tuple[Array, Array]]] = {
    "coupled": coupled,
    "lstm": lstm,
    "gru": gru,
    "tanh": tanh,
    "relu": relu,
}


def oracle(of: Mapping[str, Any], name: str) -> Any:
    """The function of `name` in `ADAPTERS` or `CELLS`."""
    kind, table = ("adapter", "ADAPTERS") if of is ADAPTERS else ("cell", "CELLS")
    assert name in of, f"no oracle of the {kind} {name!r}: add its equation to {table} of tests/model/oracles.py"
    return of[name]


def adapted(matrix: Array, bias: Array, adapters: Mapping[str, Parameters], c: Array) -> Adapted:
    """W' (D, G) and b' (G,) in the context `c` (K,), its factors multiplied in."""
    to = Adapted(matrix.copy(), bias.copy(), np.ones(matrix.shape))
    for name, parameters in adapters.items():
        oracle(ADAPTERS, name)(to, parameters, c)
    return Adapted(to.matrix * to.factors, to.bias, np.ones(matrix.shape))
