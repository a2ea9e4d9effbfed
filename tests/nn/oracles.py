"""Reference implementations of all adapters and cells in plain numpy, written from their equations.

A new adapter or cell needs a function here. The tests that loop over all of them fail without it.

Shapes of one text: K context, E inputs, H hidden, D = E + H, G gate columns, R rank.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]  # parameters of one adapter by their names
# Layer normalization of a gate (H,) by its index, or of m, whose index follows that of the last gate.
Norm = Callable[[int, Array], Array]


@dataclass
class Adapted:
    """Adapted weights: `matrix` (D, G), `bias` (G,) and the `factors` (D, G) on the matrix."""

    matrix: Array
    bias: Array
    factors: Array


def concat(weights: Adapted, p: Parameters, c: Array) -> None:
    """TACL 2018, equation 2: b' = b + V c."""
    for k, value in enumerate(c):
        weights.bias += value * p["weight"][k]


def scale(weights: Adapted, p: Parameters, c: Array) -> None:
    """Thesis 2018, equation 3.2: a factor 1 + C c on every row of its W, which is a column of this W."""
    weights.factors *= 1 + sum(value * p["weight"][k] for k, value in enumerate(c))


def factor(weights: Adapted, p: Parameters, c: Array) -> None:
    """TACL 2018, equation 3: W' = W + Z_L(c) Z_R(c)."""
    for k, value in enumerate(c):
        for j, other in enumerate(c):
            weights.matrix += value * other * (p["left"][k] @ p["right"][j])


ADAPTERS: dict[str, Callable[[Adapted, Parameters, Array], None]] = {
    "concat": concat,
    "scale": scale,
    "factor": factor,
}


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-value))


def tanh(from_input: Array, from_hidden: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    return np.array([math.tanh(value) for value in norm(0, from_input[0] + from_hidden[0])]), m


def relu(from_input: Array, from_hidden: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    return np.array([max(value, 0.0) for value in norm(0, from_input[0] + from_hidden[0])]), m


def gru(from_input: Array, from_hidden: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """Cho et al. 2014, with the reset gate after the product with h."""
    r = [sigmoid(value) for value in norm(0, from_input[0] + from_hidden[0])]
    z = [sigmoid(value) for value in norm(1, from_input[1] + from_hidden[1])]
    n = norm(2, from_input[2] + np.array(r) * from_hidden[2])
    return np.array([z[j] * h[j] + (1 - z[j]) * math.tanh(n[j]) for j in range(len(h))]), m


def coupled(from_input: Array, from_hidden: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """TACL 2018, equations 8 and 9."""
    i, f, o = (norm(j, gate) for j, gate in enumerate(from_input + from_hidden))
    share = [sigmoid(value + 1) for value in f]
    after = np.array([share[j] * m[j] + (1 - share[j]) * math.tanh(i[j]) for j in range(len(h))])
    return _hidden(norm(3, after), o), after


def lstm(from_input: Array, from_hidden: Array, h: Array, m: Array, norm: Norm) -> tuple[Array, Array]:
    """Gers et al. 2000."""
    i, f, g, o = (norm(j, gate) for j, gate in enumerate(from_input + from_hidden))
    after = np.array([sigmoid(f[j] + 1) * m[j] + sigmoid(i[j]) * math.tanh(g[j]) for j in range(len(h))])
    return _hidden(norm(4, after), o), after


def _hidden(memory: Array, gate: Array) -> Array:
    return np.array([math.tanh(value) * sigmoid(o) for value, o in zip(memory, gate, strict=True)])


# A step: the products of W with x plus b and of W with h (G/H, H), then h and m (H,) -> the next h and m.
CELLS: dict[str, Callable[[Array, Array, Array, Array, Norm], tuple[Array, Array]]] = {
    "coupled": coupled,
    "lstm": lstm,
    "gru": gru,
    "tanh": tanh,
    "relu": relu,
}


def oracle(oracles: Mapping[str, Any], name: str) -> Any:
    """Return the function called `name` of `ADAPTERS` or `CELLS`."""
    kind, table = ("adapter", "ADAPTERS") if oracles is ADAPTERS else ("cell", "CELLS")
    assert name in oracles, f"no oracle of the {kind} {name!r}: add its equation to {table} of tests/nn/oracles.py"
    return oracles[name]


def adapted(matrix: Array, bias: Array, adapters: Mapping[str, Parameters], c: Array) -> Adapted:
    """Return W' (D, G) and b' (G,) in the context `c` (K,), with all factors multiplied into W'."""
    weights = Adapted(matrix.copy(), bias.copy(), np.ones(matrix.shape))
    for name, parameters in adapters.items():
        oracle(ADAPTERS, name)(weights, parameters, c)
    return Adapted(weights.matrix * weights.factors, weights.bias, np.ones(matrix.shape))
