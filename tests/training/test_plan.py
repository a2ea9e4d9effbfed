"""Plans: specified options are used, the others follow from the table, and a training with minutes ends in time."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import Config, options_by_section
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.ngram.ngram import count_ngrams
from factorcell.nn.language_model import LanguageModel
from factorcell.options.limits import AUTOMATIC_OPTIONS
from factorcell.runs.run import Run, read_config, training_facts
from factorcell.runs.summary import used_options
from factorcell.training import fit as fitting
from factorcell.training import mixture, rules
from factorcell.training import trainer as trainers
from factorcell.training.compare import compare
from factorcell.training.fit import train_run
from factorcell.training.rules import plan, resumed_config, unspecified_options
from factorcell.training.trainer import Trainer
from tests.findings import logged_progress, parse_block
from tests.small_runs import ROWS

OPTIONS: dict[str, Any] = {
    "data": {"context": ["city"], "min_context_count": 1},
    "model": {"embedding_size": 5},
    "training": {"threads": 1},
    "tokenizer": {"min_count": 1},
    "backbone": {"hidden_size": 6},
}


def flat(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return options without their sections."""
    return {name: value for options in sections.values() for name, value in options.items()}


def read(options: dict[str, Any] = OPTIONS) -> tuple[Corpus, Corpus]:
    """Read the small table as training texts and as development texts."""
    return fitting.read_corpora(ROWS, ROWS, Config.from_dict(options))


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
        monkeypatch.setattr(mixture, "count_ngrams", timed_counting)
        monkeypatch.setattr(fitting, "read_corpora", timed_reading)
        for module in (fitting, trainers):
            monkeypatch.setattr(module, "perf_counter", self)
        # The small models learn few targets in a second.
        monkeypatch.setattr(fitting, "ordinary_target_seconds", lambda config: math.inf)

    def advance(self, seconds: float) -> None:
        """Advance the clock by work that takes `seconds` on an idle machine."""
        self.now += seconds * (self.slowdown if self.now < self.change else self.later_slowdown)

    def __call__(self) -> float:
        return self.now


def test_specified_options_are_not_chosen() -> None:
    complete = plan(OPTIONS, *read())
    assert complete.format_options(("hidden_size", "embedding_size", "threads")) == (
        "hidden_size 6, embedding_size 5, threads 1"
    )
    others, chosen = {"hidden_size", "embedding_size"}, unspecified_options(OPTIONS)
    assert set(chosen) == {name for names in AUTOMATIC_OPTIONS.values() for name in names} - others
    defaults = Config().to_dict()
    options = {
        section: {name: defaults[section][name] for name in names} for section, names in AUTOMATIC_OPTIONS.items()
    }
    assert unspecified_options({**OPTIONS, **options}) == ()
    assert Config().format_options(chosen) != complete.format_options(chosen)


def test_a_config_sets_all_options() -> None:
    config = Config.from_dict({**OPTIONS, "training": {"precision": "float32"}})
    assert unspecified_options(config.to_dict()) == ()
    assert plan(config.to_dict(), *read()) == config


TIMED_OPTIONS: dict[str, Any] = {
    **OPTIONS,
    "training": {"batch_tokens": 8, "precision": "float32", "threads": 1, "patience": 0},
}


