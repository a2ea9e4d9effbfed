"""Values told apart while training: against Bayes' rule written out, finite differences, and training without it."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.config import Config, TrainingConfig, UserError
from factorcell.data.corpus import Batch
from factorcell.data.schema import Variable
from factorcell.evaluation.classification import classify
from factorcell.model.run import Run
from factorcell.model.sizes import step_bytes
from factorcell.training.fit import fit
from factorcell.training.objective import Objective, Question, ToldColumn, told_columns
from factorcell.training.trainer import Trainer
from tests import small, synthetic
from tests.processes import start_all

STRANGE = [
    {**small.ROWS[0], "city": None},
    {**small.ROWS[1], "city": "never seen"},
]


class Steps:
    """Random numbers of which the permutation begins with `first`."""

    def __init__(self, first: int) -> None:
        self.first = first

    def permutation(self, count: int) -> Any:
        """The numbers below `count`, turned."""
        return np.roll(np.arange(count), -self.first)


def asked(run: Run, batch: Batch, random: Any = None) -> list[Question]:
    """The questions about a batch."""
    return [column.ask(batch.context, random or np.random.default_rng(0)) for column in told_columns(run)]


def value_nats(run: Run, batch: Batch, questions: list[Question]) -> Tensor:
    """What the objective has of the questions, (B, questions)."""
    found: Tensor = Objective(run.model)(batch, None, questions=questions)
    steps = batch.tokens.shape[1] - 1
    assert torch.equal(found[:, :steps], run.model(batch))
    return found[:, steps:].detach()


@pytest.mark.parametrize(
    "model",
    [{"output_bias": ("low_rank", "one_hot", "hash")}, {"adapt": ("prefix",), "output_bias": ()}, {"layer_norm": True}],
    ids=str,
)
def test_nats_of_a_value_are_bayes_rule(model: dict[str, Any], tmp_path: Path) -> None:
    """-log p(value | text) from the text's probability under every value, and with the priors of training."""
    run = small.make_run(tmp_path / "run", training={"tell_apart": ["city=1", "stars=2.5"]}, **model)
    corpus = run.prepare(small.ROWS)
    found = value_nats(run, batch := corpus.batch(np.arange(len(corpus))), asked(run, batch))
    for place, (name, weight) in enumerate({"city": 1.0, "stars": 2.5}.items()):
        counts = Counter(row[name] for row in small.ROWS)
        for number, row in enumerate(small.ROWS):
            joint = {
                value: count / len(small.ROWS) * math.exp(-sum(small.nats_of(run, {**row, name: value})))
                for value, count in counts.items()
            }
            expected = -math.log(joint[row[name]] / sum(joint.values()))
            assert float(found[number, place]) == pytest.approx(weight * expected, rel=1e-4, abs=1e-5)
        judged = classify(run, small.ROWS, name, priors="training")
        own = judged.log_posterior[np.arange(len(small.ROWS)), judged.truth]
        np.testing.assert_allclose(found[:, place], -weight * own, rtol=1e-4, atol=1e-5)


def test_texts_without_a_known_value_are_not_asked(tmp_path: Path) -> None:
    """Missing, rare and forgotten ones have no such nats, and a gradient all the same."""
    run = small.make_run(tmp_path / "run", training={"tell_apart": ["city=1"]})
    corpus = run.prepare([*small.ROWS[:2], *STRANGE], unknown="group", optional=("city",))
    batch = corpus.batch(np.arange(4))
    whole = value_nats(run, batch, asked(run, batch))[:, 0]
    assert bool((whole[:2] > 0).all())
    assert whole[2:].tolist() == [0, 0]
    forgotten = replace(batch, context=batch.context.forgetting(0.999999, (0,)))
    assert not value_nats(run, forgotten, asked(run, forgotten)).any()
    Objective(run.model)(batch, None, questions=asked(run, batch)).sum().backward()
    assert all(bool(p.grad is not None and torch.isfinite(p.grad).all()) for p in run.model.parameters())


def test_gradients_by_finite_differences(tmp_path: Path) -> None:
    """Of all parameters at once, along random directions."""
    run = small.make_run(tmp_path / "run", training={"tell_apart": ["city=0.7", "stars=3"]})
    model = run.model.double()
    corpus = run.prepare(small.ROWS[:3])
    batch = corpus.batch(np.arange(3))
    batch = replace(batch, context=replace(batch.context, numbers=batch.context.numbers.double()))
    objective, questions = Objective(model), asked(run, batch)
    names = [f"model.{name}" for name, _ in model.named_parameters()]

    def total(*values: Tensor) -> Any:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(objective, given, (batch, None), {"questions": questions})[:, -2:].sum(1)

    leaves = tuple(parameter.detach().clone().requires_grad_() for parameter in model.parameters())
    assert torch.autograd.gradcheck(total, leaves, fast_mode=True)
    gradients = torch.autograd.grad(total(*leaves).sum(), leaves)
    silent = [name for name, gradient in zip(names, gradients, strict=True) if not gradient.any()]
    assert silent == []


