"""Trainings that are killed, starved of disk or fed with foreign files: they go on to the same end, or say why not."""

import errno
import json
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

from factorcell import files
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.model.run import Run
from factorcell.training.loop import train
from factorcell.training.trainer import Row, Trainer
from tests import synthetic

FULL = Path("/dev/full")  # a device on which every write fails for want of space
TIMES = ("seconds", "tokens_per_second")


def config(**training: Any) -> Config:
    """A small model that draws random numbers wherever a model can, 13 steps or so."""
    drop = {f"dropout_{kind}": 0.2 for kind in ("recurrent", "input", "output", "token")}
    sizes = {"embedding_size": 6, "hidden_size": 8, "context_size": 3, "variable_size": 3, "rank": 2}
    how = {"epochs": 2.5, "batch_tokens": 300, "evaluations": 3, "log_every": 2, "save_every": 3}
    return Config.of(
        **{"context": ["dialect"], "min_count": 1, **sizes, **drop, **how, "loss": "sampled", "samples": 8, **training}
    )


def texts(config: Config) -> tuple[Corpus, Corpus]:
    """What it is trained on, and its development set."""
    corpus = prepare(synthetic.two_dialects(120, 1)[0], config)
    return corpus, prepare(synthetic.two_dialects(30, 2)[0], config, tokenizer=corpus.tokenizer, schema=corpus.schema)


def go(folder: Path, resume: bool = False, **training: Any) -> Iterator[Row]:
    """Train in `folder`, from the beginning or from its checkpoint."""
    corpus, dev = texts(config(**training))
    if resume:
        return train(Run.open(folder, trained=False), corpus, dev, resume=True)
    return train(Run.create(folder, config(**training), corpus.tokenizer, corpus.schema), corpus, dev)


def same(a: Path, b: Path) -> None:
    """Two folders with the same best weights, checkpoint and log, times apart."""
    for name in ("weights.safetensors", "checkpoint.safetensors"):
        (ours, our_facts), (theirs, their_facts) = (files.load_tensors(folder / name) for folder in (a, b))
        assert ours.keys() == theirs.keys()
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
        assert timeless(our_facts) == timeless(their_facts)
    rows, others = (files.read_rows(folder / "log.jsonl") for folder in (a, b))
    assert [timeless(row) for row in rows] == [timeless(row) for row in others]


