"""Training in several processes: the gradients, losses and folders of one process; ends of processes; resuming."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from factorcell import fit
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training import processes, sharding
from factorcell.training import trainer as trainer_module
from factorcell.training.fit import finetune, read_corpora
from factorcell.training.optimization import Optimization
from factorcell.training.trainer import train
from tests import synthetic
from tests.ports import free_port
from tests.pretrained_models import write_pretrained
from tests.processes import requires_fork, start_process, wait_for_exit
from tests.small_runs import SMALL_HASH

pytestmark = requires_fork

ROWS, DEV = synthetic.two_dialects(150, 1)[0], synthetic.two_dialects(40, 2)[0]
for number, row in enumerate([*ROWS, *DEV]):
    row["user"] = f"user {number % 7}"
SIZES: dict[str, Any] = {"embedding_size": 6, "hidden_size": 8, "context_size": 3, "variable_size": 3, "rank": 2}
SIZES |= {"min_count": 1, "min_context_count": 1, "batch_tokens": 200, "learning_rate": 0.01, "evaluations": 2}
WORDS: dict[str, Any] = {**SIZES, "context": ["dialect"], "samples": 0}
KINDS: dict[str, dict[str, Any]] = {
    "words": WORDS,
    "sampled loss": {**WORDS, "samples": 8, "output_bias": ["low_rank", "hash"], **SMALL_HASH},
    "characters": {
        **{**SIZES, "context": ["dialect"], "user": "user", "tokenizer": "char", "samples": 0},
        **{"min_users": 3, "dropout_context": 0.2, "layer_norm": True},
    },
    "sparse bias": {**WORDS, "samples": 8, "output_bias": ["sparse"], "sparse_l1": ["0.001"]},
    "new Transformer": {
        **{"context": ["dialect"], "architecture": "llama", "hidden_size": 16, "layers": 1},
        **{"min_count": 1, "batch_tokens": 200, "evaluations": 2},
    },
}
MAX_SECONDS = 60  # of the processes of a test
BASE = {
    "context": ["dialect"],
    "max_tokens": 40,
    "adapt": ["factor"],
    "batch_tokens": 400,
    "evaluations": 2,
    "learning_rate": 0.001,
}


@pytest.fixture(autouse=True)
def frequent_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log the loss of each step."""
    monkeypatch.setattr(trainer_module, "LOG_EVERY", 1)


