"""What is said holds, the rest follows from the table, and a training with minutes ends in time."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.choices import AUTOMATIC_OPTIONS
from factorcell.config import Config, UserError
from factorcell.data.corpus import Corpus
from factorcell.model import precision as precisions
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run, read_config, training_facts
from factorcell.training import fit as fitting
from factorcell.training import plan as plans
from factorcell.training import rules
from factorcell.training.compare import compare
from factorcell.training.fit import fit
from factorcell.training.per_value import separate
from factorcell.training.plan import Budget, Plan, Speed, plan, resumed_plan, unspecified_options
from factorcell.training.trainer import Trainer
from tests.small_runs import ROWS, as_any

SAID: dict[str, Any] = {
    "data": {"context": ["city"], "min_context_count": 1},
    "model": {"embedding_size": 5},
    "training": {"threads": 1},
    "tokenizer": {"min_count": 1},
    "backbone": {"hidden_size": 6},
}


def read(said: dict[str, Any] = SAID) -> tuple[Corpus, Corpus]:
    """The texts of the small table, held out as well."""
    return fitting.read_corpora(ROWS, ROWS, Config.from_dict(said), progress=False)


@pytest.fixture(autouse=True)
def measured_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the speed of a few steps only."""
    monkeypatch.setattr(plans, "MEASURED", 0.05)


