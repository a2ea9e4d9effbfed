"""Plans: specified options are used, the others follow from the table, and a training with minutes ends in time."""

import dataclasses
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.choices import AUTOMATIC_OPTIONS, ONLY_WITH_BASE
from factorcell.config import Config, UserError
from factorcell.data.corpus import Corpus
from factorcell.evaluation.run_warnings import describe_schedule_change
from factorcell.model import precision as precisions
from factorcell.model.language_model import LanguageModel
from factorcell.model.ngram import count_ngrams
from factorcell.model.run import Run, read_config, training_facts
from factorcell.model.used_options import used_options
from factorcell.training import fit as fitting
from factorcell.training import loop, mixture_fit, rules, speed
from factorcell.training import plan as plans
from factorcell.training import trainer as trainers
from factorcell.training.compare import compare
from factorcell.training.fit import fit
from factorcell.training.per_value import separate
from factorcell.training.plan import Budget, Plan, plan, resumed_plan, unspecified_options
from factorcell.training.speed import Speed
from factorcell.training.trainer import Trainer
from tests.small_runs import ROWS, as_any

OPTIONS: dict[str, Any] = {
    "data": {"context": ["city"], "min_context_count": 1},
    "model": {"embedding_size": 5},
    "training": {"threads": 1},
    "tokenizer": {"min_count": 1},
    "backbone": {"hidden_size": 6},
}


def read(options: dict[str, Any] = OPTIONS) -> tuple[Corpus, Corpus]:
    """Read the small table as training texts and as development texts."""
    return fitting.read_corpora(ROWS, ROWS, Config.from_dict(options), progress=False)


@pytest.fixture(autouse=True)
def measure_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the speed of only a few steps."""
    monkeypatch.setattr(speed, "MEASURED_SECONDS", 0.05)
    monkeypatch.setattr(speed, "FIRST_TEXTS", 2)


class Clock:
    """A clock in seconds that advances only by reading, steps, scored texts and counted n-grams.

    All work takes `slowdown` times as long; `later_slowdown` replaces this factor at the time `change`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **costs: float) -> None:
        self.now, self.slowdown, self.later_slowdown, self.change = 0.0, 1.0, 1.0, float("inf")
        costs = {"text": 0.0, "ngram": 0.0, "reading": 0.0, **costs}
        originals = Trainer.step, Run.nats, count_ngrams, fitting.read_corpora

        def timed_step(trainer: Trainer, batch: Any) -> None:
            self.advance(costs["step"])
            originals[0](trainer, batch)

        def timed_nats(run: Run, corpus: Corpus) -> Any:
            self.advance(costs["text"] * len(corpus))
            return originals[1](run, corpus)

        def timed_counting(corpus: Corpus, order: int) -> Any:
            self.advance(costs["ngram"] * corpus.target_count)
            return originals[2](corpus, order)

        def timed_reading(*arguments: Any, **options: Any) -> Any:
            self.advance(costs["reading"])
            return originals[3](*arguments, **options)

        monkeypatch.setattr(Trainer, "step", timed_step)
        monkeypatch.setattr(Run, "nats", timed_nats)
        monkeypatch.setattr(mixture_fit, "count_ngrams", timed_counting)
        monkeypatch.setattr(fitting, "read_corpora", timed_reading)
        for module in (plans, speed, fitting, loop, trainers):
            monkeypatch.setattr(module, "perf_counter", self)
        monkeypatch.setattr(speed, "process_time", self)

    def advance(self, seconds: float) -> None:
        """Advance the clock by work that takes `seconds` on an idle machine."""
        self.now += seconds * (self.slowdown if self.now < self.change else self.later_slowdown)

    def __call__(self) -> float:
        return self.now


def test_specified_options_are_not_chosen() -> None:
    complete = plan(OPTIONS, *read())
    assert complete.config.format_options(("hidden_size", "embedding_size", "threads")) == (
        "hidden_size 6, embedding_size 5, threads 1"
    )
    others = {"hidden_size", "embedding_size", *ONLY_WITH_BASE}
    assert set(complete.chosen) == {name for names in AUTOMATIC_OPTIONS.values() for name in names} - others
    defaults = Config().to_dict()
    options = {
        section: {name: defaults[section][name] for name in names} for section, names in AUTOMATIC_OPTIONS.items()
    }
    assert plan({**OPTIONS, **options}, *read()).chosen == ()
    assert Config().format_options(complete.chosen) != complete.config.format_options(complete.chosen)


