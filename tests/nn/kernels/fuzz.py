"""Fuzzing: compiled functions on arrays of random shapes give the same results as plain PyTorch.

    python -m tests.nn.kernels.fuzz LIBRARY CASES

runs CASES cases in the compiled code of the file LIBRARY, which may be built with sanitizers, and prints their number.
"""

import logging
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

from factorcell.completion.compiled import CompiledEngine
from factorcell.completion.search import PrefixState, SearchRequest
from factorcell.nn.kernels import library, recurrence, softmax
from factorcell.nn.kernels.drawing import ForbiddenTokens, PackedTable, SampleRequest, next_tokens
from factorcell.nn.kernels.recurrence import PackedWeight, RecurrenceInputs
from factorcell.nn.packing import PRODUCT_TYPES
from factorcell.runs.run import Run
from factorcell.training import adam
from tests.completion.test_search import compiled_state, enumerate_completions, plain_state, set_batch_size
from tests.kernels import VARIANTS
from tests.nn.kernels.test_recurrence import Arrays, arrays, distance, make_leaves, run_plain_loop
from tests.small_runs import make_letters

counts: Counter[str] = Counter()

RAGGED = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 9])


def make_one_noncontiguous(data: st.DataObject, inputs: Arrays) -> None:
    """Replace one of `inputs` by a noncontiguous array with the same numbers."""
    name = data.draw(st.sampled_from([name for name, x in inputs.items() if x is not None and x.numel()]))
    x = inputs[name]
    assert x is not None
    inputs[name] = torch.stack([x, x], -1)[..., 0]


def recurrences(data: st.DataObject) -> None:
    flags = {name: data.draw(st.booleans()) for name in ("drop", "norm", "ragged", "scale", "feed")}
    batch, steps, rank = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3)), data.draw(RAGGED)
    hidden, seed = data.draw(st.integers(2, 35)), data.draw(st.integers(0, 99))
    inputs, half = arrays(batch, steps, hidden, rank, seed=seed, **flags), data.draw(st.booleans())
    with patch.object(library, "uses_bfloat16", lambda: half):
        if data.draw(st.booleans()):
            make_one_noncontiguous(data, inputs)
        fast, plain = make_leaves(inputs, double=False), make_leaves(inputs, double=True)
        packed = PackedWeight.of(fast["weight"]) if data.draw(st.booleans()) else None  # type: ignore[arg-type]
        results = [recurrence.run(RecurrenceInputs(**fast, packed=packed)), run_plain_loop(plain)]  # type: ignore[arg-type]
        for outputs, last, memory in results:
            ((outputs * 0.7).sum() + (last * 0.3).sum() + (memory**2).sum()).backward()  # type: ignore[no-untyped-call]
    counts["recurrence"] += 1
    if flags["norm"] and hidden < (20 if half else 8):
        return  # the deviation of a few units may be near zero, which magnifies every rounding error
    bound = 0.2 if half else 2e-3
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result.double(), expected, atol=bound, rtol=bound)
    for name, x in fast.items():
        expected_gradient = None if plain[name] is None else plain[name].grad  # type: ignore[union-attr]
        if not half and x is not None and expected_gradient is not None:
            assert distance(x.grad.double(), expected_gradient) < 0.02, name  # type: ignore[union-attr]


