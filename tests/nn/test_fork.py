"""Tests that a process forked after its parent has used a model computes the same results and does not hang.

GNU's OpenMP library would let the child wait forever for threads that exist only in the parent. The parent uses two
threads here, because one thread would hide the problem.
"""

import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from factorcell.completion.online import User, learn_one
from factorcell.generation.generate import GenerationOptions, generate
from factorcell.nn.kernels.library import supports
from factorcell.runs.run import Run
from tests import processes
from tests.service import runs

pytestmark = processes.requires_fork
SECONDS = 120  # timeout of a child; one that waits for missing threads never ends
ROWS = [{"text": text, "city": "Oslo", "who": "ann"} for text in ("abba cab", "ba", "acca b")] * 30


@pytest.fixture(params=["native", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    if name == "off":
        monkeypatch.setenv("FACTORCELL_KERNEL", name)
    elif not supports(torch.zeros(1)):
        pytest.skip("no compiled kernels")
    return name


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runs.make_run(tmp_path / "run", hidden_size=256, embedding_size=128, context_size=64)


@pytest.fixture(autouse=True)
def two_threads(run: Run) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    compute_product()
    yield
    torch.set_num_threads(before)


def compute_product() -> float:
    return float((torch.ones(600, 600) @ torch.ones(600, 600)).exp().clamp(max=1).sum())


def score(run: Run) -> Any:
    return run.score(ROWS).tolist()


def learn(run: Run) -> Any:
    return learn_one(run, User.new(run), "abba cab", {"city": "Oslo"}).vector.tolist()


def write(run: Run) -> Any:
    return [row["text"] for row in generate(run, [{"city": "Oslo"}], options=GenerationOptions(seed=1, max_tokens=5))]


def equal(actual: list[Any], expected: list[Any]) -> bool:
    return actual == expected if isinstance(expected[0], str) else bool(actual == pytest.approx(expected, rel=1e-5))


WORK: dict[str, Callable[[Run], Any]] = {"score": score, "learn_one": learn, "generate": write}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_forked_child_computes_the_same_results(run: Run, kernels: str, work: Callable[[Run], Any]) -> None:
    expected = work(run)

    def repeat() -> None:
        signal.alarm(SECONDS)
        assert torch.get_num_threads() == 1
        compute_product()
        assert equal(work(run), expected)

    def repeat_in_grandchild() -> None:
        repeat()
        assert processes.wait_for_exit(processes.start_process(repeat)) == 0

    assert processes.wait_for_exit(processes.start_process(repeat)) == 0
    assert work(run) == expected
    assert torch.get_num_threads() == 2
    assert processes.wait_for_exit(processes.start_process(repeat_in_grandchild)) == 0


def test_child_forked_by_another_thread_computes_the_same_results(run: Run) -> None:
    expected, status = score(run), list[int]()

    def repeat() -> None:
        signal.alarm(SECONDS)
        assert score(run) == pytest.approx(expected, rel=1e-5)

    def fork() -> None:
        score(run)  # creates the OpenMP threads of this thread
        status.append(processes.wait_for_exit(processes.start_process(repeat)))

    thread = Thread(target=fork)
    thread.start()
    thread.join()
    assert status == [0]


def test_spawned_process_computes_on_all_threads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(torch.get_num_threads).get(SECONDS) == 2