def run_processes(count: int, work: Callable[[], object]) -> list[int]:
    """Do `work` in processes with the environment that torchrun sets; return their exit codes."""
    port = free_port()
    variables = {
        **{"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)},
        # This process has the store, as torchrun does, so that it lives longer than the first process.
        **{"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"},
    }

    def work_in_process(rank: int) -> None:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= variables | {name: str(value) for name, value in places.items()}
        faulthandler.dump_traceback_later(MAX_SECONDS, exit=True, file=2)
        try:
            work()
        except SystemExit as end:
            os._exit(int(str(end.code)))
        except BaseException:
            traceback.print_exc()
            raise

    children = [start_process(partial(work_in_process, rank)) for rank in range(count)]
    store = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    codes = [wait_for_exit(child) for child in children]
    del store
    return codes


def texts(options: dict[str, Any]) -> tuple[Corpus, Corpus]:
    """Return training and development texts."""
    return read_corpora(ROWS, DEV, Config.of(**options))


def create(folder: Path, options: dict[str, Any]) -> tuple[Run, Corpus, Corpus]:
    """Return a new run and its texts."""
    corpus, dev = texts(options)
    return Run.create(folder, Config.of(**options), corpus.tokenizer, corpus.schema), corpus, dev


def train_in(folder: Path, count: int, options: dict[str, Any], resume: bool = False) -> list[int]:
    """Train in `folder` with `count` processes; return their exit codes."""

    def work() -> None:
        run, corpus, dev = create(folder, options) if not resume else (Run.open(folder, trained=False), *texts(options))
        for _row in train(run, corpus, dev, resume=resume):
            pass

    if count == 1:
        work()
        return [0]
    return run_processes(count, lambda: processes.together(work, lambda: None))


def gradients(folder: Path) -> dict[str, torch.Tensor]:
    """Return the gradients of the first step: Adam's mean of gradients after it is a tenth of them."""
    tensors, facts = files.load_tensors(folder / "checkpoint.safetensors")
    assert facts["step"] == 1
    return {name: tensor for name, tensor in tensors.items() if name.endswith(":exp_avg")}


def losses(folder: Path) -> list[float]:
    """Return the loss of each step."""
    return [row["loss"] for row in files.read_rows(folder / "log.jsonl") if row["split"] == "train"]


def assert_equal_trainings(folder: Path, counts: list[int], steps: int, options: dict[str, Any]) -> None:
    """Assert that several processes have the gradients of the first step, and the losses, of one process."""
    for count in (1, *counts):
        assert train_in(folder / f"{count}-first", count, {**options, "steps": 1}) == [0] * count
        assert train_in(folder / f"{count}", count, {**options, "steps": steps}) == [0] * count
    expected, expected_losses = gradients(folder / "1-first"), losses(folder / "1")
    assert len(expected_losses) == steps
    for count in counts:
        for name, gradient in gradients(folder / f"{count}-first").items():
            error = float(torch.linalg.norm(gradient - expected[name]) / torch.linalg.norm(expected[name]).clamp(1e-12))
            assert error <= 1e-5, f"{name}: {error}"
        np.testing.assert_allclose(losses(folder / f"{count}"), expected_losses, rtol=1e-3)
        rows = [files.read_rows(folder / name / "log.jsonl")[-1] for name in ("1", f"{count}")]
        assert rows[1]["perplexity"] == pytest.approx(rows[0]["perplexity"], rel=1e-3)


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Some batches have a single text, so that one process has none."""
    assert_equal_trainings(tmp_path, [2], 10, {**KINDS["sampled loss"], "batch_tokens": 30})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_train_like_one(kind: str, tmp_path: Path) -> None:
    assert_equal_trainings(tmp_path, [2, 4], 50, KINDS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("train_base", [False, True])
def test_several_processes_train_a_pretrained_base_like_one(train_base: bool, tmp_path: Path) -> None:
    base = write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    assert_equal_trainings(tmp_path, [2, 4], 50, {**BASE, "base": str(base), "train_base": train_base})


def test_a_large_base_is_divided_among_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process stores its part of the base; the figures are those of one process with the whole base."""
    base = write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    options = {**BASE, "base": str(base), "shared_rank": 2}
    monkeypatch.setattr(sharding, "must_divide", lambda *_: True)
    join_pass = sharding.join_pass

    def joined_pass(run: Run) -> None:
        weights = [weight for weight in run.model.parameters() if isinstance(weight, DTensor)]
        sizes = [sum(part.numel() for part in parts) for parts in (weights, [weight.to_local() for weight in weights])]
        files.write_json(tmp_path / "sizes.json", sizes)
        join_pass(run)

    monkeypatch.setattr(sharding, "join_pass", joined_pass)
    assert_equal_trainings(tmp_path, [2], 10, options)
    whole, part = files.read_json(tmp_path / "sizes.json")
    assert 0 < part <= 0.55 * whole
    scores = [Run.open(tmp_path / name).score(DEV[:5]) for name in ("1", "2")]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-3)


def test_each_process_drops_different_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Optimization.take_step

    def take_recorded_step(self: Optimization, step: Any) -> Any:
        batch = create(tmp_path / f"{os.getpid()}", options)[1].batch(np.arange(5))  # the same in both processes
        nats, *_ = self.nats(replace(step, batch=batch, is_learned=batch.mask()))
        assert self.group is not None
        files.write_json(tmp_path / f"{self.group.rank}.json", nats.tolist())
        return original(self, step)

    options = {**WORDS, "dropout_input": 0.5, "steps": 1}
    monkeypatch.setattr(Optimization, "take_step", take_recorded_step)
    assert train_in(tmp_path / "run", 2, options) == [0, 0]
    first, second = (files.read_json(tmp_path / f"{rank}.json") for rank in range(2))
    assert np.shape(first) == np.shape(second)
    assert not np.allclose(first, second)


