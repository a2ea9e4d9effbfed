"""What is said holds, the rest follows from the table, and a training with minutes ends in time."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.choices import CHOSEN
from factorcell.config import Config, UserError
from factorcell.data.corpus import Corpus
from factorcell.model import precision as precisions
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run, facts, read_config
from factorcell.training import fit as fitting
from factorcell.training import plan as plans
from factorcell.training import rules
from factorcell.training.compare import compare
from factorcell.training.fit import fit
from factorcell.training.per_value import separate
from factorcell.training.plan import Budget, Plan, Speed, plan, resumed, unsaid
from factorcell.training.trainer import Trainer
from tests.small import ROWS

SAID: dict[str, Any] = {
    "data": {"context": ["city"], "min_count": 1, "min_context_count": 1},
    "model": {"hidden_size": 6, "embedding_size": 5},
    "training": {"threads": 1},
}


def read(said: dict[str, Any] = SAID) -> tuple[Corpus, Corpus]:
    """The texts of the small table, held out as well."""
    return fitting.read(ROWS, ROWS, Config.from_dict(said), progress=False)


class Clock:
    """Time that passes only for steps, scored texts and the beginning of an evaluation, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float, text: float = 0.0, beginning: float = 0.0) -> None:
        self.now = 0.0
        made, nats = Trainer.step, Run.nats

        def stepped(trainer: Trainer, batch: Any, stopping: bool = False) -> Any:
            self.now += step
            return made(trainer, batch, stopping)

        def judged(run: Run, corpus: Corpus) -> Any:
            self.now += beginning + text * len(corpus)
            return nats(run, corpus)

        monkeypatch.setattr(Trainer, "step", stepped)
        monkeypatch.setattr(Run, "nats", judged)
        monkeypatch.setattr(plans, "perf_counter", self)

    def __call__(self) -> float:
        return self.now


def test_what_is_said_holds() -> None:
    """It is never among what was chosen, whatever it is; the rest is what the rules say."""
    made = plan(SAID, *read())
    assert (made.config.model.hidden_size, made.config.model.embedding_size, made.config.training.threads) == (6, 5, 1)
    assert set(made.chosen) == {name for names in CHOSEN.values() for name in names} - {"hidden_size", "embedding_size"}
    values = {**vars(Config().model), **vars(Config().training)}
    chosen = {**vars(made.config.model), **vars(made.config.training)}
    said: dict[str, Any] = {section: {name: values[name] for name in names} for section, names in CHOSEN.items()}
    assert plan({**SAID, **said}, *read()).chosen == ()
    assert any(values[name] != chosen[name] for name in made.chosen)


def test_a_config_says_all() -> None:
    """Nothing is measured, nothing chosen; a budget would change what is said."""
    config = Config.from_dict({**SAID, "training": {"precision": "float32"}})
    assert plan(config, *read()) == Plan(config)
    with pytest.raises(UserError, match="a Config says all"):
        plan(config, *read(), Budget(minutes=1))


def test_samples_are_not_chosen_if_the_loss_is_given() -> None:
    assert not {"loss", "samples"} & set(unsaid({"training": {"loss": "sampled"}}))


def _gaining(monkeypatch: pytest.MonkeyPatch, gain: float) -> list[str]:
    """Have bfloat16 be so many times as fast; the precisions of the steps that were measured."""
    tried: list[str] = []

    def measured(work: Any, device: Any) -> float:
        for name in ("float32", "bfloat16"):
            work(name)
            tried.append(name)
        return gain

    monkeypatch.setattr(precisions, "gain", measured)
    return tried