def test_some_targets_are_no_evidence(tmp_path: Path) -> None:
    """While training, the nats of a value are those of the targets that were drawn, the same ones for all values."""
    told = {"tell_apart": ["city=1"], "tell_dropout": 0.5}
    run = small.make_run(tmp_path / "run", ("city",), training=told)
    corpus = run.prepare(small.ROWS)
    batch = corpus.batch(np.arange(len(corpus)))
    [question] = asked(run, batch)
    run.model.train()
    torch.manual_seed(3)
    found = Objective(run.model)(batch, None, questions=[question])[:, -1].detach()
    torch.manual_seed(3)
    nats = run.model(batch)  # without dropout, so that no other random number comes before
    evidence = torch.rand_like(nats) >= 0.5
    other = run.model(replace(batch, context=question.with_other(batch.context, 0)))
    torch.testing.assert_close(found, question.nats(-(nats * evidence).sum(1), [-(other * evidence).sum(1)]))
    run.model.eval()
    assert not torch.allclose(found, value_nats(run, batch, [question])[:, 0]), "otherwise all of them tell"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_drawn_values_stand_for_all(most: int, tmp_path: Path) -> None:
    """Over all draws the sum in Bayes' rule is right on average; with all values it is right at once."""
    variable = Variable("city", "category", values=("<rare>", *"abcd"), counts=(3, 5, 1, 2, 4))
    column = ToldColumn.of(0, variable, 1.0, most)
    logs = torch.randn(3, 5, dtype=torch.double)  # of each text with each value
    context = small.make_run(tmp_path / "run").prepare(small.ROWS[:3]).batch(np.arange(3)).context
    true = torch.tensor([1, 4, 2])
    context = replace(context, categories=torch.stack([true, true], dim=1))
    exact = torch.stack([logs[:, value] + math.log(variable.counts[value] / 12) for value in range(1, 5)], 1)
    own = exact.gather(1, true[:, None] - 1)[:, 0]
    sums, rows = [], torch.arange(3)
    for first in range(3):
        question = column.ask(context, Steps(first))  # type: ignore[arg-type]
        assert question.others.shape == (3, most)
        for text in range(3):
            drawn = question.others[text].tolist()
            assert len({*drawn, int(true[text])}) == most + 1
            assert all(1 <= value <= 4 for value in drawn)
        nats = question.nats(logs[rows, true], [logs[rows, question.others[:, n]] for n in range(most)])
        sums.append((nats + own).exp())
    torch.testing.assert_close(torch.stack(sums).mean(0), exact.exp().sum(1))
    torch.testing.assert_close(sums[0], exact.exp().sum(1)) if most == 3 else None


def test_all_values_see_the_same_dropout(tmp_path: Path) -> None:
    """Where no value says anything, only the priors are left, however much is dropped."""
    drops = dict.fromkeys(("dropout_recurrent", "dropout_input", "dropout_output", "dropout_token"), 0.4)
    run = small.make_run(tmp_path / "run", ("city",), training={"tell_apart": ["1"]}, **drops)
    assert run.model.encoder is not None
    with torch.no_grad():
        run.model.encoder.tables[0][:] = run.model.encoder.tables[0][1].clone()
    corpus = run.prepare(small.ROWS)
    batch = corpus.batch(np.arange(len(corpus)))
    run.model.train()
    steps = batch.tokens.shape[1] - 1
    torch.manual_seed(3)
    alone: Tensor = Objective(run.model)(batch, None)
    after = torch.rand(1)
    torch.manual_seed(3)
    found: Tensor = Objective(run.model)(batch, None, questions=asked(run, batch))
    assert torch.equal(torch.rand(1), after), "what is drawn next does not depend on it"
    assert torch.equal(found[:, :steps], alone)
    assert not torch.equal(alone, run.model(batch))
    counts = Counter(row["city"] for row in small.ROWS)
    expected = [-math.log(counts[row["city"]] / len(small.ROWS)) for row in small.ROWS]
    assert found[:, steps].tolist() == pytest.approx(expected, abs=1e-5)


def trained(folder: Path, training: dict[str, Any], **model: Any) -> tuple[Trainer, dict[str, Tensor]]:
    """A trainer at its end, and the weights."""
    torch.manual_seed(1)
    options = {"epochs": 3, "batch_tokens": 40, "samples": 6, **training}
    run = small.make_run(folder, training=options, dropout_recurrent=0.2, dropout_input=0.2, **model)
    start_all(run)
    trainer = Trainer(run, run.prepare(small.ROWS), run.prepare(small.ROWS))
    for batch in trainer.batches():
        trainer.step(batch)
    trainer.catch_up()
    return trainer, {name: value.detach().clone() for name, value in trainer.parameters.items()}


