"""Interrupted trainings, full disks and damaged files: trainings resume to the same result, or report why not."""

import errno
import itertools
import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.adapters.encoder import float32_bits
from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training import trainer as trainer_module
from factorcell.training.fit import train_run
from factorcell.training.trainer import Row, Trainer, train
from tests import synthetic
from tests.checkpoints import checkpoints_every_step, interrupted_before_step

frequent_checkpoints = checkpoints_every_step()

FULL_DEVICE = Path("/dev/full")  # every write to this device fails because there is no space
TIMES = ("seconds", "tokens_per_second", "evaluation_seconds", "measured_seconds", "evaluation_steps")


@pytest.fixture(scope="module", autouse=True)
def frequent_rows() -> Iterator[None]:
    """Log a row of losses every few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "LOG_EVERY", 2)
        yield


def make_config(**training: Any) -> Config:
    """Return the config of a small model with all kinds of random numbers, trained for about 13 steps."""
    drop = {f"dropout_{kind}": 0.2 for kind in ("recurrent", "input", "output")}
    sizes = {"embedding_size": 6, "hidden_size": 8, "context_size": 3, "variable_size": 3, "rank": 2}
    options = {"epochs": 2.5, "batch_tokens": 300, "evaluations": 3}
    return Config.of(
        **{
            "context": ["dialect"],
            "min_count": 1,
            **sizes,
            **drop,
            **options,
            "samples": 8,
            **training,
        }
    )


def read_texts(config: Config) -> tuple[Corpus, Corpus]:
    """Return training and development texts."""
    corpus = prepare(synthetic.two_dialects(120, 1)[0], config)
    return corpus, prepare(synthetic.two_dialects(30, 2)[0], config, tokenizer=corpus.tokenizer, schema=corpus.schema)


def train_in(folder: Path, resume: bool = False, **training: Any) -> Iterator[Row]:
    """Train in `folder`, from the start or from its checkpoint; return the rows of the log."""
    corpus, dev = read_texts(make_config(**training))
    if resume:
        return train(Run.open(folder, trained=False), corpus, dev, resume=True)
    return train(Run.create(folder, make_config(**training), corpus.tokenizer, corpus.schema), corpus, dev)


def assert_same_run(a: Path, b: Path) -> None:
    """Assert that two folders have the same best weights, checkpoint and log, except for times."""
    for name in ("weights.safetensors", "checkpoint.safetensors"):
        (first, first_facts), (second, second_facts) = (files.load_tensors(folder / name) for folder in (a, b))
        assert first.keys() == second.keys()
        assert [key for key in first if not torch.equal(first[key], second[key])] == []
        assert without_times(first_facts) == without_times(second_facts)
    rows, others = (files.read_rows(folder / "log.jsonl") for folder in (a, b))
    assert [without_times(row) for row in rows] == [without_times(row) for row in others]


def without_times(row: Row) -> Row:
    """Return a row without times and speeds."""
    return {key: value for key, value in row.items() if key not in TIMES}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    list(train_in(folder))
    return folder


@pytest.mark.parametrize("step", [0, 2, 4, 11])
def test_a_training_interrupted_at_any_step_resumes_to_the_same_result(
    step: int, uninterrupted: Path, tmp_path: Path
) -> None:
    with interrupted_before_step(step):
        list(train_in(tmp_path / "run"))
    list(train_in(tmp_path / "run", resume=True))
    assert_same_run(uninterrupted, tmp_path / "run")


@pytest.mark.parametrize("step", [6, 11])
def test_evaluations_after_the_last_checkpoint_are_repeated(
    step: int, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of the folder are then those of an evaluation that the checkpoint does not know."""
    folder, original = tmp_path / "run", Trainer.save

    def save_early(trainer: Trainer) -> None:
        if trainer.progress.step <= 2:
            original(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", save_early)
        with interrupted_before_step(step):
            list(train_in(folder))
    assert (folder / "weights.safetensors").exists()
    assert files.load_tensors(folder / "checkpoint.safetensors")[1]["step"] == 2
    list(train_in(folder, resume=True))
    assert_same_run(uninterrupted, folder)


def test_if_a_later_evaluation_replaced_the_best_weights_the_next_one_counts_as_the_best(tmp_path: Path) -> None:
    with interrupted_before_step(8):
        list(train_in(tmp_path / "run"))
    run = Run.open(tmp_path / "run", trained=False)
    rows = run.log()
    best = min(row["best"] for row in rows if row["split"] == "dev")
    for step, expected in ((8, best), (9, math.inf)):
        run.save_weights({"step": step})
        # A diverged training has evaluations without a finite perplexity, for which the log has no number.
        files.write_rows(run.log_path, [*rows, {**rows[-1], "split": "dev", "best": math.inf}])
        for _ in range(2):
            trainer = Trainer(run, *read_texts(make_config()))
            trainer.load()
            assert trainer.progress.best == expected
            assert run.log() == rows


def test_a_checkpoint_that_takes_long_does_not_stop_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, now, original_save, original_step = list[int](), [0.0], Trainer.save, Trainer.step

    def slow_save(trainer: Trainer) -> None:
        steps.append(trainer.progress.step)
        original_save(trainer)
        now[0] += 100.0

    def slow_step(trainer: Trainer, batch: Any) -> None:
        original_step(trainer, batch)
        now[0] += 15.0

    monkeypatch.setattr(trainer_module, "SAVE_SECONDS", 60.0)
    monkeypatch.setattr(trainer_module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Trainer, "save", slow_save)
    monkeypatch.setattr(Trainer, "step", slow_step)
    rows = list(train_in(tmp_path / "run"))
    assert steps == [5, 10, rows[-1]["step"]]


def test_a_training_saves_a_checkpoint_every_minute_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, times, original = list[int](), itertools.count(step=11.0), Trainer.save

    def recorded_save(trainer: Trainer) -> None:
        steps.append(trainer.progress.step)
        original(trainer)

    monkeypatch.setattr(trainer_module, "SAVE_SECONDS", 60.0)
    monkeypatch.setattr(trainer_module, "perf_counter", lambda: next(times))  # a step or an evaluation takes 11 seconds
    monkeypatch.setattr(Trainer, "save", recorded_save)
    rows = list(train_in(tmp_path / "run"))
    assert steps == [5, 10, rows[-1]["step"]]


def test_options_that_a_resumed_training_leaves_out_have_their_saved_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, dev = synthetic.two_dialects(120, 1)[0], synthetic.two_dialects(30, 2)[0]
    data, sizes = {"context": ["dialect"]}, {"embedding_size": 4, "context_size": 2, "rank": 1}
    training = {"epochs": 1.0, "precision": "float32", "batch_tokens": 100}
    options: dict[str, dict[str, Any]] = {"data": data, "model": sizes, "training": training}
    complete = {**options, "data": {**data, "max_tokens": 7}, "tokenizer": {"kind": "char"}}
    original = Trainer.step

    def stop(self: Trainer, batch: Any) -> None:
        if (tmp_path / "checkpoint.safetensors").exists():
            raise KeyboardInterrupt
        original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            train_run(rows, dev, complete, tmp_path)
    with pytest.raises(UserError, match=r"expected max_tokens = 7 as before, got 8"):
        train_run(rows, dev, {**options, "data": {**data, "max_tokens": 8}}, tmp_path, resume=True)
    with pytest.raises(UserError, match="cannot resume with other training data"):
        train_run(rows[:3], dev, complete, tmp_path, resume=True)
    for tables in ((rows[::-1], dev), (rows, dev[:-1])):
        with pytest.raises(UserError, match="cannot resume with other texts"):
            train_run(*tables, complete, tmp_path, resume=True)
    run = train_run(rows, dev, options, tmp_path, resume=True)
    assert (run.config.tokenizer.kind, run.config.data.max_tokens) == ("char", 7)
    assert run.training_minutes() > 0


def test_resuming_a_finished_training_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    assert list(train_in(folder, resume=True)) == []
    assert_same_run(uninterrupted, folder)
    stopped = tmp_path / "stopped"
    options: dict[str, Any] = {"patience": 1, "learning_rate": 0.5, "evaluations": 12}
    rows = list(train_in(stopped, **options))
    assert rows[-1]["step"] < rows[-1]["steps"]
    before = {file.name: file.read_bytes() for file in stopped.iterdir()}
    assert list(train_in(stopped, resume=True, **options)) == []
    assert {file.name: file.read_bytes() for file in stopped.iterdir()} == before


def test_resuming_a_finished_run_keeps_its_card_and_its_other_files(tmp_path: Path) -> None:
    rows, dev = synthetic.two_dialects(120, 1)[0], synthetic.two_dialects(30, 2)[0]
    config = make_config(ngram_mixture=True)
    run = train_run(rows, dev, config, tmp_path / "run")
    (run.folder / "README.md").write_text("edited\n", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    again = train_run(rows, dev, config, tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
    assert (again.mixture is None) == (run.mixture is None)
    assert again.score(dev).tolist() == run.score(dev).tolist()


def test_a_resumed_training_computes_with_the_threads_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    rows, dev = synthetic.two_dialects(120, 1)[0], synthetic.two_dialects(30, 2)[0]
    train_run(rows, dev, make_config(threads=2), tmp_path / "run")
    train_run(rows, dev, make_config(threads=3), tmp_path / "run", resume=True)
    assert counts == [2, 3]


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(uninterrupted: Path, tmp_path: Path) -> None:
    if not FULL_DEVICE.exists():
        pytest.skip("this system has no /dev/full")
    folder = tmp_path / "run"
    rows = train_in(folder)
    for row in rows:
        if row["step"] >= 4:
            break
    good = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "checkpoint.safetensors.partial").symlink_to(FULL_DEVICE)
    with pytest.raises(
        UserError, match=f"cannot be saved .{os.strerror(errno.ENOSPC)}.; the previous file is unchanged"
    ):
        list(rows)
    assert (folder / "checkpoint.safetensors").read_bytes() == good
    list(train_in(folder, resume=True))
    assert_same_run(uninterrupted, folder)


def test_a_row_whose_gradient_overflows_is_named(tmp_path: Path) -> None:
    """A number is so large that the gradient overflows but the loss does not; the message names its row.

    The checkpoint before it has only finite numbers.
    """
    rows: list[dict[str, Any]] = [{"text": "a b a", "x": float(n), "y": float(n % 3)} for n in range(40)]
    options = {"epochs": 3, "batch_tokens": 40}
    config = Config.of(**{"context": ["x:number", "y:number"], "min_count": 1, **options})
    corpus = prepare(rows, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    assert run.model.encoder is not None
    assert run.model.encoder.network is not None
    with torch.no_grad():
        next(run.model.encoder.network.parameters()).copy_(torch.tensor([1.0, -1.0]))
    assert run.model.encoder.inputs is not None
    run.model.encoder.inputs.constants[-1] = float32_bits([[1e-3, 1e-3]])  # the deviations
    corpus.numbers[25] = 3e38
    texts = corpus.select(np.array([row for row in range(40) if row % 10]))  # without held-out texts
    with pytest.raises(
        UserError, match=r"the loss is not finite at step [1-5], row 26 of the training data; "
    ) as error:
        list(train(run, texts, corpus.select(np.arange(25))))
    assert "\n" not in str(error.value)
    tensors, facts = files.load_tensors(run.folder / "checkpoint.safetensors")
    assert facts["step"] < 5
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def test_broken_weights_do_not_replace_a_good_checkpoint(tmp_path: Path) -> None:
    corpus, dev = read_texts(make_config())
    run = Run.create(tmp_path / "run", make_config(), corpus.tokenizer, corpus.schema)
    trainer = Trainer(run, corpus, dev)
    trainer.save()
    good = trainer.checkpoint.read_bytes()
    with torch.no_grad():
        run.model.get_parameter("backbone.cells.0.linear.weight")[0, 0] = torch.nan
    with pytest.raises(UserError, match="the loss is not finite at step 1, rows"):
        trainer.step(next(trainer.batches()))
    assert trainer.checkpoint.read_bytes() == good


def with_format(number: int, path: Path, folder: Path) -> bytes:
    """Return the bytes of a checkpoint with another format version."""
    tensors, facts = files.load_tensors(path)
    files.save_tensors(folder / "newer", tensors, {**facts, "format": number, "pace": 1})
    return (folder / "newer").read_bytes()


def test_foreign_and_damaged_checkpoints_are_refused(uninterrupted: Path, tmp_path: Path) -> None:
    other, corpus_and_dev = tmp_path / "other", read_texts(make_config())
    wider = make_config(hidden_size=9)
    Trainer(Run.create(other, wider, corpus_and_dev[0].tokenizer, corpus_and_dev[0].schema), *corpus_and_dev).save()
    good = (uninterrupted / "checkpoint.safetensors").read_bytes()
    cases = {
        "does not belong to this config": (other / "checkpoint.safetensors").read_bytes(),
        "its format is None": (uninterrupted / "weights.safetensors").read_bytes(),
        "truncated": good[: len(good) // 2],
        "its format is 3, but this version reads up to 2": with_format(
            3, uninterrupted / "checkpoint.safetensors", tmp_path
        ),
        "an older version of factorcell wrote it; train the run again": with_format(
            1, uninterrupted / "checkpoint.safetensors", tmp_path
        ),
    }
    for number, (message, content) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        shutil.copytree(uninterrupted, folder)
        (folder / "checkpoint.safetensors").write_bytes(content)
        log = (folder / "log.jsonl").read_bytes()
        with pytest.raises(UserError, match=message) as error:
            list(train_in(folder, resume=True))
        assert str(error.value).startswith(str(folder / "checkpoint.safetensors"))
        assert "\n" not in str(error.value)
        assert (folder / "log.jsonl").read_bytes() == log


def test_nothing_in_a_run_folder_can_execute_code(uninterrupted: Path) -> None:
    files = {re.sub(r"-\w{16}", "-KEY", file.name) for file in uninterrupted.iterdir()}
    assert files == {
        "texts-KEY.safetensors",
        "config.json",
        "schema.json",
        "vocabulary.txt",
        "weights.safetensors",
        "checkpoint.safetensors",
        "log.jsonl",
    }
    for file in uninterrupted.iterdir():
        content = file.read_bytes()
        assert not zipfile.is_zipfile(file)
        assert file.stat().st_mode & 0o111 == 0
        if file.suffix == ".safetensors":  # the length of a JSON header, then the header
            json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        else:
            content.decode("utf-8")
