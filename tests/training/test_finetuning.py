"""Fine-tuning as a job: a run of its own that says where it came from, resumed to the same end, refused where wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell import classify, files, finetune
from factorcell.config import Config, UserError
from factorcell.model.run import Run
from factorcell.training.fit import fit
from factorcell.training.trainer import Trainer
from tests import small_runs, synthetic

TIMES = ("seconds", "tokens_per_second")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learned two dialects."""
    model = {"embedding_size": 8, "hidden_size": 10, "rank": 2, "context_size": 3, "variable_size": 3}
    training = {"epochs": 16, "batch_tokens": 300, "learning_rate": 1e-2, "evaluations": 2, "loss": "sampled"}
    data = {"context": ["dialect"], "min_count": 1}
    config = Config.of(**{**data, **model, **training, "samples": 9})
    folder = tmp_path_factory.mktemp("old") / "run"
    return fit(synthetic.two_dialects(300, 1)[0], synthetic.two_dialects(60, 2)[0], config, folder)


def of_dialect(name: str, rows: int, seed: int) -> list[dict[str, str]]:
    """Texts of one dialect that say they are of the other."""
    others = dict(zip(synthetic.NAMES, reversed(synthetic.NAMES), strict=True))
    texts = [row for row in synthetic.two_dialects(3 * rows, seed)[0] if row["dialect"] == name][:rows]
    return [{"text": row["text"], "dialect": others[name]} for row in texts]


def perplexity(run: Run, rows: list[dict[str, str]]) -> float:
    scored = run.score(rows)
    nats, targets = (sum(row[key] for row in scored) for key in ("nats", "targets"))
    return float(torch.tensor(nats / targets).exp())


def test_fine_tuning_learns_a_new_domain(old: Run, tmp_path: Path) -> None:
    texts, held, unseen = (of_dialect("coast", rows, seed) for rows, seed in ((60, 3), (30, 4), (60, 5)))
    before = {name: value.clone() for name, value in old.model.named_parameters()}
    run = finetune(old, texts, held, tmp_path / "run", training={"epochs": 20})
    assert perplexity(run, unseen) < 0.85 * perplexity(old, unseen)
    assert all(torch.equal(value, before[name]) for name, value in old.model.named_parameters())
    opened = Run.open(tmp_path / "run")
    assert opened.config.data == old.config.data
    assert opened.config.model == old.config.model
    assert opened.schema == old.schema
    assert opened.tokenizer.tokens == old.tokenizer.tokens
    assert perplexity(opened, unseen) == perplexity(run, unseen)
    assert run.log()[0]["perplexity"] == pytest.approx(perplexity(old, held), rel=1e-5)
    assert classify(opened, unseen, "dialect").metrics()["texts"] == 60
    facts = files.read_json(run.folder / "training.json")["finetuned"]
    assert facts["from"] == str(old.folder)
    assert {row["part"] for row in facts["moved"]} == {"embedding", "context", "backbone", "output_bias", "projection"}
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert f"fine-tuned from `{old.folder}` (l1 0): " in card
    again = finetune(run, texts, held, tmp_path / "again", parts=["context"], l1=1e-3)
    card = (again.folder / "README.md").read_text(encoding="utf-8")
    assert "(l1 0.001): " in card
    assert "values of context moved" in card
    assert perplexity(again, held) <= perplexity(run, held)