@pytest.mark.parametrize("loss", ["full", "sampled", "sampled_text"])
def test_a_weight_of_zero_is_training_as_it_was(loss: str, tmp_path: Path) -> None:
    """Bit for bit; a small weight moves all a little, a large one more."""
    _, plain = trained(tmp_path / "plain", {"loss": loss})
    ends = {}
    for weight in ("0", "1e-6", "1"):
        trainer, end = trained(tmp_path / weight, {"loss": loss, "tell_apart": [f"city={weight}"]})
        assert bool(trainer.told) == (weight != "0")
        assert bool(trainer.rows) == (loss != "full")
        ends[weight] = {name: float((value - plain[name]).abs().max()) for name, value in end.items()}
    assert not any(ends["0"].values())
    assert max(ends["1e-6"].values()) < 0.02
    assert any(ends["1"].values())
    assert sum(ends["1e-6"].values()) < sum(ends["1"].values())


@pytest.mark.parametrize("loss", ["full", "sampled", "sampled_text"])
@pytest.mark.parametrize("bias", [("low_rank", "hash"), ("one_hot",)], ids=str)
def test_every_loss_learns_to_tell(loss: str, bias: tuple[str, ...], tmp_path: Path) -> None:
    """After the same steps the true values cost less than without; rows of other values' buckets are read too."""
    costs = {}
    for name, weight in (("plain", []), ("told", ["city=20"])):
        more = {"loss": loss, "tell_apart": weight, "epochs": 15, "learning_rate": 0.02}
        trainer, _ = trained(tmp_path / name, more, output_bias=bias)
        assert bool(trainer.rows) == (loss != "full" and not ("hash" in bias and weight))
        found = classify(trainer.run, small.ROWS, "city", priors="training")
        costs[name] = -float(found.log_posterior[np.arange(len(small.ROWS)), found.truth].mean())
    assert costs["told"] < costs["plain"]


def test_one_model_scores_and_tells_apart_on_texts_it_has_not_seen(tmp_path: Path) -> None:
    """Of two dialects: surer of the true one, and near as good a model of the texts."""
    dialects = synthetic.dialects()
    rows, unseen = dialects.sample(300, 1), dialects.sample(300, 2)
    made: dict[str, Run] = {}
    for name, weight in (("plain", []), ("told", ["5"])):
        config = {
            "data": {"context": ["dialect"], "min_count": 1, "min_context_count": 1},
            "model": {"hidden_size": 12, "embedding_size": 8, "rank": 2, "context_size": 4, "variable_size": 4},
            "training": {"epochs": 4, "batch_tokens": 200, "learning_rate": 0.01, "tell_apart": weight},
        }
        made[name] = fit(rows, unseen, Config.from_dict(config), tmp_path / name)
    costs = {}
    for name, run in made.items():
        found = classify(run, unseen, "dialect")
        costs[name] = -float(found.log_posterior[np.arange(len(unseen)), found.truth].mean())
    assert costs["told"] < costs["plain"]
    best = {name: run.best() for name, run in made.items()}
    assert best["told"] is not None
    assert best["plain"] is not None
    assert best["told"]["perplexity"] < 1.05 * best["plain"]["perplexity"]


def test_which_columns_are_told_apart(tmp_path: Path) -> None:
    """The only category, or those that are named; an unadapted model tells none."""

    def columns(context: tuple[str, ...], told: list[str], **model: Any) -> list[tuple[int, float, int]]:
        name = "-".join([*context, *told, *model]).replace(":", "")
        options: dict[str, Any] = {"tell_apart": told, "tell_values": 3}
        run = small.make_run(tmp_path / name, context, training=options, **model)
        return [(one.column, one.weight, one.most) for one in told_columns(run)]

    assert columns(("city",), ["2"]) == [(0, 2.0, 3)]
    assert columns(("lat:number", "city"), ["2"]) == [(0, 2.0, 3)]
    assert columns(("city", "stars"), ["stars=0.5"]) == [(1, 0.5, 3)]
    assert columns(("city", "stars"), ["stars=0.5", "city=1"]) == [(0, 1.0, 3), (1, 0.5, 3)]
    assert columns(("city",), []) == []
    assert columns(("city",), ["2"], adapt=(), output_bias=()) == []
    for context, told, message in (
        (("city", "stars"), "2", r"tell_apart is '2'; it must be COLUMN=2 with one of city, stars$"),
        (("lat:number",), "2", r"tell_apart is '2'; it must be left out: no context is a category$"),
        (("city",), "ci=2", r"unknown variable in tell_apart 'ci' \(did you mean 'city'\?\)"),
    ):
        with pytest.raises(UserError, match=message):
            columns(context, [told])
    with pytest.raises(UserError, match="tell_apart is 'city=-1'; it must be NUMBER or NAME=NUMBER"):
        TrainingConfig(tell_apart=("city=-1",))
    lonely = Variable("city", "category", values=("<rare>", "a"), counts=(0, 5))
    with pytest.raises(UserError, match="city has 1 values; there is nothing to tell apart"):
        ToldColumn.of(0, lonely, 1.0, 8)


def test_a_step_takes_memory_for_every_pass(tmp_path: Path) -> None:
    run = small.make_run(tmp_path / "run")
    sizes = []
    for told in ((), ("city=1",), ("city=1", "stars=1")):
        config = replace(run.config, training=replace(run.config.training, tell_apart=told))
        sizes.append(step_bytes(config, len(run.vocabulary), run.schema, 10_000, 1000))
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] > 0