def end_process(monkeypatch: pytest.MonkeyPatch, rank: int, step: int, end: Callable[[], object]) -> None:
    """Let the process with this rank end in a step."""
    original = Optimization.take_step

    def take_last_step(self: Optimization, part: Any) -> Any:
        if self.group and self.group.rank == rank and part.number == step:
            end()
        return original(self, part)

    monkeypatch.setattr(Optimization, "take_step", take_last_step)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_end_of_a_process_ends_the_others_and_another_number_resumes(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options, count = {**KINDS["sampled loss"], "steps": 12, "evaluations": 4}, 2 + rank % 2
    assert train_in(tmp_path / "run", 1, options) == [0]
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "SAVE_SECONDS", 0.0)
        end_process(patch, 1, 7, lambda: os.kill(os.getpid(), signal.SIGKILL))
        start = time.monotonic()
        codes = train_in(tmp_path / "stopped", count, options)
    assert time.monotonic() - start < 30
    # One process reports the end, and a third one ends without a message.
    assert sorted(codes) == sorted([-signal.SIGKILL, 1, *([processes.FAILED_EXIT_CODE] if count == 3 else [])])
    report = f"ProcessEndedError: torchrun: another process of {count} ended; resume=True continues the training\n"
    assert capfd.readouterr().err.count(report) == 1
    assert files.load_tensors(tmp_path / "stopped" / "checkpoint.safetensors")[1]["step"] == 7
    assert train_in(tmp_path / "stopped", rank, options, resume=True) == [0] * rank
    np.testing.assert_allclose(losses(tmp_path / "stopped"), losses(tmp_path / "run"), rtol=1e-3)


def test_a_divided_base_with_users_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    run, *_ = create(tmp_path / "run", {**BASE, "base": str(base), "user": "user"})
    monkeypatch.setattr(sharding, "must_divide", lambda *_: True)
    with pytest.raises(UserError, match="user: expected a base that fits on a GPU, got "):
        sharding.divide_large_base(run, torch.device("cpu"))


def test_a_divided_base_with_prompts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    monkeypatch.setattr("factorcell.config.MIN_PROMPT_TOKENS", 5)
    run, *_ = create(tmp_path / "run", {**BASE, "base": str(base), "context": ["text:prompt"], "max_tokens": 10})
    monkeypatch.setattr(sharding, "must_divide", lambda *_: True)
    with pytest.raises(UserError, match="columns of kind prompt: expected a base that fits on a GPU"):
        sharding.divide_large_base(run, torch.device("cpu"))


