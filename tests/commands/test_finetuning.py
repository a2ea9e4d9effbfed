"""The commands `finetune` and `mix` on small tables."""

import json
from pathlib import Path

import pytest

from factorcell.commands.cli.main import main
from factorcell.io import files
from factorcell.runs.run import Run
from tests import synthetic
from tests.findings import parse_block

SMALL = "--context dialect --embedding-size 8 --hidden-size 10 --min-count 1 --min-context-count 5 --threads 1".split()
QUICK = "--epochs 2 --batch-tokens 300 --evaluations 2 --learning-rate 1e-2".split()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with train.jsonl, dev.jsonl, test.jsonl of two dialects, and an unadapted run."""
    for name, rows, seed in (("train", 200, 1), ("dev", 60, 2), ("test", 60, 3)):
        files.write_rows(tmp_path / f"{name}.jsonl", synthetic.two_dialects(rows, seed)[0])
    arguments = [str(tmp_path / "train.jsonl"), "--dev", str(tmp_path / "dev.jsonl"), "--out", str(tmp_path / "run")]
    assert main(["train", *arguments, "--model", "unadapted", *SMALL, *QUICK]) == 0
    return tmp_path


def test_finetune_trains_the_chosen_parts_and_resumes(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Changed parts are shown, only training options can be set, and the defaults are those for small data."""
    command = ["finetune", str(tables / "run"), str(tables / "dev.jsonl"), "--dev", str(tables / "test.jsonl")]
    command += ["--out", str(tables / "new"), "--train", "output_bias", "--train", "backbone", "--l1", "1e-3"]
    capsys.readouterr()
    assert main([*command, "--epochs", "3"]) == 0
    captured = capsys.readouterr()
    header, *rows = captured.out.splitlines()
    assert header.split() == ["part", "values", "moved"]
    assert [row.split()[0] for row in rows] == ["backbone", "output_bias"]
    assert "before fine-tuning" in parse_block(captured.err.splitlines())["perplexity"]
    config = Run.open(tables / "new").config
    assert (config.training.epochs, config.training.patience, config.training.batch_tokens) == (3.0, 3, 100)
    assert main([*command, "--epochs", "3"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*command, "--epochs", "3", "--resume"]) == 0
    assert capsys.readouterr().out == captured.out
    assert main(["report", str(tables / "run"), str(tables / "new"), "--out", str(tables / "report.html")]) == 0
    assert "<svg" in (tables / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*command[:-6], "--train", "bias"]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error == [
        "factorcell: unknown part 'bias'; choose from all, embedding, context, backbone, output_bias, projection"
    ]
    assert main([*command, "--hidden-size", "3"]) == 2


def test_mix_and_evaluate(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Count the n-grams of each dialect, mix them with weights per dialect, and evaluate mixtures like a run."""
    dev, test = (str(tables / f"{name}.jsonl") for name in ("dev", "test"))
    runs = [str(tables / "run")]
    for dialect in synthetic.NAMES:
        rows = [row for row in files.read_rows(tables / "train.jsonl") if row["dialect"] == dialect]
        files.write_rows(tables / f"{dialect}.jsonl", rows)
        runs.append(str(tables / dialect))
        table = str(tables / f"{dialect}.jsonl")
        assert main(["baseline", "ngram", table, "--like", runs[0], "--out", runs[-1]]) == 0
    capsys.readouterr()
    perplexities = {}
    assert main(["mix", *runs, "--dev", dev, "--by", "dialect", "--out", str(tables / "mix"), "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[:3]] == ["1:", "2:", "3:"]
    assert shown.count("\ncoast") == 2
    assert main(["mix", *runs, "--dev", dev, "--out", str(tables / "plain"), "--threads", "1", "--json"]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(row["weights"]) == pytest.approx(1)
    for name in ("run", "coast", "mix", "plain"):
        command = ["evaluate", str(tables / name), test, "--by", "dialect", "--json", "--threads", "1", "--save"]
        assert main(command) == 0
        whole, *groups = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        perplexities[name] = whole["perplexity"]
        assert sum(group["targets"] for group in groups) == whole["targets"]
        assert files.read_rows(tables / name / "results.jsonl")[-1]["kind"] == "evaluate"
    assert len(set(perplexities.values())) == 4
    assert main(["evaluate", str(tables / "mix"), test, "--baseline", str(tables / "coast"), "--by", "dialect"]) == 0
    assert f"gain over {tables / 'coast'}" in capsys.readouterr().out
    assert main(["mix", *runs, str(tables / "nothing"), "--dev", dev, "--out", str(tables / "other")]) == 2
    assert "expected a run folder" in capsys.readouterr().err


def test_a_run_and_an_ngram_model_are_mixed(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mixture is at least as good as the better model on the texts that its weights were fitted on."""
    run, dev = str(tables / "run"), str(tables / "dev.jsonl")
    counted = str(tables / "grams")
    assert (
        main(["baseline", "ngram", str(tables / "train.jsonl"), "--like", run, "--order", "3", "--out", counted]) == 0
    )
    assert main(["mix", run, counted, "--dev", dev, "--out", str(tables / "mix"), "--threads", "1"]) == 0
    perplexities = []
    for name in ("run", "grams", "mix"):
        capsys.readouterr()
        assert main(["evaluate", str(tables / name), dev, "--json"]) == 0
        perplexities.append(json.loads(capsys.readouterr().out)["perplexity"])
    assert perplexities[2] <= min(perplexities[:2]) + 1e-6
