"""A training that is asked to stop saves where it stands, at any moment."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell import files
from factorcell.interrupts import Stop, Stopped
from factorcell.model.run import Run
from factorcell.training.loop import train
from factorcell.training.trainer import Row, Trainer
from tests.training import test_resume
from tests.training.test_resume import config, same, texts

# Steps that see few tokens, so that others wait to be caught up when the training is left.
SMALL: dict[str, Any] = {"batch_tokens": 30, "samples": 2, "epochs": 0.3}


def go(folder: Path, resume: bool = False) -> Iterator[Row]:
    """Train in `folder`, from the beginning or from its checkpoint."""
    return test_resume.go(folder, resume, **SMALL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing interrupted: 14 steps, evaluations after 5, 10 and 14, checkpoints at every third."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert [row["step"] for row in go(folder) if row["split"] == "dev"] == [5, 10, 14]
    return folder


def read(rows: Iterable[Row], until: Callable[[Row], bool]) -> None:
    """Read rows of a training; Ctrl-C at the first that is `until`."""
    asked = False
    for row in rows:
        if until(row) and not asked:
            asked = True
            signal.raise_signal(signal.SIGINT)


def resumed_is(whole: Path, folder: Path) -> None:
    """A training that was left ends as the one that was not."""
    list(go(folder, resume=True))
    same(whole, folder)


@pytest.mark.parametrize(
    ("step", "number"), [(2, signal.SIGTERM), (3, signal.SIGINT), (5, signal.SIGTERM), (14, signal.SIGINT)]
)
def test_a_stop_in_a_step_saves_after_it(
    step: int, number: signal.Signals, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, folder = Trainer.step, tmp_path / "run"

    def asked(self: Trainer, batch: Any) -> None:
        original(self, batch)
        if self.progress.step == step:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", asked)
        with pytest.raises(Stopped, match=f"^stopped at step {step} of 14, saved in {folder}$"):
            list(go(folder))
    assert files.load_tensors(folder / "checkpoint.safetensors")[1]["step"] == step
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    resumed_is(whole, folder)


@pytest.mark.parametrize("which", [1, 3])
def test_a_stop_abandons_an_evaluation_which_is_repeated_when_resumed(
    which: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, folder, begun = Run.nats, tmp_path / "run", [0]

    def asked(self: Run, corpus: Any) -> Any:
        begun[0] += 1
        if begun[0] == which:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the evaluation goes on")
        return original(self, corpus)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "nats", asked)
        with pytest.raises(Stopped, match=f"at step {[5, 10, 14][which - 1]} of 14"):
            list(go(folder))
    assert len([row for row in files.read_rows(folder / "log.jsonl") if row["split"] == "dev"]) == which - 1
    resumed_is(whole, folder)


@pytest.mark.parametrize(("after", "stopped"), [((2, "train"), 3), ((10, "dev"), 11), ((14, "dev"), 14)])
def test_a_stop_between_rows_saves_after_the_next_step(
    after: tuple[int, str], stopped: int, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped, match=f"at step {stopped} of 14"):
        read(go(tmp_path / "run"), lambda row: (row["step"], row["split"]) == after)
    resumed_is(whole, tmp_path / "run")


def test_a_second_stop_ends_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def asked(self: Trainer, batch: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the step goes on")

    monkeypatch.setattr(Trainer, "step", asked)
    with pytest.raises(KeyboardInterrupt) as error:
        list(go(tmp_path / "run"))
    assert not isinstance(error.value, Stopped)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signal_handlers_of_others_are_kept() -> None:
    own = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Stop():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            thread = threading.Thread(target=Stop().__enter__)
            thread.start()
            thread.join()
    finally:
        signal.signal(signal.SIGTERM, own)
    first, second = Stop(), Stop()
    first.__enter__()
    with second:
        first.__exit__()
        signal.raise_signal(signal.SIGINT)
        assert (first.is_requested, second.is_requested) == (False, True)
    with pytest.raises(KeyboardInterrupt):  # the handler of the first is back, which has ended
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_stop_is_confirmed_if_progress_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for progress in (True, False):
        corpus, dev = texts(config(**SMALL))
        run = Run.create(tmp_path / str(progress), config(**SMALL), corpus.tokenizer, corpus.schema)
        with pytest.raises(Stopped):
            read(train(run, corpus, dev, resume=False, progress=progress), lambda row: row["step"] == 2)
        assert ("Ctrl-C again to stop immediately" in capfd.readouterr().err) == progress
