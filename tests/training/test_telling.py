"""The passes that end a training with `tell_apart`: what moves, what is kept, and that they are made once."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from factorcell import files, finetune
from factorcell.config import Config, UserError
from factorcell.evaluation import text_figures
from factorcell.evaluation.cautions import cautions, context_gain
from factorcell.evaluation.classification import classify
from factorcell.evaluation.perplexity import evaluate
from factorcell.interrupts import Stopped
from factorcell.model.run import TELLING, Run, facts
from factorcell.training import fit as fitting
from factorcell.training import plan as plans
from factorcell.training import telling
from factorcell.training.compare import compare
from factorcell.training.finetuning import gentle
from factorcell.training.fit import fit, summary
from factorcell.training.per_value import separate
from factorcell.training.plan import Budget, Speed, plan, speed
from factorcell.training.proximal import part_of
from factorcell.training.search import SearchOptions, search
from factorcell.training.trainer import Trainer
from tests import synthetic
from tests.training.test_plan import Clock

TEXTS, DEV = synthetic.two_dialects(200, 1)[0], synthetic.two_dialects(40, 2)[0]


def config(*told: str, **training: Any) -> Config:
    """A small FactorCell of words; what it is told of dialects."""
    sizes = {"hidden_size": 12, "embedding_size": 8, "rank": 2, "context_size": 4, "variable_size": 4}
    how = {"epochs": 3, "batch_tokens": 200, "learning_rate": 0.01, "evaluations": 2, "log_every": 1, **training}
    return Config.from_dict(
        {
            "data": {"context": ["dialect"], "min_count": 1, "min_context_count": 1},
            "model": sizes,
            "training": {**how, "tell_apart": list(told), "loss": "sampled", "samples": 9},
        }
    )


def weights(run: Run) -> dict[str, Tensor]:
    """All that is learned."""
    return {name: value.detach().clone() for name, value in run.model.named_parameters()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was told nothing."""
    return fit(TEXTS, DEV, config(), tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same, that learned to tell dialects apart in the end."""
    return fit(TEXTS, DEV, config("20"), tmp_path_factory.mktemp("told") / "run")


def test_only_what_depends_on_the_context_moves(plain: Run, told: Run) -> None:
    """All else is, bit for bit, what a training without `tell_apart` ends with."""
    before, after = weights(plain), weights(told)
    parts: dict[str, bool] = {}
    for name, value in after.items():
        parts[part_of(name)] = parts.get(part_of(name), False) or not torch.equal(value, before[name])
    assert parts == {name: name in telling.PARTS for name in parts}
    assert set(telling.PARTS) < set(parts)


def test_the_log_ends_with_the_weights_that_are_kept(plain: Run, told: Run) -> None:
    """One row more than without, whose perplexity the weights have; the folder of the last passes is gone."""
    log = told.log()
    assert [row["step"] for row in log[:-1]] == [row["step"] for row in plain.log()]
    assert log[-1] == told.best() == facts(told.folder)["told"]
    passes = config("20").training
    steps = log[-2]["steps"]
    assert log[-1]["step"] == log[-1]["steps"] == pytest.approx(steps * (1 + passes.tell_epochs / passes.epochs), abs=2)
    assert 60 * told.minutes() == pytest.approx(log[-1]["seconds"])
    assert log[-1]["seconds"] > log[-2]["seconds"]
    assert evaluate(told, DEV)["perplexity"] == pytest.approx(log[-1]["perplexity"], rel=1e-5)
    assert f"at step {log[-1]['step']} of" in summary(told)
    assert not (told.folder / TELLING).exists()
    card = (told.folder / "README.md").read_text(encoding="utf-8")
    assert 'learned in the end to tell values apart: `tell_apart ["20"], tell_epochs 1' in card
    assert {path.name for path in told.folder.iterdir()} == {path.name for path in plain.folder.iterdir()}
    opened = Run.open(told.folder)
    assert all(torch.equal(value, weights(told)[name]) for name, value in weights(opened).items())


def test_what_every_text_adds_is_of_the_weights_that_are_kept(told: Run) -> None:
    """So is the gain of its context, which is made from it."""
    kept = text_figures.read(told.folder, facts(told.folder)["development_key"])
    assert kept["perplexity"].ratio == pytest.approx(math.log(told.log()[-1]["perplexity"]), rel=1e-6)
    assert facts(told.folder)["context"] == pytest.approx(context_gain(told, told.prepare(DEV)))


def test_patience_ends_the_first_part_alone(tmp_path: Path) -> None:
    """The steps of the log are those that were made; with no pass to tell in, nothing is told."""
    patient = {"patience": 1, "evaluations": 6, "learning_rate": 0.4}
    said: list[str] = []
    run = fit(TEXTS, DEV, config("20", **patient), tmp_path / "run", say=said.append)
    first, last = run.log()[-2:]
    assert first["step"] < first["steps"]
    ended = f"patience ended it at step {first['step']} of {first['steps']}"
    assert f"{ended}: none of the last evaluations (1) brought a lower perplexity" in said
    assert last["step"] == last["steps"] > first["step"]
    assert [one for one in cautions([run]) if "stopped after" in one] == []
    plain = fit(TEXTS, DEV, config("20", tell_epochs=0.0), tmp_path / "plain")
    assert "told" not in facts(plain.folder)


def test_what_it_was_worth_is_told(told: Run, tmp_path: Path) -> None:
    """The accuracies of `classify` with the priors of training, of the run before and after; also when resumed."""
    said: list[str] = []
    run = fit(TEXTS, DEV, config("20"), tmp_path / "run", say=said.append)
    plain = fit(TEXTS, DEV, config(), tmp_path / "plain")
    before, after = (classify(one, DEV, "dialect", priors="training").metrics()["accuracy"] for one in (plain, told))
    assert before != after
    [row] = facts(told.folder)["told"]["apart"]
    kept = {"column": "dialect", "values": 2, "all": 2, "texts": len(DEV), "before": before, "after": after}
    assert row == pytest.approx(kept)
    line = f"dialect of 40 dev texts told apart: {before:.1%} before, {after:.1%} after"
    assert said[-1] == line
    again: list[str] = []
    fit(TEXTS, DEV, config("20"), run.folder, resume=True, say=again.append)
    assert again[-1] == line
    assert f"{run.folder}: nothing to do, its training has come to its end before" in again
    assert telling.lines([{**row, "all": 3}])[0].startswith("dialect of 40 dev texts told apart, of its 2 most freq")


def test_the_accuracy_is_of_few_texts_and_values(told: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the most frequent values, and so many texts that it costs no more than an evaluation, but for a few."""
    corpus = told.prepare(DEV)
    monkeypatch.setattr(telling, "FEWEST", 5)
    [row] = telling.accuracies(told, corpus)
    assert (row["values"], row["texts"]) == (2, len(DEV) // 2)
    monkeypatch.setattr(telling, "MOST", 7)
    assert telling.accuracies(told, corpus)[0]["texts"] == 7
    monkeypatch.setattr(telling, "VALUES", 1)
    [row] = telling.accuracies(told, corpus)
    assert (row["values"], row["all"], row["accuracy"]) == (1, 2, 1.0)
    assert telling.accuracies(told, told.prepare([{"text": "a"}], optional=("dialect",))) == []


def test_who_reads_all_contexts_alike_is_not_taught(plain: Run, tmp_path: Path) -> None:
    """`fit`, `finetune` and `separate` say so before they read anything; a weight of 0 asks for nothing."""
    given = config("20").to_dict()
    given["model"] |= {"adapt": [], "output_bias": []}
    alike = r"tell_apart of a model that is not adapted: it reads texts alike in every context, so there is nothing"
    for asked in (given, Config.from_dict(given)):
        with pytest.raises(UserError, match=alike):
            fit("nowhere.csv", None, asked, tmp_path / "run")
    with pytest.raises(UserError, match=alike):
        separate("nowhere.csv", None, config("20"), tmp_path / "run", by="dialect")
    assert not (tmp_path / "run").exists()
    given["training"]["tell_apart"] = ["0"]
    bare = fit(TEXTS, DEV, Config.from_dict(given), tmp_path / "bare")
    with pytest.raises(UserError, match=alike):
        finetune(bare, "nowhere.csv", None, tmp_path / "run", training={"tell_apart": ("20",)})
    said: list[str] = []
    run = finetune(plain, TEXTS, DEV, tmp_path / "run", training={"tell_apart": ("20",), "epochs": 1}, say=said.append)
    before, after = (classify(one, DEV, "dialect", priors="training").metrics()["accuracy"] for one in (plain, run))
    assert said[-1] == f"dialect of 40 dev texts told apart: {before:.1%} before, {after:.1%} after"


def stopping(at: int) -> Callable[..., list[bool]]:
    """The steps of a trainer, of which that number stops the training."""
    step, count = Trainer.step, [0]

    def stepped(self: Trainer, batch: Any, *asked: bool) -> list[bool]:
        count[0] += 1
        if count[0] == at:
            self.stop.asked = True
        return step(self, batch, self.stop.asked, *asked[1:])

    return stepped


@pytest.mark.parametrize("after", [1, 4])
def test_a_stop_while_telling_leads_to_the_same_end(after: int, told: Run, tmp_path: Path) -> None:
    """So do a stop and a start between the two, and a second start after the end, which trains nothing."""
    steps = told.log()[-2]["steps"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", stopping(steps + after))
        with pytest.raises(Stopped, match=f"stopped at step {after} of .*, saved in {tmp_path / 'run'}$"):
            fit(TEXTS, DEV, config("20"), tmp_path / "run")
    assert (tmp_path / "run" / TELLING).is_dir()
    with pytest.raises(UserError, match="exists already"):
        fit(TEXTS, DEV, config("20"), tmp_path / "run")
    for _ in range(2):
        run = fit(TEXTS, DEV, config("20"), tmp_path / "run", resume=True)
        assert all(torch.equal(value, weights(told)[name]) for name, value in weights(run).items())
        assert [row["split"] for row in run.log()] == [row["split"] for row in told.log()]
        assert run.best() == facts(run.folder)["told"]
        assert facts(run.folder)["told"]["apart"] == facts(told.folder)["told"]["apart"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", lambda *_: pytest.fail("a training that has ended goes on"))
            fit(TEXTS, DEV, config("20"), tmp_path / "run", resume=True)


def test_a_kill_before_the_first_step_of_telling(told: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only a part of its folder was written, or all and the weights were taken, the end is the same."""
    for place, name in enumerate(("create", "load_weights")):
        folder, made, count = tmp_path / name, getattr(Run, name), [0]

        def dying(*given: Any, _made: Any = made, _count: list[int] = count, _name: str = name, **more: Any) -> Any:
            _count[0] += 1
            found = _made(*given, **more)
            if _count[0] == {"create": 2, "load_weights": 3}[_name]:
                raise RuntimeError("killed")
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Run, name, dying if place else staticmethod(dying))
            with pytest.raises(RuntimeError, match="killed"):
                fit(TEXTS, DEV, config("20"), folder)
        assert (folder / TELLING).is_dir()
        run = fit(TEXTS, DEV, config("20"), folder, resume=True)
        assert facts(run.folder)["told"]["apart"] == facts(told.folder)["told"]["apart"]
        assert all(torch.equal(value, weights(told)[name]) for name, value in weights(run).items())


def test_a_fine_tuning_keeps_its_last_weights(plain: Run, told: Run, tmp_path: Path) -> None:
    """Perplexity would choose those before; without `tell_apart` it does, also from a run that had it."""
    training = {"tell_apart": ("20",), "epochs": 2, "learning_rate": 2.0, "evaluations": 2, "patience": 1}
    run = finetune(plain, TEXTS, DEV, tmp_path / "told", parts=telling.PARTS, training=training)
    rows = [row for row in run.log() if row["split"] == "dev"]
    assert [row["perplexity"] for row in rows] == [row["best"] for row in rows]
    assert run.best() == rows[-1]
    assert rows[-1]["perplexity"] > rows[0]["perplexity"]
    assert evaluate(run, DEV)["perplexity"] == pytest.approx(rows[-1]["perplexity"], rel=1e-5)
    worse = finetune(plain, TEXTS, DEV, tmp_path / "worse", training={**training, "tell_apart": ()})
    assert worse.best() == worse.log()[0]
    assert gentle(told.config.training).tell_apart == (), "unless it is asked for"


def test_every_way_to_train_tells(tmp_path: Path) -> None:
    """`compare` and `tune` too; what is not adapted learns nothing more, and says nothing of it."""
    compare(TEXTS, None, DEV, config("20"), tmp_path / "compared", models=("unadapted", "factorcell"), ngram=False)
    runs = {name: tmp_path / "compared" / name for name in ("unadapted", "factorcell")}
    assert {name: "told" in facts(folder) for name, folder in runs.items()} == {"unadapted": False, "factorcell": True}
    search(TEXTS, DEV, config("20"), tmp_path / "tuned", SearchOptions(trials=1, models=("factorcell",)))
    [trial] = (tmp_path / "tuned").glob("trial-*")
    assert "told" in facts(trial)
    assert files.read_rows(trial / "log.jsonl")[-1] == facts(trial)["told"]


def test_time_is_set_aside(plain: Run) -> None:
    """What is planned has the last passes in it, unless there is nothing to tell."""
    corpus, held = fitting.read(TEXTS, DEV, config(), progress=False)
    one, more = (speed(config(*told), corpus, held, clock=iter(range(10**6)).__next__) for told in ((), ("20",)))
    assert one.more == 0
    assert more.more == pytest.approx(telling.PACE * 2)  # two dialects
    assert more.seconds(config()) - one.seconds(config()) == pytest.approx(
        one.step * one.steps * more.more + telling.EVALUATIONS * one.evaluation
    )
    longer = replace(config("20").training, tell_epochs=3.0)
    assert telling.passes(longer, corpus.schema) == pytest.approx(3 * telling.PACE * 2)
    said: dict[str, Any] = {"data": {"context": ["dialect"], "min_count": 1}, "training": {"tell_apart": ["20"]}}
    passes = {"training": {**said["training"], "epochs": 2}}
    told = plan({**said, **passes}, corpus, held).lines()[-1]
    assert told.startswith("2 passes and 1 to tell values apart, which take about")


def test_little_time_is_for_writing_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling has a part of the minutes, however long it would take, and all of it ends in time."""
    said: dict[str, Any] = {"data": {"context": ["dialect"], "min_count": 1}, "training": {"precision": "float32"}}
    corpus, held = fitting.read(TEXTS, DEV, Config.from_dict(said), progress=False)
    clock = Clock(monkeypatch, step=1.0)
    said["training"] |= {"tell_apart": ["20"], "tell_epochs": 50.0}
    made = plan(said, corpus, held, Budget(minutes=2), clock=clock)
    training = made.config.training
    more = telling.passes(training, corpus.schema)
    assert more == pytest.approx(plans.TELLING * (training.epochs + more), rel=0.01)
    assert made.seconds is not None
    assert 110 < made.seconds <= 120
    assert 0 < training.tell_epochs < 50
    few = plan(
        {**said, "training": {**said["training"], "tell_epochs": 0.1}}, corpus, held, Budget(minutes=2), clock=clock
    )
    assert few.config.training.tell_epochs == 0.1
    found = Speed(1.0, 10, 0.0, more=30.0)
    enough = plans._in_time(made, found, 300 / plans.ENOUGH, 3.0)
    assert enough.config.training.epochs == 3, "all that is deserved"
    assert enough.seconds == pytest.approx(300, rel=0.01), "and telling has the rest"
