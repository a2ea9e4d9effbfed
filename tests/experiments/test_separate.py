"""Separate runs: each text is scored by the run of its value, rare values by the shared run; training resumes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell import evaluate
from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training.mixture import MixedModels, open_scorer
from factorcell.training.trainer import Trainer
from separate import main, separate, separate_models
from tests import synthetic
from tests.checkpoints import checkpoints_every_step
from tests.findings import logged_progress, parse_block
from tests.small_runs import ROWS

frequent_checkpoints = checkpoints_every_step()

Rows = list[dict[str, Any]]


def make_config(**training: Any) -> Config:
    """Return the config of a small model; values with fewer than ten texts get no run."""
    sizes = {"embedding_size": 8, "hidden_size": 10}
    options = {"epochs": 6, "batch_tokens": 300, "learning_rate": 2e-2, "evaluations": 2, **training}
    data = {"min_count": 1, "min_context_count": 10}
    return Config.of(**{**data, **sizes, **options})


def texts(rows: int, seed: int) -> Rows:
    """Return texts of two dialects, of a rare third dialect, and one without a dialect."""
    common: Rows = [*synthetic.two_dialects(rows, seed)[0]]
    return [*common, {"text": "elm oak", "dialect": "valley"}, {"text": "yew", "dialect": None}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> MixedModels:
    folder = tmp_path_factory.mktemp("separate") / "runs"
    return separate(texts(300, 1), texts(60, 2), make_config(), folder, by="dialect")


def test_each_text_has_the_nats_of_the_run_of_its_value(trained: MixedModels) -> None:
    rows: Rows = [*texts(40, 3), {"text": "ash fir", "dialect": "island"}]
    corpus = trained.prepare(rows, unknown="group")
    whole, begin = trained.nats(corpus), 0
    names = trained.schema.variables[0].values
    assert sorted(names[1:]) == sorted(synthetic.NAMES)
    for row in rows:
        number = names.index(row["dialect"]) if row["dialect"] in names else 0
        run = Run.open(trained.folder / f"value-000{number}")
        assert run.model.encoder is None
        assert run.tokenizer.tokens == trained.tokenizer.tokens
        nats = run.nats(run.prepare([row], unknown="group"))
        assert np.allclose(whole[begin : begin + len(nats)], nats, atol=1e-5)
        begin += len(nats)
    assert begin == len(whole)
    with pytest.raises(UserError, match=r"dialect.*island"):
        trained.prepare(rows[-1:], unknown="error")
    frequent = [row for row in rows if row["dialect"] in names]
    assert len(trained.prepare(frequent, unknown="error")) == len(frequent)


def test_separate_runs_predict_their_dialects_better(trained: MixedModels) -> None:
    rows: Rows = synthetic.two_dialects(200, 4)[0]
    corpus = trained.prepare(rows)
    for row in evaluate(trained, rows, by=["dialect"]).by["dialect"]:
        assert row["gain_over_unknown_context"] > 0.05
        shared = evaluate(
            separate_models(trained)[0], trained.prepare([r for r in rows if r["dialect"] == row["value"]])
        )
        assert row["perplexity_unknown_context"] == pytest.approx(shared.perplexity, rel=1e-5)
    opened = open_scorer(trained.folder)
    assert isinstance(opened, MixedModels)
    assert np.array_equal(opened.nats(corpus), trained.nats(corpus))


def test_the_folder_of_separate_runs_lists_their_values(trained: MixedModels) -> None:
    index = files.read_json(trained.folder / "mixture.json")
    values = trained.schema.variables[0].values
    assert index["by"] == "dialect"
    assert index["weights"] == np.eye(3).tolist()
    counts = [files.read_json(trained.folder / f"value-000{n}" / "training.json")["texts"] for n in range(3)]
    assert counts == [302, *trained.schema.variables[0].counts[1:]]
    card = (trained.folder / "value-0002" / "README.md").read_text(encoding="utf-8")
    assert f"from rows, dialect {values[2]}" in card


def test_separate_training_resumes_at_the_run_that_was_stopped(
    trained: MixedModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, folder = Trainer.step, tmp_path / "runs"

    def interrupted_step(self: Trainer, batch: Any) -> None:
        if self.run.folder.name == "value-0001" and self.progress.step == 5:
            raise KeyboardInterrupt
        original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted_step)
        with pytest.raises(KeyboardInterrupt):
            separate(texts(300, 1), texts(60, 2), make_config(), folder, by="dialect")
    with pytest.raises(UserError, match=folder.name):
        open_scorer(folder)
    with pytest.raises(UserError, match=folder.name):
        separate(texts(300, 1), texts(60, 2), make_config(), folder, by="dialect")
    for existing in (folder, trained.folder):
        with pytest.raises(UserError, match=r"epochs.*6\.0.*2\.0"):
            separate(texts(300, 1), texts(60, 2), make_config(epochs=2.0), existing, by="dialect", resume=True)
    with pytest.raises(UserError, match="training data"):
        separate(texts(300, 2), texts(60, 2), make_config(), folder, by="dialect", resume=True)
    before = (folder / "value-0000" / "weights.safetensors").stat().st_mtime_ns
    separate(texts(300, 1), texts(60, 2), make_config(), folder, by="dialect", resume=True)
    assert (folder / "value-0000" / "weights.safetensors").stat().st_mtime_ns == before
    for number in range(3):
        resumed, expected = (Run.open(f / f"value-000{number}").model.parameters() for f in (folder, trained.folder))
        assert all(torch.equal(a, b) for a, b in zip(resumed, expected, strict=True))


def test_a_refused_resume_leaves_the_folder_as_it_was(trained: MixedModels) -> None:
    before = {path: path.read_bytes() for path in trained.folder.rglob("*") if path.is_file()}
    changes = (
        ({"town": "coast"}, "town", "context"),
        ({"dialect": "coast"}, "dialect", "training data"),
    )
    for change, by, message in changes:
        train, dev = ([{**row, **change} for row in rows] for rows in (texts(300, 1), texts(60, 2)))
        with pytest.raises(UserError, match=message):
            separate(train, dev, make_config(), trained.folder, by=by, resume=True)
    run = trained.folder / "value-0001"
    with pytest.raises(UserError, match=run.name):
        separate(texts(300, 1), texts(60, 2), make_config(), run, by="dialect", resume=True)
    assert {path: path.read_bytes() for path in trained.folder.rglob("*") if path.is_file()} == before


def test_texts_are_held_out_for_a_value_without_development_texts(tmp_path: Path) -> None:
    dev = [row for row in texts(60, 2) if row["dialect"] == "coast"]
    with logged_progress() as notices:
        runs = separate(texts(300, 1), dev, make_config(epochs=1), tmp_path / "runs", by="dialect")
    texts_lines = [block["texts"] for line in notices if "texts" in (block := parse_block([line]))]
    counts = [int(line.split()[-3]) for line in texts_lines]
    variable = runs.schema.variables[0]
    coast, hills = (variable.values.index(name) for name in ("coast", "hills"))
    assert counts[0] == len(dev)
    assert counts[coast] == len(dev)
    assert counts[hills] == round(0.05 * variable.counts[hills])


def test_a_column_without_frequent_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dialect.*10.*--min-context-count"):
        separate(texts(6, 1), None, make_config(), tmp_path / "runs", by="dialect")
    with pytest.raises(UserError, match="accent"):
        separate(texts(6, 1), None, make_config(), tmp_path / "runs", by="accent")
    assert not (tmp_path / "runs").exists()


def test_runs_have_options_by_the_texts_of_their_value(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": {"min_context_count": 2},
        "training": {"precision": "float32"},
        "tokenizer": {"kind": "char", "min_count": 1},
    }
    runs = separate(ROWS * 2, ROWS, options, tmp_path / "each", by="city", preset="quick")
    passes = [run.config.training.epochs for run in separate_models(runs)]
    assert passes[0] < min(passes[1:])


def test_the_script_trains_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_rows(tmp_path / "train.jsonl", texts(60, 1))
    files.write_json(tmp_path / "config.json", make_config(epochs=1).to_dict())
    words = [str(tmp_path / "train.jsonl"), "--by", "dialect", "--out", str(tmp_path / "runs")]
    with logged_progress() as lines:
        assert main([*words, "--config", str(tmp_path / "config.json")]) == 0
    assert any(line.startswith("all texts -> ") for line in lines)
    assert isinstance(open_scorer(tmp_path / "runs"), MixedModels)
    assert main(words) == 2
    assert str(tmp_path / "runs") in capsys.readouterr().err