@pytest.mark.parametrize("slowdowns", [(1.0, 1.0), (1.0, 0.5), (1.0, 3.0), (2.5, 1.0)])
@pytest.mark.parametrize("minutes", [0.5, 2.0])
def test_a_command_with_minutes_ends_in_time(
    minutes: float, slowdowns: tuple[float, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command takes about `minutes`, although all work gets slower or faster in the middle of the training."""
    corpus, _ = read(TIMED_OPTIONS)
    targets_per_step = corpus.target_count / len(corpus.batches(TIMED_OPTIONS["training"]["batch_tokens"], seed=0))
    clock = Clock(monkeypatch, step=1.0, text=0.02, ngram=0.01, reading=5.0)
    clock.slowdown, clock.later_slowdown, clock.change = *slowdowns, minutes * 60 * 0.45
    monkeypatch.setattr(rules, "MAX_WORD_PASSES", 200.0)
    monkeypatch.setattr(fitting, "ordinary_target_seconds", lambda config: 1.0 / targets_per_step)
    monkeypatch.setattr(fitting, "seconds_after_steps", lambda minutes, *facts: (2.0 * minutes, 4.0 * minutes))
    with logged_progress() as lines:
        run = train_run(ROWS, ROWS, TIMED_OPTIONS, tmp_path / "run", minutes=minutes, preset="best", compare_ngram=True)
    last_row = run.log()[-1]
    assert last_row["step"] == last_row["steps"] == run.config.training.steps
    reserve = 0.1 * max(1.0, slowdowns[1])  # for the work after the steps, by the speed at the end
    seconds = last_row["seconds"] + 5.0 * slowdowns[0]
    assert seconds == pytest.approx((1 - reserve) * minutes * 60, abs=4.0 * max(slowdowns))
    assert clock() <= minutes * 60 + 6.0
    assert parse_block(lines)["time"] == f"{clock() / 60:.1f} of {minutes:g} minutes"
    assert run.config == read_config(run.folder)
    repeated = Run(tmp_path / "repeated", run.config, run.tokenizer, run.schema)
    assert Trainer(repeated, *read(TIMED_OPTIONS)).progress.steps == last_row["step"]


def test_a_training_that_ends_early_says_why(tmp_path: Path) -> None:
    options = {**TIMED_OPTIONS, "training": {**TIMED_OPTIONS["training"], "epochs": 2.0}}
    with logged_progress() as lines:
        train_run(ROWS, ROWS, options, tmp_path / "run", minutes=5.0)
    assert parse_block(lines)["time"].endswith(" of 5 minutes; all 2 passes are made (--epochs)")


def test_a_training_with_a_time_limit_and_passes_is_resumed_after_its_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its config has the steps and passes that it made, not those of the command."""
    Clock(monkeypatch, step=1.0, text=0.02)
    options = {**TIMED_OPTIONS, "training": {**TIMED_OPTIONS["training"], "epochs": 400.0}}

    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "save_other_models", stop)
        with pytest.raises(KeyboardInterrupt):
            train_run(ROWS, ROWS, options, tmp_path / "run", minutes=0.5)
    steps = read_config(tmp_path / "run").training.steps
    run = train_run(ROWS, ROWS, options, tmp_path / "run", minutes=0.5, resume=True)
    assert run.config.training.steps == steps == run.log()[-1]["step"] > 0
    assert run.config.training.epochs < 400


def test_enough_minutes_make_the_passes_of_the_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, step=1.0, text=0.05)
    run = train_run(ROWS, ROWS, TIMED_OPTIONS, tmp_path / "run", minutes=60.0, preset="good")
    corpora = read(TIMED_OPTIONS)
    passes = run.log()[-1]["tokens"] / corpora[0].target_count
    assert passes == pytest.approx(rules.default_passes(rules.TableFacts.of(*corpora), "good"), rel=0.02)
    assert run.config.training.epochs == pytest.approx(passes, rel=0.02)
    assert clock() < 60 * 60


