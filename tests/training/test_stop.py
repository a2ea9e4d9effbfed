"""Stop requests: a training saves a checkpoint at any moment, and resumes to the same result."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.io import files
from factorcell.io.interrupts import Stop, Stopped
from factorcell.runs.run import Run
from factorcell.training import trainer as trainer_module
from factorcell.training.trainer import Row, Trainer, train
from tests.training import test_resume
from tests.training.test_resume import assert_same_run, make_config, read_texts

# Steps with few tokens, so that many table rows are out of date when the training stops.
SMALL: dict[str, Any] = {"batch_tokens": 30, "samples": 2, "epochs": 0.3}


@pytest.fixture(scope="module", autouse=True)
def frequent_rows() -> Iterator[None]:
    """Log a row of losses every two steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "LOG_EVERY", 2)
        yield


def train_in(folder: Path, resume: bool = False) -> Iterator[Row]:
    """Train in `folder`, from the start or from its checkpoint; return the rows of the log."""
    return test_resume.train_in(folder, resume, **SMALL)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted training: 14 steps, evaluations after steps 5, 10 and 14, checkpoints every third step."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert [row["step"] for row in train_in(folder) if row["split"] == "dev"] == [5, 10, 14]
    return folder


def interrupt(rows: Iterable[Row], until: Callable[[Row], bool]) -> None:
    """Read the rows of a training; send SIGINT at the first row for which `until` returns True."""
    is_sent = False
    for row in rows:
        if until(row) and not is_sent:
            is_sent = True
            signal.raise_signal(signal.SIGINT)


def assert_resumes_to(uninterrupted: Path, folder: Path) -> None:
    """Resume a stopped training, and assert that it ends like the uninterrupted one."""
    list(train_in(folder, resume=True))
    assert_same_run(uninterrupted, folder)


@pytest.mark.parametrize(
    ("step", "number"), [(2, signal.SIGTERM), (3, signal.SIGINT), (5, signal.SIGTERM), (14, signal.SIGINT)]
)
def test_a_stop_request_in_a_step_saves_after_the_step(
    step: int, number: signal.Signals, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, folder = Trainer.step, tmp_path / "run"

    def interrupted_step(self: Trainer, batch: Any) -> None:
        original(self, batch)
        if self.progress.step == step:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted_step)
        with pytest.raises(Stopped, match=f"^stopped at step {step} of 14, saved in {folder}$"):
            list(train_in(folder))
    assert files.load_tensors(folder / "checkpoint.safetensors")[1]["step"] == step
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert_resumes_to(uninterrupted, folder)


@pytest.mark.parametrize("which", [1, 3])
def test_a_stop_request_aborts_an_evaluation_which_resuming_repeats(
    which: int, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, folder, count = Run.nats, tmp_path / "run", [0]

    def interrupted_nats(self: Run, corpus: Any) -> Any:
        count[0] += 1
        if count[0] == which:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the evaluation continues")
        return original(self, corpus)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "nats", interrupted_nats)
        with pytest.raises(Stopped, match=f"at step {[5, 10, 14][which - 1]} of 14"):
            list(train_in(folder))
    assert len([row for row in files.read_rows(folder / "log.jsonl") if row["split"] == "dev"]) == which - 1
    assert_resumes_to(uninterrupted, folder)


@pytest.mark.parametrize(("after", "stopped"), [((2, "train"), 3), ((10, "dev"), 11), ((14, "dev"), 14)])
def test_a_stop_request_between_rows_saves_after_the_next_step(
    after: tuple[int, str], stopped: int, uninterrupted: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped, match=f"at step {stopped} of 14"):
        interrupt(train_in(tmp_path / "run"), lambda row: (row["step"], row["split"]) == after)
    assert_resumes_to(uninterrupted, tmp_path / "run")


def test_a_second_stop_request_ends_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def interrupted_step(self: Trainer, batch: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the step continues")

    monkeypatch.setattr(Trainer, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt) as error:
        list(train_in(tmp_path / "run"))
    assert not isinstance(error.value, Stopped)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signal_handlers_of_other_code_are_restored() -> None:
    original = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Stop():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            thread = threading.Thread(target=Stop().__enter__)
            thread.start()
            thread.join()
    finally:
        signal.signal(signal.SIGTERM, original)
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stop_request_is_confirmed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus, dev = read_texts(make_config(**SMALL))
    run = Run.create(tmp_path / "run", make_config(**SMALL), corpus.tokenizer, corpus.schema)
    with pytest.raises(Stopped):
        interrupt(train(run, corpus, dev, resume=False), lambda row: row["step"] == 2)
    assert "Ctrl-C again to stop immediately" in capfd.readouterr().err
