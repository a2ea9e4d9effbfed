"""Fine-tuning writes a complete run, resumes to the same result, and refuses invalid requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell import classify
from factorcell.config import Config
from factorcell.data.corpus import target_frequencies
from factorcell.data.counts import target_counts_by_value
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs import saved_results
from factorcell.runs.run import Run
from factorcell.training import finetune
from factorcell.training import trainer as trainer_module
from factorcell.training.fit import fit, train_run
from tests import small_runs, synthetic
from tests.checkpoints import checkpoints_every_step, interrupted_before_step

frequent_checkpoints = checkpoints_every_step()

TIMES = ("seconds", "tokens_per_second")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was trained on two dialects."""
    model = {"embedding_size": 8, "hidden_size": 10, "rank": 2, "context_size": 3, "variable_size": 3}
    training = {"epochs": 16, "batch_tokens": 300, "learning_rate": 1e-2, "evaluations": 2, "samples": 1000}
    data = {"context": ["dialect"], "min_count": 1}
    config = Config.of(**{**data, **model, **training, "samples": 9})
    folder = tmp_path_factory.mktemp("base") / "run"
    return train_run(synthetic.two_dialects(300, 1)[0], synthetic.two_dialects(60, 2)[0], config, folder)


def of_dialect(name: str, rows: int, seed: int) -> list[dict[str, str]]:
    """Return texts of one dialect that are labelled as the other."""
    others = dict(zip(synthetic.NAMES, reversed(synthetic.NAMES), strict=True))
    texts = [row for row in synthetic.two_dialects(3 * rows, seed)[0] if row["dialect"] == name][:rows]
    return [{"text": row["text"], "dialect": others[name]} for row in texts]


def perplexity(run: Run, rows: list[dict[str, str]]) -> float:
    scored = run.score_rows(rows)
    nats, targets = (sum(row[key] for row in scored) for key in ("nats", "targets"))
    return float(torch.tensor(nats / targets).exp())


def test_fine_tuning_learns_a_new_domain(base: Run, tmp_path: Path) -> None:
    texts, dev, unseen = (of_dialect("coast", rows, seed) for rows, seed in ((60, 3), (30, 4), (60, 5)))
    before = {name: value.clone() for name, value in base.model.named_parameters()}
    run = finetune(base, texts, dev=dev, out=tmp_path / "run", epochs=20)
    assert perplexity(run, unseen) < 0.85 * perplexity(base, unseen)
    assert all(torch.equal(value, before[name]) for name, value in base.model.named_parameters())
    opened = Run.open(tmp_path / "run")
    assert opened.config.data == base.config.data
    assert opened.config.model == base.config.model
    assert opened.schema == base.schema
    assert opened.tokenizer.tokens == base.tokenizer.tokens
    assert perplexity(opened, unseen) == perplexity(run, unseen)
    assert run.log()[0]["perplexity"] == pytest.approx(perplexity(base, dev), rel=1e-5)
    assert classify(opened, unseen, "dialect").metrics()["texts"] == 60
    facts = files.read_json(run.folder / "training.json")["finetuned"]
    assert facts["from"] == str(base.folder)
    assert {row["part"] for row in facts["moved"]} == {"embedding", "context", "backbone", "output_bias", "projection"}
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert f"- fine-tuned from: {base.folder.name}\n" in card
    again = finetune(run, texts, dev=dev, out=tmp_path / "again", parts=["context"], l1=1e-3)
    (row,) = files.read_json(again.folder / "training.json")["finetuned"]["moved"]
    assert row["part"] == "context"
    assert perplexity(again, dev) <= perplexity(run, dev)


