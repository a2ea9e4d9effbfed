"""What takes minutes: whole trainings on the shipped place names, through the command line."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell import files
from factorcell.commands import demo
from factorcell.config import PAPER_MODELS
from factorcell.training.compare import compare as compare_models

pytestmark = pytest.mark.slow


def train(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """A process that trains a small FactorCell of place names in `folder`, on one thread."""
    sizes = ("--hidden-size", "48", "--embedding-size", "16", "--rank", "4", "--dropout-recurrent", "0.2")
    how = ("--epochs", "0.3", "--threads", "1", "--save-every", "20", "--log-every", "10", "--evaluations", "3")
    precise = ("--precision", "float32")  # which one is the faster a busy machine may find otherwise each time
    what = ("--tokenizer", "char", "--context", "lat:number", "--context", "lon:number", "--out", str(folder))
    command = [sys.executable, "-m", "factorcell", "train", str(demo.table("train")), "--dev", str(demo.table("dev"))]
    return subprocess.Popen([*command, *what, *sizes, *how, *precise, *more], stderr=subprocess.DEVNULL)


def rows(folder: Path) -> list[dict[str, Any]]:
    """The log of a run without its times."""
    content = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in ("seconds", "tokens_per_second")} for row in content]


def test_a_training_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    assert train(tmp_path / "whole").wait() == 0
    log, total = tmp_path / "killed" / "log.jsonl", len(rows(tmp_path / "whole"))
    for attempt, count in enumerate(sorted(random.Random(0).sample(range(2, total - 2), 3))):
        process = train(tmp_path / "killed", *(["--resume"] if attempt else []))
        while process.poll() is None and (not log.exists() or log.read_text().count("\n") < count):
            time.sleep(0.01)
        time.sleep(random.Random(attempt).uniform(0, 0.1))
        assert process.poll() is None, "it ended before it was killed"
        process.kill()
        process.wait()
    assert train(tmp_path / "killed", "--resume").wait() == 0
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    whole, killed = (files.load_tensors(tmp_path / name / "weights.safetensors")[0] for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole | killed)


def test_the_papers_order_on_place_names(tmp_path: Path) -> None:
    said = {**demo.SAID, "training": {"epochs": 0.6, "evaluations": 2}}
    every = compare_models(demo.table("train"), demo.table("dev"), None, said, tmp_path / "runs")
    reached = [row for row in every if row["model"] != "ngram"]
    perplexity = [row["perplexity"] for row in reached]
    assert [row["model"] for row in reached] == list(PAPER_MODELS)
    assert perplexity == sorted(perplexity, reverse=True)
    assert perplexity[-1] < 0.8 * perplexity[0]