def test_with_too_few_minutes_the_training_gets_its_smallest_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reading alone takes longer than the limit."""
    Clock(monkeypatch, step=0.1, text=0.01, reading=40.0)
    run = train_run(ROWS, ROWS, TIMED_OPTIONS, tmp_path / "run", minutes=0.5)
    reserve = sum(rules.seconds_after_steps(0.5, 0, False, 1))
    assert run.training_minutes() == pytest.approx((0.3 * 30 - reserve) / 60, rel=0.1)


@pytest.mark.parametrize("minutes", [0.1, 1.0, 100.0])
def test_the_plan_does_not_depend_on_the_adaptation(minutes: float) -> None:
    configs = [plan({"model": {"adapt": adapt}}, *read(), minutes) for adapt in ([], ["factor"], ["concat", "factor"])]
    assert len({(config.training, config.backbone, config.model.rank) for config in configs}) == 1


def test_chosen_options_give_the_weights_of_the_same_specified_options(tmp_path: Path) -> None:
    options = {**OPTIONS, "training": {"epochs": 2.0}}
    chosen = train_run(ROWS, ROWS, options, tmp_path / "chosen")
    plain = train_run(ROWS, ROWS, chosen.config, tmp_path / "specified")
    assert chosen.fingerprint == plain.fingerprint
    np.testing.assert_array_equal(chosen.nats(read()[0]), plain.nats(read()[0]))


def test_chosen_options_are_reported_and_kept_in_the_run_folder(tmp_path: Path) -> None:
    options = {**OPTIONS, "training": {"epochs": 1.0, "batch_tokens": 20}}
    with logged_progress() as lines:
        run = train_run(ROWS, ROWS, options, tmp_path / "run")
    used = used_options(unspecified_options(options), run.config, run.schema)
    assert {"adapt", "layer_norm", "learning_rate"} <= set(used)
    assert "epochs" not in used
    assert parse_block(lines)["options"].startswith(run.config.format_options(used))
    assert training_facts(run.folder)["chosen"] == used
    assert "samples" not in training_facts(run.folder)["chosen"]  # the small vocabulary has the exact loss
    assert not any("samples" in line for line in lines)
    assert "- chosen automatically: adapt " in (run.folder / "README.md").read_text("utf-8")
    assert "chosen" not in training_facts(train_run(ROWS, ROWS, run.config, tmp_path / "plain").folder)


def test_the_minimum_count_of_the_table_is_kept_in_the_config(tmp_path: Path) -> None:
    config = Config.of(**flat(OPTIONS), epochs=1.0, batch_tokens=20).with_options(min_context_count=0)
    run = train_run(ROWS, ROWS, config, tmp_path / "run")
    assert run.config.data.min_context_count == config.data.min_value_count(len(ROWS)) == 5
    assert [variable.min_count for variable in run.schema.categories] == [5]
    assert train_run(ROWS, ROWS, config, tmp_path / "run", resume=True).config == run.config


def test_a_resumed_training_keeps_the_chosen_options(tmp_path: Path) -> None:
    run = train_run(ROWS, ROWS, OPTIONS, tmp_path / "run", preset="quick")
    assert resumed_config(OPTIONS, run.config) == run.config
    again = train_run(ROWS, ROWS, OPTIONS, tmp_path / "run", resume=True)
    assert again.config == run.config
    other = {**OPTIONS, "training": {"learning_rate": 0.5}}
    with pytest.raises(UserError, match="cannot resume; expected learning_rate = "):
        train_run(ROWS, ROWS, other, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="expected kind = 'word' as before, got 'char'"):
        train_run(ROWS, ROWS, {**OPTIONS, "tokenizer": {"kind": "char"}}, tmp_path / "run", resume=True)


def test_compared_models_have_the_same_options(tmp_path: Path) -> None:
    models = ["unadapted", "factorcell"]
    compare(ROWS, dev=ROWS, out=tmp_path / "c", models=models[:1], preset="quick", **flat(OPTIONS))
    compare(ROWS, dev=ROWS, out=tmp_path / "c", models=models, resume=True, **flat(OPTIONS))
    first, second = (Run.open(tmp_path / "c" / name) for name in models)
    assert dataclasses.replace(first.config.training) == second.config.training
    assert first.config.with_options(model="factorcell").model == second.config.model
    chosen = used_options(unspecified_options(OPTIONS), first.config, first.schema)
    set_by_compare = ("adapt", "output_bias", "ngram_mixture")
    assert training_facts(first.folder)["chosen"] == [name for name in chosen if name not in set_by_compare]
    assert "chosen" not in training_facts(second.folder)  # it has the options of the first


def test_a_training_without_context_says_so_once_and_lists_no_option_of_the_context(tmp_path: Path) -> None:
    options = {**OPTIONS, "data": {}, "training": {"epochs": 1.0}}
    with logged_progress() as lines:
        run = train_run(ROWS, ROWS, options, tmp_path / "run")
    assert parse_block(lines)["columns"] == "none"
    card = (run.folder / "README.md").read_text("utf-8")
    assert "unadapted (reads no columns)" in card
    for name in ("rank", "context_size", "variable_size", "dropout_context", "Adapters", "softmax biases"):
        assert name not in card, name
        assert not any(name in line for line in lines), name
    unadapted = {**options, "data": OPTIONS["data"], "model": {"adapt": [], "output_bias": [], "embedding_size": 5}}
    with logged_progress() as lines:
        train_run(ROWS, ROWS, unadapted, tmp_path / "unadapted")
    block = parse_block(lines)
    assert "city" in block["columns"]
    assert block["model"].startswith("unadapted")


@pytest.mark.parametrize(
    ("budget", "text"), [({"minutes": 0.0}, "minutes is 0"), ({"preset": "fast"}, "unknown preset 'fast'")]
)
def test_a_budget_is_checked(budget: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=text):
        train_run(ROWS, ROWS, OPTIONS, tmp_path / "run", **budget)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("minutes", "hidden", "dropout", "dev_targets"),
    [(1.0, 150, 0.0, 4000), (4.0, 200, 0.1, 16_000), (20.0, 300, 0.2, 80_000)],
)
def test_options_fit_the_passes_that_the_minutes_allow(
    minutes: float,
    hidden: int,
    dropout: float,
    dev_targets: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = rules.TableFacts(1_000_000, 5000, is_character_level=False, dev_targets=10_000_000)
    monkeypatch.setattr(rules.TableFacts, "of", lambda *_, **__: facts)
    planned = plan({}, *read(), minutes)
    assert planned.training.epochs == 12.0  # the largest number of passes
    assert planned.training.max_dev_targets == dev_targets
    files.write_json(tmp_path / "config.json", planned.to_dict())
    repeated = plan(options_by_section({"config": tmp_path / "config.json", "model": "unadapted"}), *read())
    assert repeated.training.max_dev_targets == dev_targets, "trainings with the same config read the same texts"
    names = ("hidden_size", "dropout_recurrent")
    assert planned.format_options(names) == f"hidden_size {hidden}, dropout_recurrent {dropout}"


def test_an_evaluation_with_a_large_vocabulary_reads_fewer_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation computes all logits, and the training only those of the sampled loss."""
    for vocabulary, dev_targets in ((5000, 8000), (45_000, round(8000 / 3.5))):
        facts = rules.TableFacts(1_000_000, vocabulary, is_character_level=False, dev_targets=10_000_000)
        monkeypatch.setattr(rules.TableFacts, "of", lambda *_, facts=facts, **__: facts)
        planned = plan({}, *read(), 2.0)
        assert planned.training.max_dev_targets == dev_targets
        assert planned.training.evaluations == 10


def test_models_after_the_first_make_its_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Clock(monkeypatch, step=1.0, text=0.02)
    models = ["factorcell", "unadapted"]
    compare(ROWS, dev=ROWS, out=tmp_path / "c", models=models, minutes=0.5, ngram=False, **flat(TIMED_OPTIONS))
    first, second = (Run.open(tmp_path / "c" / name) for name in models)
    assert first.training_minutes() == pytest.approx(0.45, rel=0.1)
    assert first.log()[-1]["step"] == second.log()[-1]["step"] == second.config.training.steps


def test_a_loss_that_is_not_finite_is_reported_by_the_training_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda *arguments: original(*arguments) * torch.nan)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=rf"not finite at step 1, .*the checkpoint before this step is in {tmp_path}/run "
    ):
        train_run(ROWS, ROWS, OPTIONS, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
