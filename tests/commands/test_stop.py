"""Ctrl-C while a command trains: what it saves, what it says, and that the same command goes on."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.training.trainer import Trainer
from tests import synthetic
from tests.commands.test_main import QUICK, SMALL

COMMANDS = {  # what is to be typed again, and where a training stops
    "train": ("train.jsonl --out run", "run", "the same command with --resume goes on from there"),
    "finetune": ("train.jsonl --out run", "run", "the same command with --resume goes on from there"),
    "compare": ("train.jsonl --out runs --models softmaxbias", "runs/softmaxbias", "with --resume goes on from there"),
    "separate": ("train.jsonl --out runs --by dialect", "runs/value-0000", "with --resume goes on from there"),
    "tune": ("train.jsonl --out runs --trials 1 --models softmaxbias", "runs/trial-0000", "the same command goes on"),
}


@pytest.mark.parametrize(
    "verb", [name if name == "train" else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_ctrl_c_says_where_a_training_stands_and_what_goes_on(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed, folder, again = COMMANDS[verb]
    context = [] if verb == "separate" else ["--context", "dialect"]
    words = [verb, *typed.split(), "--dev", "dev.jsonl", *context, *SMALL, *QUICK]
    monkeypatch.chdir(tmp_path)
    files.write_rows(tmp_path / "train.jsonl", synthetic.two_dialects(200, 1)[0])
    files.write_rows(tmp_path / "dev.jsonl", synthetic.two_dialects(40, 2)[0])
    if verb == "finetune":
        assert main(["train", "train.jsonl", "--out", "old", *context, *SMALL, *QUICK]) == 0
        words = [verb, "old", *typed.split(), "--dev", "dev.jsonl", "--epochs", "2", "--batch-tokens", "300"]
    step, asked = Trainer.step, [False]

    def interrupted(self: Trainer, batch: Any) -> None:
        if not asked[0] and self.run.folder.exists():  # one that is measured has no folder
            asked[0] = True
            signal.raise_signal(signal.SIGINT)
        step(self, batch)

    monkeypatch.setattr(Trainer, "step", interrupted)
    capsys.readouterr()
    assert main(words) == 130
    told = capsys.readouterr().err
    assert re.match(r"stopped at step [12] of \d+, saved in ", told.splitlines()[-1])
    assert f"saved in {folder}; " in told
    assert again in told.splitlines()[-1]
    assert main([*words, *(() if verb == "tune" else ("--resume",))]) == 0
    assert (tmp_path / folder / "training.json").exists()