def timeless(row: Row) -> Row:
    """A row without its times."""
    return {key: value for key, value in row.items() if key not in TIMES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    list(go(folder))
    return folder


@pytest.mark.parametrize("step", [0, 2, 4, 11])
def test_a_training_interrupted_at_any_step_ends_the_same(
    step: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Trainer.step

    def interrupted(self: Trainer, batch: Any, stopping: bool = False) -> bool:
        if self.progress.step == step:
            raise KeyboardInterrupt
        return original(self, batch, stopping)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(go(tmp_path / "run"))
    list(go(tmp_path / "run", resume=True))
    same(whole, tmp_path / "run")


def test_resuming_a_finished_training_changes_nothing(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    assert list(go(folder, resume=True)) == []
    same(whole, folder)
    stopped = tmp_path / "stopped"
    options: dict[str, Any] = {"patience": 1, "learning_rate": 0.5, "decay": "none", "log_every": 1, "evaluations": 12}
    rows = list(go(stopped, **options))
    assert rows[-1]["step"] < rows[-1]["steps"]
    before = {file.name: file.read_bytes() for file in stopped.iterdir()}
    assert list(go(stopped, resume=True, **options)) == []
    assert {file.name: file.read_bytes() for file in stopped.iterdir()} == before


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    if not FULL.exists():
        pytest.skip("no /dev/full here")
    folder = tmp_path / "run"
    rows = go(folder)
    for row in rows:
        if row["step"] >= 4:
            break
    good = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "checkpoint.safetensors.partial").symlink_to(FULL)
    with pytest.raises(UserError, match=f"cannot be saved .{os.strerror(errno.ENOSPC)}.; the last good one is kept"):
        list(rows)
    assert (folder / "checkpoint.safetensors").read_bytes() == good
    list(go(folder, resume=True))
    same(whole, folder)


def test_a_row_whose_gradient_overflows_is_named(tmp_path: Path) -> None:
    """Numbers so large that the gradient overflows, though the loss does not: the row is named as the table counts.

    The checkpoint before it holds good numbers.
    """
    rows: list[dict[str, Any]] = [{"text": "a b a", "x": float(n), "y": float(n % 3)} for n in range(40)]
    options = {"epochs": 3, "batch_tokens": 40, "save_every": 1}
    given = Config.of(**{"context": ["x:number", "y:number"], "min_count": 1, **options})
    corpus = prepare(rows, given)
    run = Run.create(tmp_path / "run", given, corpus.tokenizer, corpus.schema)
    assert run.model.encoder is not None
    assert run.model.encoder.network is not None
    with torch.no_grad():
        next(run.model.encoder.network.parameters()).copy_(torch.tensor([1.0, -1.0]))
    assert run.model.encoder.inputs is not None
    run.model.encoder.inputs.deviation.fill_(1e-3)
    corpus.numbers[25] = 3e38
    with pytest.raises(
        UserError, match=r"the loss is not finite at step [1-5], row 26 of the training data; "
    ) as error:
        list(train(run, corpus, corpus.select(np.arange(25))))
    assert "\n" not in str(error.value)
    tensors, facts = files.load_tensors(run.folder / "checkpoint.safetensors")
    assert facts["step"] < 5
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def test_broken_weights_do_not_replace_a_good_checkpoint(tmp_path: Path) -> None:
    corpus, dev = texts(config())
    run = Run.create(tmp_path / "run", config(), corpus.tokenizer, corpus.schema)
    trainer = Trainer(run, corpus, dev)
    trainer.save()
    good = trainer.checkpoint.read_bytes()
    with torch.no_grad():
        run.model.get_parameter("backbone.cells.0.linear.weight")[0, 0] = torch.nan
    with pytest.raises(UserError, match="the loss is not finite at step 1, rows"):
        trainer.step(next(trainer.batches()))
    assert trainer.checkpoint.read_bytes() == good


def of_format(number: int, path: Path, folder: Path) -> bytes:
    """A checkpoint as another format would begin."""
    tensors, facts = files.load_tensors(path)
    files.save_tensors(folder / "newer", tensors, {**facts, "format": number, "pace": 1})
    return (folder / "newer").read_bytes()


def test_foreign_and_damaged_checkpoints_are_refused(whole: Path, tmp_path: Path) -> None:
    other, corpus_and_dev = tmp_path / "other", texts(config())
    wider = config(hidden_size=9)
    Trainer(Run.create(other, wider, corpus_and_dev[0].tokenizer, corpus_and_dev[0].schema), *corpus_and_dev).save()
    good = (whole / "checkpoint.safetensors").read_bytes()
    cases = {
        "does not belong to this config": (other / "checkpoint.safetensors").read_bytes(),
        "its format is None": (whole / "weights.safetensors").read_bytes(),
        "truncated": good[: len(good) // 2],
        "altered": good[:-1] + bytes([good[-1] ^ 1]),
        "its format is 2, this factorcell reads up to 1": of_format(2, whole / "checkpoint.safetensors", tmp_path),
    }
    for number, (message, content) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        (folder / "checkpoint.safetensors").write_bytes(content)
        log = (folder / "log.jsonl").read_bytes()
        with pytest.raises(UserError, match=message) as error:
            list(go(folder, resume=True))
        assert str(error.value).startswith(str(folder / "checkpoint.safetensors"))
        assert "\n" not in str(error.value)
        assert (folder / "log.jsonl").read_bytes() == log


def test_nothing_in_a_run_folder_can_execute_code(whole: Path) -> None:
    files = {re.sub(r"-\w{16}", "-KEY", file.name) for file in whole.iterdir()}
    assert files == {
        "texts-KEY.safetensors",
        "config.json",
        "schema.json",
        "vocabulary.txt",
        "weights.safetensors",
        "checkpoint.safetensors",
        "log.jsonl",
        "digests.json",
    }
    for file in whole.iterdir():
        content = file.read_bytes()
        assert not zipfile.is_zipfile(file)
        assert file.stat().st_mode & 0o111 == 0
        if file.suffix == ".safetensors":  # the length of a header of JSON, then the header
            json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        else:
            content.decode("utf-8")