def test_a_config_sets_all_options() -> None:
    config = Config.from_dict({**OPTIONS, "training": {"precision": "float32"}})
    assert plan(config, *read()) == Plan(config)
    with pytest.raises(UserError, match="a Config sets all options"):
        plan(config, *read(), Budget(minutes=1))


TIMED_OPTIONS: dict[str, Any] = {
    **OPTIONS,
    "training": {"batch_tokens": 8, "precision": "float32", "threads": 1, "patience": 0},
}


@pytest.mark.parametrize(
    ("minutes", "costs", "slowdowns"),
    [
        (0.5, {}, (1.0, 1.0)),
        (2.0, {}, (1.0, 0.5)),
        (2.0, {}, (1.0, 3.0)),
        (2.0, {"ngram": 0.4}, (1.0, 1.0)),
        (2.0, {"ngram": 0.4}, (1.0, 2.5)),
        (2.0, {"ngram": 0.2}, (2.5, 1.0)),
        (2.0, {"ngram": 0.4, "reading": 20.0}, (1.0, 1.5)),
        (4.0, {"ngram": 0.1, "text": 0.3}, (1.0, 2.0)),
    ],
)
def test_a_command_with_minutes_ends_in_time(
    minutes: float,
    costs: dict[str, float],
    slowdowns: tuple[float, float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The command takes about `minutes`, although all work gets slower or faster in the middle of the training."""
    clock = Clock(monkeypatch, **{"step": 1.5, "text": 0.05, **costs})
    clock.slowdown, clock.later_slowdown, clock.change = *slowdowns, minutes * 60 * 0.45
    monkeypatch.setattr(rules, "MAX_WORD_PASSES", 60.0)
    lines: list[str] = []
    budget = Budget(minutes, "best")
    run = fit(ROWS, ROWS, TIMED_OPTIONS, tmp_path / "run", budget=budget, compare_ngram=True, notify=lines.append)
    last_row = run.log()[-1]
    assert last_row["step"] == last_row["steps"]
    assert clock() == pytest.approx(minutes * 60, rel=0.1)
    (planned,) = (line for line in lines if "for training, " in line)
    assert f" minutes with a limit of {minutes:g}: " in planned
    assert float(planned.split("about ")[1].split()[0]) == pytest.approx(minutes, rel=0.1)
    took = f"took {clock() / 60:.1f} of {minutes:g} minutes, {run.training_minutes():.1f} for training"
    assert lines[lines.index(took) :] == [took, *filter(None, [describe_schedule_change(run)])]
    assert run.config == read_config(run.folder)
    assert f"epochs {float(f'{run.config.training.epochs:.3g}')}," in (run.folder / "README.md").read_text("utf-8")
    repeated = Run(tmp_path / "repeated", run.config, run.tokenizer, run.schema)
    assert Trainer(repeated, *read(TIMED_OPTIONS)).steps == last_row["step"]


def test_enough_minutes_make_the_passes_of_the_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, step=1.0, text=0.05)
    run = fit(ROWS, ROWS, TIMED_OPTIONS, tmp_path / "run", budget=Budget(60.0, "good"))
    corpora = read(TIMED_OPTIONS)
    passes = run.log()[-1]["tokens"] / corpora[0].target_count
    assert passes == pytest.approx(rules.default_passes(rules.TableFacts.of(*corpora), "good"), rel=0.02)
    assert run.config.training.epochs == pytest.approx(passes, rel=0.02)
    assert clock() < 60 * 60


def test_with_too_few_minutes_the_training_gets_its_smallest_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reading alone takes longer than the limit; the notice before the training says that the limit is exceeded."""
    clock, lines = Clock(monkeypatch, step=0.1, text=0.01, ngram=0.1, reading=40.0), list[str]()
    run = fit(ROWS, ROWS, TIMED_OPTIONS, tmp_path / "run", budget=Budget(0.5), notify=lines.append)
    assert run.training_minutes() == pytest.approx(0.3 * 0.5, rel=0.1)
    (planned,) = (line for line in lines if "for training, " in line)
    expected_minutes = float(planned.split("about ")[1].split()[0])
    assert "minutes with a limit of 0.5 (training takes at least 30% of the limit): " in planned
    assert clock() / 60 == pytest.approx(expected_minutes, rel=0.1)
    assert any(line.startswith(f"took {clock() / 60:.1f} of 0.5 minutes, ") for line in lines[-2:])


@pytest.mark.parametrize("minutes", [0.1, 1.0, 100.0])
def test_the_sizes_do_not_depend_on_the_adaptation(minutes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = rules.TableFacts(1_000_000, 5000, is_character_level=False)

    def measure_speed(config: Config, *_: Any) -> Speed:
        sizes = as_any(config.backbone).hidden_size + config.model.rank * len(config.model.adapt) ** 2
        return Speed(sizes / 10, 1, 0.0)

    monkeypatch.setattr(rules.TableFacts, "of", lambda *_, **__: facts)
    monkeypatch.setattr(plans, "measure_speed", measure_speed)
    texts, configs = read(), []
    for adapt in ([], ["factor"], ["concat", "factor"]):
        specified: dict[str, Any] = {"training": {"precision": "float32"}, "model": {"adapt": adapt}}
        configs.append(plan(specified, *texts, Budget(minutes)).config)
    sizes = {config.format_options(("embedding_size", "hidden_size", "layer_norm", "rank")) for config in configs}
    assert len(sizes) == 1
    passes = [config.training.epochs for config in configs]
    assert passes == sorted(passes, reverse=True)


def test_measuring_changes_no_result_and_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {**OPTIONS, "training": {"epochs": 2.0}}
    chosen = fit(ROWS, ROWS, options, tmp_path / "chosen")
    plain = fit(ROWS, ROWS, chosen.config, tmp_path / "specified")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chosen", "specified"]
    assert chosen.fingerprint == plain.fingerprint
    np.testing.assert_array_equal(chosen.nats(read()[0]), plain.nats(read()[0]))


def test_chosen_options_are_reported_and_kept_in_the_run_folder(tmp_path: Path) -> None:
    lines: list[str] = []
    options = {**OPTIONS, "training": {"epochs": 1.0, "batch_tokens": 20}}
    run = fit(ROWS, ROWS, options, tmp_path / "run", notify=lines.append)
    assert lines[0].startswith("chosen model options: context_size 8,")
    assert lines[1].startswith("chosen backbone options: layer_norm false, dropout_recurrent ")
    assert lines[2].startswith("chosen training options: learning_rate ")
    assert "epochs" not in lines[2]
    assert lines[2].endswith("; to override, set --context-size or any other option")
    assert lines[3].startswith("1 pass, about ")
    assert training_facts(run.folder)["chosen"] == used_options(unspecified_options(options), run.config, run.schema)
    assert "samples" not in training_facts(run.folder)["chosen"]  # the small vocabulary has the exact loss
    assert not any("samples" in line for line in lines)
    assert "- chosen automatically: `context_size 8" in (run.folder / "README.md").read_text("utf-8")
    assert "chosen" not in training_facts(fit(ROWS, ROWS, run.config, tmp_path / "plain").folder)


def test_a_resumed_training_keeps_the_chosen_options(tmp_path: Path) -> None:
    run = fit(ROWS, ROWS, OPTIONS, tmp_path / "run", budget=Budget(preset="quick"))
    assert resumed_plan(OPTIONS, run.config).config == run.config
    again = fit(ROWS, ROWS, OPTIONS, tmp_path / "run", resume=True)
    assert again.config == run.config
    other = {**OPTIONS, "training": {"learning_rate": 0.5}}
    with pytest.raises(UserError, match="cannot resume; expected learning_rate = "):
        fit(ROWS, ROWS, other, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="expected kind = 'word' as before, got 'char'"):
        fit(ROWS, ROWS, {**OPTIONS, "tokenizer": {"kind": "char"}}, tmp_path / "run", resume=True)


def test_compared_models_have_the_same_options(tmp_path: Path) -> None:
    models = ["unadapted", "factorcell"]
    compare(ROWS, ROWS, None, OPTIONS, tmp_path / "c", models=models[:1], budget=Budget(preset="quick"))
    compare(ROWS, ROWS, None, OPTIONS, tmp_path / "c", models=models, resume=True)
    first, second = (Run.open(tmp_path / "c" / name) for name in models)
    assert dataclasses.replace(first.config.training) == second.config.training
    assert first.config.with_model("factorcell").model == second.config.model
    chosen = unspecified_options(OPTIONS)
    for run in (first, second):
        assert training_facts(run.folder)["chosen"] == used_options(chosen, run.config, run.schema)
    assert {"rank", "context_size"} & set(training_facts(first.folder)["chosen"]) == set()
    assert "rank" in training_facts(second.folder)["chosen"]


def test_a_training_without_context_says_so_once_and_lists_no_option_of_the_context(tmp_path: Path) -> None:
    lines: list[str] = []
    options = {**OPTIONS, "data": {}, "training": {"epochs": 1.0}}
    run = fit(ROWS, ROWS, options, tmp_path / "run", notify=lines.append)
    assert lines.count("no context: this is an unadapted model") == 1
    card = (run.folder / "README.md").read_text("utf-8")
    assert "No context: this is an unadapted model." in card
    for name in ("rank", "context_size", "variable_size", "dropout_context", "Adapters", "softmax biases"):
        assert name not in card, name
        assert not any(name in line for line in lines), name
    unadapted = {**options, "data": OPTIONS["data"], "model": {"adapt": [], "output_bias": [], "embedding_size": 5}}
    lines.clear()
    fit(ROWS, ROWS, unadapted, tmp_path / "unadapted", notify=lines.append)
    assert "an unadapted model: it does not read the context columns city" in lines


def test_separate_runs_have_options_by_the_texts_of_their_value(tmp_path: Path) -> None:
    options = {
        **OPTIONS,
        "data": {"min_context_count": 2},
        "training": {"precision": "float32"},
        "tokenizer": {"kind": "char", "min_count": 1},
    }
    runs = separate(ROWS * 2, ROWS, options, tmp_path / "each", by="city", budget=Budget(preset="quick"))
    passes = [run.config.training.epochs for run in runs.runs.values()]
    assert passes[0] < min(passes[1:])


@pytest.mark.parametrize(
    ("budget", "text"), [({"minutes": 0.0}, "minutes is 0"), ({"preset": "fast"}, "unknown preset 'fast'")]
)
def test_a_budget_is_checked(budget: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        Budget(**budget)


@pytest.mark.parametrize(
    ("minutes", "passes", "hidden", "dropout"), [(0.5, 2.5, 150, 0.0), (1.25, 5.0, 200, 0.1), (4.0, 12.0, 200, 0.2)]
)
def test_options_fit_the_passes_that_the_minutes_allow(
    minutes: float, passes: float, hidden: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of passes, the sizes and the dropout follow from the minutes.

    With 1.25 minutes, the model for 12 passes makes 2.5 passes. The smaller model for 2.5 passes is faster and makes
    5, and its dropout is the one for 5 passes. No training makes more passes than the default.
    """
    facts = rules.TableFacts(1_000_000, 5000, is_character_level=False)
    seconds = {150: 12.0, 200: 15.0, 300: 30.0}  # of a pass, by hidden size

    def measure_speed(config: Config, *_: Any) -> Speed:
        return Speed(seconds[as_any(config.backbone).hidden_size] / 1000, 1000, 0.0)

    monkeypatch.setattr(rules.TableFacts, "of", lambda *_, **__: facts)
    monkeypatch.setattr(plans, "measure_speed", measure_speed)
    monkeypatch.setattr(plans, "measure_finishing", lambda *_, **__: 0.0)
    complete = plan({"training": {"precision": "float32"}}, *read(), Budget(minutes), start=perf_counter()).config
    assert complete.training.epochs == pytest.approx(passes, rel=0.01)
    assert (
        complete.format_options(("hidden_size", "dropout_recurrent"))
        == f"hidden_size {hidden}, dropout_recurrent {dropout}"
    )


def test_compared_models_have_the_minutes_without_those_of_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finishing work of one training takes half a minute here, and all models share the planning."""
    facts = rules.TableFacts(1_000_000, 5000, is_character_level=False)
    monkeypatch.setattr(rules.TableFacts, "of", lambda *_, **__: facts)
    monkeypatch.setattr(plans, "measure_speed", lambda *_: Speed(12.0 / 1000, 1000, 0.0))
    monkeypatch.setattr(plans, "measure_finishing", lambda *_, **__: 30.0)
    options = {"training": {"precision": "float32"}}
    single = plan(options, *read(), Budget(1.0), start=perf_counter()).config.training.epochs
    shared = plan(options, *read(), Budget(1.0), models=("unadapted", "factorcell")).config.training.epochs
    assert shared == pytest.approx(0.97 * 60 / 12, rel=0.01)
    assert single < 0.55 * 60 / 12


def test_a_loss_that_is_not_finite_is_reported_by_the_training_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda *arguments: original(*arguments) * torch.nan)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=rf"not finite at step 1, .*the checkpoint before this step is in {tmp_path}/run "
    ):
        fit(ROWS, ROWS, OPTIONS, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_table_with_few_steps_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure_often(work: Any, *_: Any) -> float:
        for name in ("float32", "bfloat16") * 9:
            work(name)
            measured.append(name)
        return 1.0

    monkeypatch.setattr(precisions, "measure_speedup", measure_often)
    options = {**OPTIONS, "training": {"loss": "sampled", "samples": 4, "batch_tokens": 4000}}
    assert plan(options, *read(options)).config.training.precision == "float32"
    assert len(measured) == 18
