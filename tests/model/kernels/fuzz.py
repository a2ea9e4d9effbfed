"""Compiled functions on arrays of any shape give what plain PyTorch gives.

    python -m tests.model.kernels.fuzz LIBRARY CASES

runs CASES cases in the compiled code of that file, which sanitizers may watch, and prints how many there were.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from factorcell.completion.compiled import CompiledEngine, PackedPrefix
from factorcell.completion.search import SearchRequest
from factorcell.model.kernels import library, recurrence, softmax
from factorcell.model.kernels.drawing import ForbiddenTokens, PackedTable, SampleRequest, next_tokens
from factorcell.model.kernels.recurrence import PackedWeight, RecurrenceInputs
from factorcell.model.packing import PRODUCT_TYPES
from factorcell.model.run import Run
from factorcell.training import row_adam
from tests.completion.test_search import packed_in, typed_in, written_out
from tests.model.kernels.test_recurrence import Arrays, arrays, distance, learned, slow
from tests.small_runs import as_any, make_letters

HERE = library.library()
VARIANTS = [] if HERE is None else library.VARIANTS[: HERE.factorcell_best() + 1]
counts: Counter[str] = Counter()

RAGGED = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 9])


def spread(data: st.DataObject, given: Arrays) -> None:
    """Put an array with gaps, of the same numbers, for one of those `given`."""
    name = data.draw(st.sampled_from([name for name, x in given.items() if x is not None and x.numel()]))
    x = given[name]
    assert x is not None
    given[name] = torch.stack([x, x], -1)[..., 0]


def recurrences(data: st.DataObject) -> None:
    flags = {name: data.draw(st.booleans()) for name in ("drop", "norm", "ragged", "scale", "feed")}
    batch, steps, rank = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3)), data.draw(RAGGED)
    hidden, seed = data.draw(st.integers(2, 35)), data.draw(st.integers(0, 99))
    given, half = arrays(batch, steps, hidden, rank, seed=seed, **flags), data.draw(st.booleans())
    with patch.object(library, "half", lambda: half):
        if data.draw(st.booleans()):
            spread(data, given)
        fast, plain = learned(given, double=False), learned(given, double=True)
        packed = PackedWeight.of(fast["weight"]) if data.draw(st.booleans()) else None  # type: ignore[arg-type]
        results = [recurrence.run(RecurrenceInputs(**fast, packed=packed)), slow(plain)]  # type: ignore[arg-type]
        for outputs, last, memory in results:
            ((outputs * 0.7).sum() + (last * 0.3).sum() + (memory**2).sum()).backward()  # type: ignore[no-untyped-call]
    counts["recurrence"] += 1
    if flags["norm"] and hidden < (20 if half else 8):
        return  # the deviation of a few units may be next to nothing, and then magnifies every rounding
    bound = 0.2 if half else 2e-3
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got.double(), expected, atol=bound, rtol=bound)
    for name, x in fast.items():
        expected_gradient = None if plain[name] is None else plain[name].grad  # type: ignore[union-attr]
        if not half and x is not None and expected_gradient is not None:
            assert distance(x.grad.double(), expected_gradient) < 0.02, name  # type: ignore[union-attr]


def softmaxes(data: st.DataObject) -> None:
    texts, each = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([0, 1, 2, 5, 100, 300]))
    size, width = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 35))
    random, half = torch.Generator().manual_seed(data.draw(st.integers(0, 99))), data.draw(st.booleans())
    given: Arrays = {
        "values": torch.randn(texts * each, width, generator=random),
        "table": torch.randn(size, width, generator=random),
        "bias": torch.randn(texts, size, generator=random) if data.draw(st.booleans()) else None,
    }
    if given["bias"] is None:
        given["bias"] = torch.randn(size, generator=random)
    back: Arrays = {
        "targets": torch.randint(size, (texts * each,), generator=random),
        "sums": torch.randn(texts * each, generator=random),
        "scale": torch.randn(texts * each, generator=random),
    }
    with patch.object(library, "half", lambda: half):
        if data.draw(st.booleans()):
            spread(data, given)
        back["logits"] = torch.empty(texts * each, size) if data.draw(st.booleans()) else None
        back["sums"] = got = softmax.log_sums(**given, logits=back["logits"])  # type: ignore[arg-type]
        wanted = [data.draw(st.booleans()) for _ in given]
        made = softmax.gradients(**given, **back, half=half, needed=wanted)  # type: ignore[arg-type]
    counts["softmax"] += 1
    values, table, bias = leaves = [x.double().requires_grad_() for x in given.values() if x is not None]
    logits = values @ table.T + (bias if bias.dim() == 1 else bias.repeat_interleave(each, 0))
    bound = 0.4 if half else 1e-4
    torch.testing.assert_close(got.double(), logits.logsumexp(1).detach(), atol=bound, rtol=bound)
    nats = F.cross_entropy(logits, back["targets"], reduction="none") * back["scale"]  # type: ignore[arg-type, operator]
    expected = torch.autograd.grad(nats.sum(), leaves)
    for one, array, asked in zip(made, expected, wanted, strict=True):
        assert (one is not None) == asked
        if one is not None and each:
            assert float((one - array).norm()) <= (0.05 if half else 1e-4) * float(array.norm()) + 1e-4


def drawings(data: st.DataObject) -> None:
    texts, size, width = (data.draw(st.integers(1, most)) for most in (40, 200, 35))
    random, half = torch.Generator().manual_seed(data.draw(st.integers(0, 99))), data.draw(st.booleans())
    given: Arrays = {
        "values": torch.randn(texts, width, generator=random),
        "table": torch.randn(size, width, generator=random),
        "bias": torch.randn(3, size, generator=random),
        "context": torch.randint(3, (texts,), generator=random),
        "again": torch.randint(size, (data.draw(st.integers(0, 9)),), generator=random),
        "places": torch.rand(texts, 2, dtype=torch.double, generator=random),
    }
    after = torch.randint(texts, given["again"].shape, generator=random).sort().values  # type: ignore[union-attr]

    with patch.object(library, "half", lambda: half), patch.object(library, "threads", lambda jobs: 2):
        top_k, top_p = data.draw(st.integers(0, 9)), data.draw(st.sampled_from([0.5, 1.0]))
        draws = SampleRequest(given["places"], 0.7, top_k, top_p)  # type: ignore[arg-type]
        barred, packed = ForbiddenTokens((0,), after, given["again"], size - 1), PackedTable.of(given["table"])  # type: ignore[arg-type]
        tokens, logs = next_tokens(given["values"], packed, given["bias"], given["context"], barred, draws)  # type: ignore[arg-type]
    values, table, bias, context = (given[name] for name in ("values", "table", "bias", "context"))
    model = (values @ table.T + bias[context]).log_softmax(1)  # type: ignore[union-attr, operator, index]
    torch.testing.assert_close(logs, model.gather(1, tokens), atol=0.4 if half else 1e-4, rtol=0.05)
    counts["drawing"] += 1


def rows(data: st.DataObject) -> None:
    size, width = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 35))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    index = torch.randperm(size, generator=random)[: data.draw(st.integers(0, size))]
    given: Arrays = {name: torch.rand(size, width, generator=random) + 0.1 for name in ("table", "first", "second")}
    given["rows"] = index
    catching_up = data.draw(st.booleans())
    if catching_up:
        given["columns"] = torch.rand(len(index), 5, generator=random)
    else:
        given["gradient"] = torch.randn(len(index), width, generator=random)
        given["constants"] = torch.tensor([row_adam.BETA1, row_adam.BETA2, row_adam.EPSILON, 0.99, 0.1, 1.3])
    ours, theirs = ({name: x.clone() for name, x in given.items() if x is not None} for _ in range(2))
    row_adam._call(**ours)
    tables = theirs["table"], theirs["first"], theirs["second"], theirs["rows"]
    if catching_up:
        row_adam._catch_up(*tables, theirs["columns"])
    else:
        row_adam._step(*tables, theirs["gradient"], row_adam._Factors(0.99, 0.1, 1.3))
    for name in ("table", "first", "second"):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-4)
    counts["rows"] += 1


@lru_cache(200)
def letters(hidden: int, width: int, rank: int, norm: bool, seed: int) -> Run:
    sizes = {"hidden_size": hidden, "embedding_size": width, "rank": rank, "layer_norm": norm}
    return make_letters(seed=seed, adapt=("factor",) if rank else (), spread=0.4, **sizes)  # type: ignore[arg-type]


@lru_cache(1000)
def engine_of(run: Run, prefix: str, products: str, variant: str) -> tuple[CompiledEngine, PackedPrefix]:
    return packed_in(run, prefix, products=products)


written = lru_cache(1000)(written_out)


def searches(data: st.DataObject) -> None:
    hidden, width = data.draw(st.sampled_from([1, 5, 16, 33])), data.draw(st.sampled_from([1, 4, 17]))
    rank, norm = data.draw(st.sampled_from([0, 1, 17])), data.draw(st.booleans())
    run, prefix = (
        letters(hidden, width, rank, norm, data.draw(st.integers(0, 1))),
        data.draw(st.text("abz", max_size=2)),
    )
    products, most = data.draw(st.sampled_from(PRODUCT_TYPES)), data.draw(st.integers(0, 3))
    engine, typed = engine_of(run, prefix, products, os.environ["FACTORCELL_KERNEL"])
    k = data.draw(st.integers(1, 9))
    plain = typed_in(run, prefix)
    assert typed.ids == plain.ids
    for after, (state,), logs in zip(typed.rows, as_any(plain.states), plain.logs, strict=True):
        expected = torch.cat([state.hidden[0], state.memory[0], logs[0]])
        torch.testing.assert_close(after, expected, atol=2e-4, rtol=1e-3)
    (found,) = engine.search([SearchRequest(typed, k, most)], threads=2, batch=data.draw(st.integers(1, 9)))
    every = written(run, prefix, "Oslo", most)
    scores = [one.log_probability for one in found.completions]
    assert scores == pytest.approx([every[one.ids] for one in found.completions], abs=1e-3)
    if products == PRODUCT_TYPES[0]:
        assert scores == pytest.approx(sorted(every.values(), reverse=True)[:k], abs=1e-3)
    counts["search"] += 1


EVERY = {recurrences: 0.25, softmaxes: 0.2, drawings: 0.15, rows: 0.15, searches: 0.25}  # shares of all cases


def fuzz(one: Callable[[st.DataObject], None], cases: int) -> None:
    for variant in VARIANTS:
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("FACTORCELL_KERNEL", variant)
            quiet = settings(max_examples=-(-cases // len(VARIANTS)), derandomize=True, database=None, deadline=None)
            settings(quiet, suppress_health_check=list(HealthCheck))(given(data=st.data())(one))()


def main(path: str, cases: str) -> None:
    """Run all functions of the library at `path`; the last line says how many cases there were of each."""
    library.LIBRARY = Path(path)
    library.library.cache_clear()
    for one, share in EVERY.items():
        fuzz(one, round(int(cases) * share))
        print(f"{one.__name__}: {sum(counts.values())} cases so far", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(*sys.argv[1:])