def softmaxes(data: st.DataObject) -> None:
    texts, rows_per_text = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([0, 1, 2, 5, 100, 300]))
    size, width = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 35))
    random, half = torch.Generator().manual_seed(data.draw(st.integers(0, 99))), data.draw(st.booleans())
    inputs: Arrays = {
        "values": torch.randn(texts * rows_per_text, width, generator=random),
        "table": torch.randn(size, width, generator=random),
        "bias": torch.randn(texts, size, generator=random) if data.draw(st.booleans()) else None,
    }
    if inputs["bias"] is None:
        inputs["bias"] = torch.randn(size, generator=random)
    backward_inputs: Arrays = {
        "targets": torch.randint(size, (texts * rows_per_text,), generator=random),
        "sums": torch.randn(texts * rows_per_text, generator=random),
        "scale": torch.randn(texts * rows_per_text, generator=random),
    }
    with patch.object(library, "uses_bfloat16", lambda: half):
        if data.draw(st.booleans()):
            make_one_noncontiguous(data, inputs)
        backward_inputs["logits"] = torch.empty(texts * rows_per_text, size) if data.draw(st.booleans()) else None
        backward_inputs["sums"] = sums = softmax.log_sums(**inputs, logits=backward_inputs["logits"])  # type: ignore[arg-type]
        needed = [data.draw(st.booleans()) for _ in inputs]
        gradients = softmax.gradients(**inputs, **backward_inputs, is_bfloat16=half, needed=needed)  # type: ignore[arg-type]
    counts["softmax"] += 1
    values, table, bias = leaves = [x.double().requires_grad_() for x in inputs.values() if x is not None]
    logits = values @ table.T + (bias if bias.dim() == 1 else bias.repeat_interleave(rows_per_text, 0))
    bound = 0.4 if half else 1e-4
    torch.testing.assert_close(sums.double(), logits.logsumexp(1).detach(), atol=bound, rtol=bound)
    nats = F.cross_entropy(logits, backward_inputs["targets"], reduction="none") * backward_inputs["scale"]  # type: ignore[arg-type, operator]
    expected = torch.autograd.grad(nats.sum(), leaves)
    for gradient, array, is_needed in zip(gradients, expected, needed, strict=True):
        assert (gradient is not None) == is_needed
        if gradient is not None and rows_per_text:
            assert float((gradient - array).norm()) <= (0.05 if half else 1e-4) * float(array.norm()) + 1e-4


def drawings(data: st.DataObject) -> None:
    texts, size, width = (data.draw(st.integers(1, high)) for high in (40, 200, 35))
    random, half = torch.Generator().manual_seed(data.draw(st.integers(0, 99))), data.draw(st.booleans())
    inputs: Arrays = {
        "values": torch.randn(texts, width, generator=random),
        "table": torch.randn(size, width, generator=random),
        "bias": torch.randn(3, size, generator=random),
        "context": torch.randint(3, (texts,), generator=random),
        "forbidden": torch.randint(size, (data.draw(st.integers(0, 9)),), generator=random),
        "places": torch.rand(texts, 2, dtype=torch.double, generator=random),
    }
    forbidden_texts = torch.randint(texts, inputs["forbidden"].shape, generator=random).sort().values  # type: ignore[union-attr]

    with patch.object(library, "uses_bfloat16", lambda: half), patch.object(library, "thread_count", lambda jobs: 2):
        top_k, top_p = data.draw(st.integers(0, 9)), data.draw(st.sampled_from([0.5, 1.0]))
        request = SampleRequest(inputs["places"], 0.7, top_k, top_p)  # type: ignore[arg-type]
        forbidden = ForbiddenTokens((0,), forbidden_texts, inputs["forbidden"], size - 1)  # type: ignore[arg-type]
        packed = PackedTable.of(inputs["table"])  # type: ignore[arg-type]
        tokens, logs = next_tokens(inputs["values"], packed, inputs["bias"], inputs["context"], forbidden, request)  # type: ignore[arg-type]
    values, table, bias, context = (inputs[name] for name in ("values", "table", "bias", "context"))
    model = (values @ table.T + bias[context]).log_softmax(1)  # type: ignore[union-attr, operator, index]
    torch.testing.assert_close(logs, model.gather(1, tokens), atol=0.4 if half else 1e-4, rtol=0.05)
    counts["drawing"] += 1