def test_unknown_context_values_are_grouped_unless_they_shall_be_an_error(base: Run, tmp_path: Path) -> None:
    texts = [{**row, "dialect": "island"} for row in of_dialect("coast", 40, 3)]
    with pytest.raises(UserError, match="dialect 'island' was never seen"):
        finetune(base, texts, dev=texts, out=tmp_path / "no", unknown="error")
    assert not (tmp_path / "no").exists()
    tables = []
    for policy in ("group", "expected"):
        run = finetune(base, texts, dev=texts, out=tmp_path / policy, parts=["context"], unknown=policy)
        assert run.model.encoder is not None
        assert base.model.encoder is not None
        moved = run.model.encoder.tables[0] != base.model.encoder.tables[0]
        tables.append(moved.any(dim=1).tolist())
    # The expected value excludes rare values, because the base had none.
    assert tables == [[True, False, False], [False, True, True]]


OPTIONS: dict[str, Any] = {"epochs": 3.0, "batch_tokens": 120, "evaluations": 4}


@pytest.fixture(scope="module", autouse=True)
def frequent_rows() -> Iterator[None]:
    """Log a row of losses every few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "LOG_EVERY", 2)
        yield


def finetune_on_coast(base: Run, folder: Path, **options: Any) -> Run:
    """Fine-tune two parts of the run with a penalty."""
    training = {**OPTIONS, **options.pop("training", {})}
    arguments: dict[str, Any] = {"parts": ("context", "output_bias"), "l1": 1e-3, **training, **options}
    return finetune(base, of_dialect("coast", 40, 3), dev=of_dialect("coast", 20, 4), out=folder, **arguments)


@pytest.mark.parametrize("samples", [0, 1000])
def test_an_interrupted_fine_tuning_resumes_to_the_same_result(samples: int, base: Run, tmp_path: Path) -> None:
    options: dict[str, Any] = {"training": {"samples": samples}, "parts": ("all",), "l1": 0.0} if samples else {}
    uninterrupted = finetune_on_coast(base, tmp_path / "uninterrupted", **options).folder
    for stop in (0, 1, 3, 6):
        with interrupted_before_step(stop):
            finetune_on_coast(base, tmp_path / f"{stop}", **options)
        if stop == 0:
            for path in (tmp_path / "0").glob("*.safetensors"):
                path.unlink()
        finetune_on_coast(base, tmp_path / f"{stop}", resume=True, **options)
        for name in ("weights", "checkpoint", "start"):
            expected, resumed = (
                files.load_tensors(f / f"{name}.safetensors")[0] for f in (uninterrupted, tmp_path / f"{stop}")
            )
            assert expected.keys() == resumed.keys()
            assert [key for key in expected if not torch.equal(expected[key], resumed[key])] == []
        logs = [files.read_rows(folder / "log.jsonl") for folder in (uninterrupted, tmp_path / f"{stop}")]
        expected_log, resumed_log = ([{k: row[k] for k in row if k not in TIMES} for row in log] for log in logs)
        assert expected_log == resumed_log
        facts = [files.read_json(folder / "training.json") for folder in (uninterrupted, tmp_path / f"{stop}")]
        assert facts[0] == facts[1]


def test_a_fine_tuning_from_another_start_is_not_resumed(base: Run, tmp_path: Path) -> None:
    folder = finetune_on_coast(base, tmp_path / "run").folder
    cases: list[tuple[dict[str, Any], str]] = [
        ({"parts": ["backbone"]}, r"expected parts = \('context', 'output_bias'\) as before, got \('backbone',\)"),
        ({"l1": 0.0}, "cannot resume; expected l1 = 0.001 as before, got 0.0"),
        ({"training": {"epochs": 9.0}}, "expected epochs = 3.0 as before, got 9.0"),
    ]
    for more, message in cases:
        with pytest.raises(UserError, match=message):
            finetune_on_coast(base, folder, resume=True, **more)
    with pytest.raises(UserError, match="exists already"):
        finetune_on_coast(base, folder)
    changed = Run.open(base.folder)
    with torch.no_grad():
        small_runs.as_any(changed.model.head).bias[4] += 1
    with pytest.raises(UserError, match="cannot resume with other starting weights"):
        finetune_on_coast(changed, folder, resume=True)
    (folder / "start.safetensors").unlink()
    with pytest.raises(UserError, match="expected a fine-tuning, got a training"):
        finetune_on_coast(base, folder, resume=True)


def test_a_fine_tuning_is_not_resumed_with_other_texts(base: Run, tmp_path: Path) -> None:
    texts, dev = of_dialect("coast", 40, 3), of_dialect("coast", 20, 4)
    with interrupted_before_step(3):
        finetune(base, texts, dev=dev, out=tmp_path / "run")
    with pytest.raises(UserError, match="cannot resume with other texts"):
        finetune(base, texts[:-1], dev=dev, out=tmp_path / "run", resume=True)


def test_tokens_are_counted_in_the_texts_of_the_base_too(base: Run, tmp_path: Path) -> None:
    texts, dev = of_dialect("coast", 40, 3), of_dialect("coast", 20, 4)
    run = finetune(base, texts, dev=dev, out=tmp_path / "run", epochs=1)
    corpus = base.prepare(texts, unknown="group")
    assert torch.equal(run.unigram_counts(), base.unigram_counts() + torch.from_numpy(target_frequencies(corpus)))
    counts, of_base = (each.unigram_counts_by_value("dialect") for each in (run, base))
    assert counts is not None
    assert of_base is not None
    assert (counts - of_base - target_counts_by_value(corpus, 0)).nnz == 0


def test_invalid_parts_and_penalties_are_refused_before_anything_is_written(base: Run, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"parts": ["bias"]}, "unknown part 'bias'"),
        ({"l1": -1.0}, "l1 is -1.0; it must be a "),
        ({"l1": float("nan")}, "l1 is nan; it must be a "),
    ]
    for more, message in cases:
        with pytest.raises(UserError, match=message):
            finetune_on_coast(base, tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()
    unadapted = small_runs.make_run(tmp_path / "plain", adapt=(), output_bias=())
    with pytest.raises(UserError, match="no part 'context'"):
        finetune(unadapted, small_runs.ROWS, dev=small_runs.ROWS, out=tmp_path / "run", parts=["context"])


def test_the_passes_do_not_depend_on_the_steps_of_the_base_run(base: Run, tmp_path: Path) -> None:
    """A training with a time limit has the number of its steps in its config."""
    limited = Run.open(base.folder)
    limited.config = limited.config.with_options(steps=5000)
    run = finetune_on_coast(limited, tmp_path / "run", training={"epochs": 2.0, "batch_tokens": 300})
    expected = finetune_on_coast(base, tmp_path / "expected", training={"epochs": 2.0, "batch_tokens": 300})
    assert run.log()[-1]["steps"] == expected.log()[-1]["steps"] < 100


def test_results_of_a_stopped_fine_tuning_are_deleted(base: Run, tmp_path: Path) -> None:
    with interrupted_before_step(3):
        finetune_on_coast(base, tmp_path / "run")
    files.append_row(tmp_path / "run" / saved_results.FILE, {"kind": "evaluate", "perplexity": 1.0})
    run = finetune_on_coast(base, tmp_path / "run", resume=True)
    assert all(row["perplexity"] != 1.0 for row in saved_results.read(run.folder))


def test_texts_of_users_are_read_before_the_fine_tuning(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"user": "user", "time": "time", "min_user_count": 1, "min_context_count": 1}
    rows = [
        {"text": "abc", "user": f"user {number % 4}", "time": f"2026-01-0{1 + number // 4}"} for number in range(32)
    ]
    options: dict[str, Any] = {
        "tokenizer": "char",
        "min_count": 1,
        "embedding_size": 4,
        "hidden_size": 6,
        "epochs": 1.0,
        "rank": 1,
    }
    base = fit(rows, dev=rows, out=tmp_path / "base", **columns, **options)
    without_times = [{name: row[name] for name in ("text", "user")} for row in rows]
    with pytest.raises(UserError, match="time"):
        finetune(base, without_times, dev=without_times, out=tmp_path / "run")
    assert not files.read_rows(tmp_path / "run" / "log.jsonl")