class Clock:
    """Time that passes only for steps, scored texts and the beginning of an evaluation, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float, text: float = 0.0, beginning: float = 0.0) -> None:
        self.now = 0.0
        made, nats = Trainer.step, Run.nats

        def stepped(trainer: Trainer, batch: Any) -> None:
            self.now += step
            made(trainer, batch)

        def judged(run: Run, corpus: Corpus) -> Any:
            self.now += beginning + text * len(corpus)
            return nats(run, corpus)

        monkeypatch.setattr(Trainer, "step", stepped)
        monkeypatch.setattr(Run, "nats", judged)
        monkeypatch.setattr(plans, "perf_counter", self)

    def __call__(self) -> float:
        return self.now


def test_options_that_are_set_are_not_chosen() -> None:
    made = plan(SAID, *read())
    assert made.config.format_options(("hidden_size", "embedding_size", "threads")) == (
        "hidden_size 6, embedding_size 5, threads 1"
    )
    assert set(made.chosen) == {name for names in AUTOMATIC_OPTIONS.values() for name in names} - {
        "hidden_size",
        "embedding_size",
    }
    defaults = Config().to_dict()
    said = {section: {name: defaults[section][name] for name in names} for section, names in AUTOMATIC_OPTIONS.items()}
    assert plan({**SAID, **said}, *read()).chosen == ()
    assert Config().format_options(made.chosen) != made.config.format_options(made.chosen)


def test_a_config_sets_all_options() -> None:
    config = Config.from_dict({**SAID, "training": {"precision": "float32"}})
    assert plan(config, *read()) == Plan(config)
    with pytest.raises(UserError, match="a Config says all"):
        plan(config, *read(), Budget(minutes=1))


def _gaining(monkeypatch: pytest.MonkeyPatch, gain: float) -> list[str]:
    """Have bfloat16 be so many times as fast; the precisions of the steps that were measured."""
    tried: list[str] = []

    def measured(work: Any, device: Any) -> float:
        for name in ("float32", "bfloat16"):
            work(name)
            tried.append(name)
        return gain

    monkeypatch.setattr(precisions, "measure_speedup", measured)
    return tried


@pytest.mark.parametrize(("gain", "precision"), [(2.0, "bfloat16"), (0.5, "float32"), (1.0, "float32")])
@pytest.mark.parametrize("whole", [True, False])
def test_the_faster_precision_is_measured_and_kept_when_resuming(
    whole: bool, gain: float, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = Config.from_dict(SAID) if whole else {**SAID, "training": {"epochs": 2}}
    tried = _gaining(monkeypatch, gain)
    made = plan(asked, *read())
    assert made.config.training.precision == precision
    assert made.gain == gain
    assert tried == ["float32", "bfloat16"]
    assert any("bfloat16 is" in line for line in made.notices()) == (gain != 1.0)
    run = fit(ROWS, ROWS, asked, tmp_path / "run")
    assert run.config.training.precision == read_config(tmp_path / "run").training.precision == precision
    _gaining(monkeypatch, 3.0 - gain)
    assert fit(ROWS, ROWS, asked, tmp_path / "run", resume=True).config == run.config


@pytest.mark.parametrize("minutes", [0.5, 2.0, 60.0])
def test_a_schedule_ends_in_time(minutes: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, 7.0, 0.2)
    monkeypatch.setattr(rules, "MAX_PASSES", 12.0)
    said = {**SAID, "training": {"batch_tokens": 8}}
    corpus, held = read(said)
    made = plan(said, corpus, held, Budget(minutes))
    begun = clock()
    fit(ROWS, ROWS, made, tmp_path / "run")
    assert made.seconds == pytest.approx(clock() - begun, abs=8)  # of which a step may be rounded
    assert clock() - begun <= minutes * 60 + 8
    if minutes < 60:
        assert clock() - begun > minutes * 60 * 0.6
    else:  # a table of ten texts does not deserve as much
        assert made.config.training.epochs == 12.0


def test_measuring_changes_no_result_and_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = {**SAID, "training": {"epochs": 2.0}}
    chosen = fit(ROWS, ROWS, said, tmp_path / "chosen")
    plain = fit(ROWS, ROWS, chosen.config, tmp_path / "said")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chosen", "said"]
    assert chosen.fingerprint == plain.fingerprint
    np.testing.assert_array_equal(chosen.nats(read()[0]), plain.nats(read()[0]))


def test_chosen_options_are_reported_and_kept_in_the_run_folder(tmp_path: Path) -> None:
    lines: list[str] = []
    said = {**SAID, "training": {"epochs": 1.0, "batch_tokens": 20}}
    run = fit(ROWS, ROWS, said, tmp_path / "run", notify=lines.append)
    assert lines[0].startswith("chosen, model: context_size 8,")
    assert lines[1].startswith("chosen, backbone: layer_norm false, dropout_recurrent ")
    assert lines[2].startswith("chosen, training: learning_rate ")
    assert "epochs" not in lines[2]
    assert lines[2].endswith("; say --context-size or another to choose otherwise")
    assert lines[3].startswith("1 passes, which take about ")
    assert training_facts(run.folder)["chosen"] == list(unspecified_options(said))
    assert "- chosen automatically: `context_size 8" in (run.folder / "README.md").read_text("utf-8")
    assert "chosen" not in training_facts(fit(ROWS, ROWS, run.config, tmp_path / "plain").folder)


def test_a_resumed_training_keeps_the_chosen_options(tmp_path: Path) -> None:
    run = fit(ROWS, ROWS, SAID, tmp_path / "run", budget=Budget(preset="quick"))
    assert resumed_plan(SAID, run.config).config == run.config
    again = fit(ROWS, ROWS, SAID, tmp_path / "run", resume=True)
    assert again.config == run.config
    other = {**SAID, "training": {"learning_rate": 0.5}}
    with pytest.raises(UserError, match="was begun with learning_rate = "):
        fit(ROWS, ROWS, other, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="was begun with kind = 'word', not 'char'"):
        fit(ROWS, ROWS, {**SAID, "tokenizer": {"kind": "char"}}, tmp_path / "run", resume=True)


def test_compared_models_have_the_same_options(tmp_path: Path) -> None:
    models = ["unadapted", "factorcell"]
    compare(ROWS, ROWS, None, SAID, tmp_path / "c", models=models[:1], budget=Budget(preset="quick"))
    compare(ROWS, ROWS, None, SAID, tmp_path / "c", models=models, resume=True)
    first, second = (Run.open(tmp_path / "c" / name) for name in models)
    assert dataclasses.replace(first.config.training) == second.config.training
    assert first.config.with_model("factorcell").model == second.config.model
    assert (
        training_facts(first.folder)["chosen"]
        == training_facts(second.folder)["chosen"]
        == list(unspecified_options(SAID))
    )


def test_separate_runs_have_options_by_the_texts_of_their_value(tmp_path: Path) -> None:
    said = {
        **SAID,
        "data": {"min_context_count": 2},
        "training": {"precision": "float32"},
        "tokenizer": {"kind": "char", "min_count": 1},
    }
    found = separate(ROWS * 2, ROWS, said, tmp_path / "each", by="city", budget=Budget(preset="quick"))
    passes = [run.config.training.epochs for run in found.runs.values()]
    assert passes[0] < min(passes[1:])


@pytest.mark.parametrize(
    ("budget", "text"), [({"minutes": 0.0}, "minutes is 0"), ({"preset": "fast"}, "unknown preset 'fast'")]
)
def test_a_budget_is_checked(budget: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        Budget(**budget)


@pytest.mark.parametrize(
    ("minutes", "passes", "hidden", "dropout"), [(0.5, 2.42, 150, 0.0), (1.25, 4.85, 200, 0.1), (4.0, 12.0, 200, 0.2)]
)
def test_options_fit_the_passes_that_the_minutes_allow(
    minutes: float, passes: float, hidden: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 passes of the model for 12, 1.25 minutes hold 2.5; of the one for 2.5, which is faster, 4.85.

    So much is forgotten as suits 4.85, and nobody makes more passes than the table deserves.
    """
    facts = rules.TableFacts(1_000_000, 5000, is_character_level=False)
    seconds = {150: 12.0, 200: 15.0, 300: 30.0}  # of a pass, by the size

    def speed(config: Config, *_: Any) -> Speed:
        return Speed(seconds[as_any(config.backbone).hidden_size], 1, 0.0)

    monkeypatch.setattr(rules.TableFacts, "of", lambda *_: facts)
    monkeypatch.setattr(plans, "measure_speed", speed)
    made = plan({"training": {"precision": "float32"}}, *read(), Budget(minutes)).config
    assert made.training.epochs == pytest.approx(passes)
    assert (
        made.format_options(("hidden_size", "dropout_recurrent"))
        == f"hidden_size {hidden}, dropout_recurrent {dropout}"
    )


def test_a_loss_that_is_not_finite_is_reported_by_the_training_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda *given: original(*given) * torch.nan)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"not finite at step 1, .*the checkpoint before it is in {tmp_path}/run "):
        fit(ROWS, ROWS, SAID, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_table_with_few_steps_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def slow(work: Any, *_: Any) -> float:
        for name in ("float32", "bfloat16") * 9:
            work(name)
            asked.append(name)
        return 1.0

    monkeypatch.setattr(precisions, "measure_speedup", slow)
    said = {**SAID, "training": {"loss": "sampled", "samples": 4, "batch_tokens": 4000}}
    assert plan(said, *read(said)).config.training.precision == "float32"
    assert len(asked) == 18