def rows(data: st.DataObject) -> None:
    size, width = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 35))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    index = torch.randperm(size, generator=random)[: data.draw(st.integers(0, size))]
    inputs: Arrays = {
        name: torch.rand(size, width, generator=random) + 0.1 for name in ("table", "mean", "squared_mean")
    }
    inputs["rows"] = index
    catching_up = data.draw(st.booleans())
    if catching_up:
        inputs["columns"] = torch.rand(len(index), 5, generator=random)
    else:
        inputs["gradient"] = torch.randn(len(index), width, generator=random)
        inputs["constants"] = torch.tensor([adam.BETA1, adam.BETA2, adam.EPSILON, 0.99, 0.1, 1.3])
    compiled, plain = ({name: x.clone() for name, x in inputs.items() if x is not None} for _ in range(2))
    adam._call_kernel(**compiled)
    tables = plain["table"], plain["mean"], plain["squared_mean"], plain["rows"]
    if catching_up:
        adam._catch_up(*tables, plain["columns"])
    else:
        adam._step(*tables, plain["gradient"], (0.99, 0.1, 1.3))
    for name in ("table", "mean", "squared_mean"):
        torch.testing.assert_close(compiled[name], plain[name], atol=1e-5, rtol=1e-4)
    counts["rows"] += 1


@lru_cache(200)
def letters(hidden: int, width: int, rank: int, norm: bool, seed: int) -> Run:
    sizes = {"hidden_size": hidden, "embedding_size": width, "rank": rank, "layer_norm": norm}
    return make_letters(seed=seed, adapt=("factor",) if rank else (), spread=0.4, **sizes)  # type: ignore[arg-type]


@lru_cache(1000)
def engine_of(run: Run, prefix: str, products: str, variant: str) -> tuple[CompiledEngine, PrefixState]:
    return compiled_state(run, prefix, products=products)


cached_texts = lru_cache(1000)(enumerate_completions)


def searches(data: st.DataObject) -> None:
    hidden, width = data.draw(st.sampled_from([1, 5, 16, 33])), data.draw(st.sampled_from([1, 4, 17]))
    rank, norm = data.draw(st.sampled_from([0, 1, 17])), data.draw(st.booleans())
    run, prefix = (
        letters(hidden, width, rank, norm, data.draw(st.integers(0, 1))),
        data.draw(st.text("abz", max_size=2)),
    )
    products, max_tokens = data.draw(st.sampled_from(PRODUCT_TYPES)), data.draw(st.integers(0, 3))
    engine, typed = engine_of(run, prefix, products, os.environ["FACTORCELL_KERNEL"])
    k = data.draw(st.integers(1, 9))
    plain = plain_state(run, prefix)
    assert typed.ids == plain.ids
    for after, ((state,), logs) in zip(typed.states, plain.states, strict=True):
        expected = torch.cat([state.hidden[0], state.memory[0], logs[0]])
        torch.testing.assert_close(after, expected, atol=2e-4, rtol=1e-3)
    with set_batch_size(data.draw(st.integers(1, 9))):
        result = engine.search(SearchRequest(typed, k, max_tokens))
    texts = cached_texts(run, prefix, "Oslo", max_tokens)
    scores = [item.log_probability for item in result.completions]
    assert scores == pytest.approx([texts[item.ids] for item in result.completions], abs=1e-3)
    if products == PRODUCT_TYPES[0]:
        assert scores == pytest.approx(sorted(texts.values(), reverse=True)[:k], abs=1e-3)
    counts["search"] += 1


SHARES = {recurrences: 0.25, softmaxes: 0.2, drawings: 0.15, rows: 0.15, searches: 0.25}  # shares of all cases


def fuzz(function: Callable[[st.DataObject], None], cases: int) -> None:
    """Run `function` on random data, distributed over the instruction sets."""
    for variant in VARIANTS:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("FACTORCELL_KERNEL", variant)
            quiet = settings(max_examples=-(-cases // len(VARIANTS)), derandomize=True, database=None, deadline=None)
            settings(quiet, suppress_health_check=list(HealthCheck))(given(data=st.data())(function))()


def main(path: str, cases: str) -> None:
    """Run all functions of the library at `path`; the last line printed counts the cases of each."""
    library.LIBRARY = Path(path)
    library.library.cache_clear()
    for function, share in SHARES.items():
        fuzz(function, round(int(cases) * share))
        print(f"{function.__name__}: {sum(counts.values())} cases so far", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    torch.set_num_threads(2)
    logging.getLogger("factorcell").setLevel(logging.ERROR)  # without findings about empty texts
    main(*sys.argv[1:])
