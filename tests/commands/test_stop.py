"""Ctrl-C during training: the checkpoint, the message, and resuming with the same command."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.io import files
from factorcell.training.trainer import Trainer
from tests import synthetic
from tests.commands.test_main import QUICK, SMALL

COMMANDS = {  # arguments, the folder of the interrupted training, and the instruction to resume
    "train": ("train.jsonl --out run", "run", "repeat the command with --resume to continue"),
    "finetune": ("train.jsonl --out run", "run", "repeat the command with --resume to continue"),
    "compare": ("train.jsonl --out runs --models softmaxbias", "runs/softmaxbias", "with --resume to continue"),
    "tune": (
        "train.jsonl --out runs --trials 1",
        "runs/trial-0000",
        "repeat the command to continue",
    ),
}


@pytest.mark.parametrize(
    "command", [name if name == "train" else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_an_interrupted_training_is_saved_and_can_be_resumed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, folder, instruction = COMMANDS[command]
    context = ["--context", "dialect"]
    words = [command, *arguments.split(), "--dev", "dev.jsonl", *context, *SMALL, *QUICK]
    monkeypatch.chdir(tmp_path)
    files.write_rows(tmp_path / "train.jsonl", synthetic.two_dialects(200, 1)[0])
    files.write_rows(tmp_path / "dev.jsonl", synthetic.two_dialects(40, 2)[0])
    if command == "finetune":
        assert main(["train", "train.jsonl", "--out", "old", *context, *SMALL, *QUICK]) == 0
        words = [command, "old", *arguments.split(), "--dev", "dev.jsonl", "--epochs", "2", "--batch-tokens", "300"]
    step, is_interrupted = Trainer.step, [False]

    def interrupted(self: Trainer, batch: Any) -> None:
        if not is_interrupted[0] and self.run.folder.exists():  # short trainings to measure speed have no folder
            is_interrupted[0] = True
            signal.raise_signal(signal.SIGINT)
        step(self, batch)

    monkeypatch.setattr(Trainer, "step", interrupted)
    capsys.readouterr()
    assert main(words) == 130
    notices = capsys.readouterr().err
    assert re.match(r"stopped at step [12] of \d+, saved in ", notices.splitlines()[-1])
    assert f"saved in {folder}; " in notices
    assert instruction in notices.splitlines()[-1]
    assert main([*words, *(() if command == "tune" else ("--resume",))]) == 0
    assert (tmp_path / folder / "training.json").exists()