@pytest.mark.parametrize(("gain", "precision"), [(2.0, "bfloat16"), (0.5, "float32"), (1.0, "float32")])
@pytest.mark.parametrize("whole", [True, False])
def test_the_faster_precision_is_found_and_kept(
    whole: bool, gain: float, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By real steps; the run folder says which, so that a training that goes on is the same elsewhere."""
    asked = Config.from_dict(SAID) if whole else {**SAID, "training": {"epochs": 2}}
    tried = _gaining(monkeypatch, gain)
    made = plan(asked, *read())
    assert made.config.training.precision == precision
    assert made.gain == gain
    assert tried == ["float32", "bfloat16"]
    assert any("bfloat16 is" in line for line in made.lines()) == (gain != 1.0)
    run = fit(ROWS, ROWS, asked, tmp_path / "run")
    assert run.config.training.precision == read_config(tmp_path / "run").training.precision == precision
    _gaining(monkeypatch, 3.0 - gain)
    assert fit(ROWS, ROWS, asked, tmp_path / "run", resume=True).config == run.config


def test_a_precision_that_is_said_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _gaining(monkeypatch, 2.0)
    said = {**SAID, "training": {"precision": "float32"}}
    assert plan(said, *read()).config.training.precision == "float32"
    assert plan(Config.from_dict(said), *read()).gain == 1.0
    assert not tried


def test_nothing_is_tried_where_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is made for it."""
    monkeypatch.setattr(precisions, "possible", lambda device: False)
    monkeypatch.setattr("factorcell.training.plan._temporary", None)
    assert plan(Config.from_dict(SAID), *read()).config.training.precision == "float32"


def test_processes_agree_on_a_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measures times of its own."""
    _gaining(monkeypatch, 2.0)
    made = plan(SAID, *read(), share=lambda value: 1.0 if value == 2.0 else value)
    assert made.config.training.precision == "float32"


@pytest.mark.parametrize("minutes", [0.5, 2.0, 60.0])
def test_a_schedule_ends_in_time(minutes: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a machine of which a step takes 7 seconds and a text judged .2: all of the time is used, and no more."""
    clock = Clock(monkeypatch, 7.0, 0.2)
    monkeypatch.setattr(rules, "MOST", 12.0)
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


@pytest.mark.parametrize(("text", "seconds"), [(0.001, 0.03), (1.0, 10.2)])
def test_what_an_evaluation_begins_with_counts_once(
    text: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as often as the texts by which it was measured go into all of them, unless a few of them take long."""
    monkeypatch.setattr(plans, "JUDGED", 1)
    Clock(monkeypatch, 1.0, text, 0.02)
    corpus, held = read()
    assert len(held) == 10
    assert plans.speed(Config.from_dict(SAID), corpus, held).evaluation == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 6])
def test_a_step_takes_as_long_however_few_there_are(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that ends with its first steps, or before, has a speed all the same."""
    Clock(monkeypatch, 1.0)
    corpus, held = read()
    config = Config.from_dict({**SAID, "training": {"batch_tokens": 1}})
    found = plans.speed(config, corpus.select(np.arange(batches)), held)
    assert (found.steps, found.step) == (batches, 1.0)


def test_several_models_have_their_minutes_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """All make the same passes: together they take the minutes of all, the fast ones fewer, the slow ones more."""
    speeds = {"unadapted": Speed(1, 10, 5), "factorcell": Speed(3.5, 10, 7), "concatcell": Speed(1.5, 10, 6)}
    monkeypatch.setattr(plans, "_speed", lambda config, corpus, held: speeds[config.model_name])
    assert plans.speed(Config.from_dict(SAID), *read(), list(speeds)) == Speed(2, 10, 6)


def test_measuring_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, no random number: a run of the chosen options and one of the same options said are bit for bit equal."""
    monkeypatch.chdir(tmp_path)
    said = {**SAID, "training": {"epochs": 2.0}}
    chosen = fit(ROWS, ROWS, said, tmp_path / "chosen")
    plain = fit(ROWS, ROWS, chosen.config, tmp_path / "said")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chosen", "said"]
    assert chosen.fingerprint == plain.fingerprint
    np.testing.assert_array_equal(chosen.nats(read()[0]), plain.nats(read()[0]))


def test_a_run_says_what_was_chosen(tmp_path: Path) -> None:
    """Before it begins, in its folder and in its card."""
    lines: list[str] = []
    said = {**SAID, "training": {"epochs": 1.0, "batch_tokens": 20}}
    run = fit(ROWS, ROWS, said, tmp_path / "run", say=lines.append)
    assert lines[0].startswith("chosen, model: layer_norm false, context_size 8,")
    assert lines[1].startswith("chosen, training: learning_rate ")
    assert "epochs" not in lines[1]
    assert lines[1].endswith("; say --layer-norm or another to choose otherwise")
    assert lines[2].startswith("1 passes, which take about ")
    assert facts(run.folder)["chosen"] == list(unsaid(said))
    assert "- chosen by the table: `layer_norm false, context_size 8" in (run.folder / "README.md").read_text("utf-8")
    assert "chosen" not in facts(fit(ROWS, ROWS, run.config, tmp_path / "plain").folder)


def test_what_goes_on_keeps_what_was_chosen(tmp_path: Path) -> None:
    """Other text would choose otherwise, but the run is as it began; what is said anew must be the same."""
    run = fit(ROWS, ROWS, SAID, tmp_path / "run", budget=Budget(preset="quick"))
    assert resumed(SAID, run.config).config == run.config
    again = fit(ROWS, ROWS, SAID, tmp_path / "run", resume=True)
    assert again.config == run.config
    other = {**SAID, "training": {"learning_rate": 0.5}}
    with pytest.raises(UserError, match="was begun with learning_rate = "):
        fit(ROWS, ROWS, other, tmp_path / "run", resume=True)


def test_models_that_are_compared_have_the_same_options(tmp_path: Path) -> None:
    """Also those that are trained later."""
    models = ["unadapted", "factorcell"]
    compare(ROWS, ROWS, None, SAID, tmp_path / "c", models=models[:1], budget=Budget(preset="quick"))
    compare(ROWS, ROWS, None, SAID, tmp_path / "c", models=models, resume=True)
    first, second = (Run.open(tmp_path / "c" / name) for name in models)
    assert dataclasses.replace(first.config.training) == second.config.training
    assert first.config.with_model("factorcell").model == second.config.model
    assert facts(first.folder)["chosen"] == facts(second.folder)["chosen"] == list(unsaid(SAID))


def test_each_value_has_options_of_its_own(tmp_path: Path) -> None:
    """A value has fewer texts than all together, and deserves more passes; a config of all options is everybody's."""
    said = {**SAID, "data": {"unit": "char", "min_count": 1, "min_context_count": 2}}
    found = separate(ROWS * 20, ROWS, said, tmp_path / "each", by="city", budget=Budget(preset="quick"))
    passes = [run.config.training.epochs for run in found.runs.values()]
    assert passes[0] < min(passes[1:])
    config = Config.from_dict({**said, "training": {"epochs": 1.0}})
    kept = separate(ROWS, ROWS, config, tmp_path / "same", by="city")
    assert {run.config.training.epochs for run in kept.runs.values()} == {1.0}


@pytest.mark.parametrize(
    ("budget", "text"), [({"minutes": 0.0}, "minutes is 0"), ({"preset": "fast"}, "unknown preset 'fast'")]
)
def test_a_budget_is_checked(budget: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        Budget(**budget)


@pytest.mark.parametrize(
    ("minutes", "passes", "hidden", "dropout"), [(0.5, 2.42, 150, 0.0), (1.25, 4.85, 200, 0.1), (4.0, 12.0, 200, 0.2)]
)
def test_what_fits_the_passes_is_chosen_for_those_that_are_made(
    minutes: float, passes: float, hidden: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 passes of the model for 12, 1.25 minutes hold 2.5; of the one for 2.5, which is faster, 4.85.

    So much is forgotten as suits 4.85, and nobody makes more passes than the table deserves.
    """
    facts = rules.Facts(1_000_000, 5000, letters=False)
    seconds = {150: 12.0, 200: 15.0, 300: 30.0}  # of a pass, by the size

    def speed(config: Config, *_: Any) -> Speed:
        return Speed(seconds[config.model.hidden_size], 1, 0.0)

    monkeypatch.setattr(rules.Facts, "of", lambda *_: facts)
    monkeypatch.setattr(plans, "speed", speed)
    made = plan({"training": {"precision": "float32"}}, *read(), Budget(minutes)).config
    assert made.training.epochs == pytest.approx(passes)
    assert (made.model.hidden_size, made.model.dropout_recurrent) == (hidden, dropout)


def test_epochs_or_minutes() -> None:
    said = {**SAID, "training": {"epochs": 2.0}}
    with pytest.raises(UserError, match="epochs and minutes are both given"):
        plan(said, *read(said), Budget(minutes=1.0))


def test_a_loss_that_is_not_finite_is_told_by_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by what is thrown away after it was measured: the checkpoint is in the run's folder, and nowhere else."""
    original = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda *given: original(*given) * torch.nan)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"not finite at step 1, .*the checkpoint before it is in {tmp_path}/run "):
        fit(ROWS, ROWS, SAID, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_table_of_a_few_steps_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which precision is faster takes more steps than a pass over it has."""
    asked: list[str] = []

    def slow(work: Any, *_: Any) -> float:
        for name in ("float32", "bfloat16") * 9:
            work(name)
            asked.append(name)
        return 1.0

    monkeypatch.setattr(precisions, "gain", slow)
    said = {**SAID, "training": {"loss": "sampled", "samples": 4, "batch_tokens": 4000}}
    assert plan(said, *read(said)).config.training.precision == "float32"
    assert len(asked) == 18