def test_the_end_of_a_process_with_a_part_of_the_base_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    base = write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    monkeypatch.setattr(sharding, "must_divide", lambda *_: True)
    end_process(monkeypatch, 1, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
    codes = train_in(tmp_path / "run", 2, {**BASE, "base": str(base), "steps": 5})
    assert codes == [1, -signal.SIGKILL]
    assert "ProcessEndedError: torchrun: another process of 2 ended" in capfd.readouterr().err


def test_an_error_of_a_process_is_the_only_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise UserError("this process has no memory")

    end_process(monkeypatch, 1, 2, refuse)
    assert train_in(tmp_path / "run", 2, {**WORDS, "steps": 4}) == [processes.FAILED_EXIT_CODE, 1]
    assert capfd.readouterr().err.count("Error: ") == 1


def test_an_error_of_the_first_process_is_the_only_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    codes = run_processes(2, lambda: fit(ROWS, dev=DEV, out=tmp_path / "file", **WORDS))
    assert codes == [1, processes.FAILED_EXIT_CODE]
    assert capfd.readouterr().err.count("UserError: ") == 1


@pytest.mark.slow
def test_fit_and_finetune_return_the_run_in_all_processes(tmp_path: Path) -> None:
    def work() -> None:
        run = fit(ROWS, dev=DEV, out=tmp_path / "run", **{**WORDS, "steps": 5})
        tuned = finetune(run, ROWS, dev=DEV, out=tmp_path / "tuned", parts=["context"], epochs=1)
        for name, result in (("run", run), ("tuned", tuned)):
            assert result.folder == tmp_path / name
            files.write_json(tmp_path / f"{name}-{os.environ['RANK']}.json", result.score([ROWS[0]]).tolist())

    assert run_processes(2, work) == [0, 0]
    for name in ("run", "tuned"):
        first, second = (files.read_json(tmp_path / f"{name}-{rank}.json") for rank in range(2))
        assert first == second
    assert (tmp_path / "tuned" / "training.json").exists()


def test_a_training_outside_of_a_shared_function_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        train(*create(tmp_path / os.environ["RANK"], WORDS))

    assert run_processes(2, work) == [1, 1]
    assert "expected a command, fit or finetune" in capfd.readouterr().err


def children_of(process: int) -> dict[int, int]:
    """Return the ids of the processes that torchrun started, by their rank."""
    children = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            variables = (folder / "environ").read_bytes().split(b"\0")
            ranks = [int(value.removeprefix(b"RANK=")) for value in variables if value.startswith(b"RANK=")]
            if int(parent) == process and ranks:
                children[ranks[0]] = int(folder.name)
    return children


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process if a test fails."""
    try:
        yield
    finally:
        process.terminate()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs the file system of processes of Linux")
def test_torchrun_trains_stops_and_resumes(tmp_path: Path) -> None:
    """A killed process ends the others; three processes continue until a stop request, and one until the end."""
    for name, rows in (("train", ROWS), ("dev", DEV)):
        lines = [json.dumps(row) + "\n" for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    folder = tmp_path / "run"
    arguments = ["train", str(tmp_path / "train.jsonl"), "--dev", str(tmp_path / "dev.jsonl"), "--out", str(folder)]
    arguments += ["--context", "dialect", "--min-count", "1", "--hidden-size", "8", "--batch-tokens", "60"]
    arguments += ["--steps", "60", "--evaluations", "12"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]

    def start(count: int, *options: str) -> subprocess.Popen[str]:
        command = [*launcher, str(count), "--module", "factorcell", *arguments, *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_step(step: int) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if (folder / "log.jsonl").exists() and any(
                row["step"] >= step for row in files.read_rows(folder / "log.jsonl")
            ):
                return
            time.sleep(0.1)
        raise TimeoutError

    with start(2) as trainer, ended(trainer):
        wait_for_step(10)
        os.kill(children_of(trainer.pid)[1], signal.SIGKILL)
        killed = time.monotonic()
        output, errors = trainer.communicate(timeout=60)
        assert time.monotonic() - killed < 30
    assert output == ""
    report = "factorcell: torchrun: another process of 2 ended; --resume continues the training"
    # torchrun sends SIGTERM to the first process, which may stop between two steps before it notices the end.
    assert sum(line == report or line.startswith("stopped at step") for line in errors.splitlines()) == 1
    with start(3, "--resume") as trainer, ended(trainer):
        wait_for_step(25)
        trainer.send_signal(signal.SIGINT)
        _, errors = trainer.communicate(timeout=60)
    assert f"of 60, saved in {folder}; repeat the command with --resume to continue" in errors
    assert errors.count("stopping after the next save") == 1
    finished = subprocess.run(
        [sys.executable, "-m", "factorcell", *arguments, "--resume"], check=True, capture_output=True, text=True
    )
    assert "perplexity" in finished.stderr
    assert Run.open(folder).log()[-1]["step"] == 60


@pytest.mark.slow
def test_the_first_process_keeps_the_time_limit(tmp_path: Path) -> None:
    start = time.monotonic()
    assert run_processes(2, lambda: fit(ROWS, dev=DEV, out=tmp_path / "run", minutes=0.2, **WORDS)) == [0, 0]
    assert time.monotonic() - start < 30
    assert Run.open(tmp_path / "run").training_minutes() < 0.25