def test_unknown_context_values_are_an_error_unless_grouped(old: Run, tmp_path: Path) -> None:
    texts = [{**row, "dialect": "island"} for row in of_dialect("coast", 40, 3)]
    with pytest.raises(UserError, match="dialect 'island' was never seen"):
        finetune(old, texts, texts, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    tables = []
    for policy in ("group", "expected"):
        run = finetune(old, texts, texts, tmp_path / policy, parts=["context"], unknown=policy)
        assert run.model.encoder is not None
        assert old.model.encoder is not None
        moved = run.model.encoder.tables[0] != old.model.encoder.tables[0]
        tables.append(moved.any(dim=1).tolist())
    assert tables == [[True, False, False], [False, True, True]]  # rare values never occurred, so they expect none


OPTIONS: dict[str, Any] = {"epochs": 3.0, "batch_tokens": 120, "evaluations": 4, "save_every": 2, "log_every": 2}


def begin(old: Run, folder: Path, **more: Any) -> Run:
    """Fine-tune with options under which much may go wrong: dropout, a part that stands still, a penalty."""
    training = {**OPTIONS, **more.pop("training", {})}
    given: dict[str, Any] = {"parts": ("context", "output_bias"), "l1": 1e-3, "training": training, **more}
    return finetune(old, of_dialect("coast", 40, 3), of_dialect("coast", 20, 4), folder, **given)


@pytest.mark.parametrize("loss", ["full", "sampled"])
def test_an_interrupted_fine_tuning_ends_the_same(
    loss: str, old: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"training": {"loss": loss}, "parts": ("all",), "l1": 0.0} if loss == "sampled" else {}
    whole = begin(old, tmp_path / "whole", **how).folder
    original = Trainer.step
    for stop in (0, 1, 3, 6):

        def interrupted(self: Trainer, batch: Any, stop: int = stop) -> None:
            if self.progress.step == stop:
                raise KeyboardInterrupt
            original(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                begin(old, tmp_path / f"{stop}", **how)
        if stop == 0:
            for path in (tmp_path / "0").glob("*.safetensors"):
                path.unlink()
        begin(old, tmp_path / f"{stop}", resume=True, **how)
        for name in ("weights", "checkpoint", "start"):
            ours, theirs = (files.load_tensors(f / f"{name}.safetensors")[0] for f in (whole, tmp_path / f"{stop}"))
            assert ours.keys() == theirs.keys()
            assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
        logs = [files.read_rows(folder / "log.jsonl") for folder in (whole, tmp_path / f"{stop}")]
        ours_log, theirs_log = ([{k: row[k] for k in row if k not in TIMES} for row in log] for log in logs)
        assert ours_log == theirs_log
        facts = [files.read_json(folder / "training.json") for folder in (whole, tmp_path / f"{stop}")]
        assert facts[0] == facts[1]


def test_a_fine_tuning_from_another_start_is_not_resumed(old: Run, tmp_path: Path) -> None:
    folder = begin(old, tmp_path / "run").folder
    cases: list[tuple[dict[str, Any], str]] = [
        ({"parts": ["backbone"]}, "begun with parts context, output_bias and l1 0.001, not backbone and 0.001"),
        ({"l1": 0.0}, "not context, output_bias and 0; nothing resumed"),
        ({"training": {"epochs": 9.0}}, "begun with epochs = 3.0, not 9.0"),
    ]
    for more, message in cases:
        with pytest.raises(UserError, match=message):
            begin(old, folder, resume=True, **more)
    with pytest.raises(UserError, match="exists already"):
        begin(old, folder)
    changed = Run.open(old.folder)
    with torch.no_grad():
        small_runs.as_any(changed.model.head).bias[4] += 1
    with pytest.raises(UserError, match="begun from other weights"):
        begin(changed, folder, resume=True)
    (folder / "start.safetensors").unlink()
    with pytest.raises(UserError, match="begun without fine-tuning"):
        begin(old, folder, resume=True)


def test_invalid_parts_and_penalties_are_refused_before_anything_is_written(old: Run, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"parts": ["bias"]}, "unknown part 'bias'"),
        ({"l1": -1.0}, "l1 is -1; it must be at least 0"),
        ({"l1": float("nan")}, "l1 is nan; it must be at least 0"),
    ]
    for more, message in cases:
        with pytest.raises(UserError, match=message):
            begin(old, tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()
    random = small_runs.make_run(tmp_path / "plain", adapt=(), output_bias=())
    with pytest.raises(UserError, match="no part 'context'"):
        finetune(random, small_runs.ROWS, small_runs.ROWS, tmp_path / "run", parts=["context"])
