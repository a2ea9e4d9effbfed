"""The adaptive softmax against its probabilities written out; and as a softmax like any other in the model."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.config import INSIDE, Config, ModelConfig, UserError
from factorcell.data.cache import prepare
from factorcell.data.context import Context
from factorcell.data.corpus import target_counts
from factorcell.data.schema import MISSING, ContextSchema, Variable
from factorcell.data.vocabulary import END, START
from factorcell.model.adaptive_softmax import AdaptiveOutput, cutoffs
from factorcell.model.output import ContextBias, Output
from factorcell.model.run import Run
from factorcell.training.loop import train
from factorcell.training.proximal import StartingPoint, part_of
from factorcell.training.trainer import Trainer
from tests.small import ROWS, make_run, nats_of

V, E, H, K, B, T = 11, 4, 3, 5, 3, 4
SIZES = (2, 1)  # of the embeddings of the variables
SCHEMA = ContextSchema((Variable("city", "category", values=("a", "b"), counts=(3, 4)), Variable("lat", "number")))
CUTS = [(), ("4",), ("3", "10"), ("5", "8"), ("4", "6", "7")]
BIASES = [names for count in range(3) for names in itertools.combinations(INSIDE, count)]
ADAPTIVE: dict[str, Any] = {"softmax": "adaptive", "cutoffs": ["4", "7"], "shrink": 2.0}


def make_output(cuts: tuple[str, ...], biases: tuple[str, ...] = INSIDE, shrink: float = 2.0) -> AdaptiveOutput:
    """A layer in double precision with random weights everywhere."""
    config = ModelConfig(hidden_size=H, context_size=K, output_bias=biases, cutoffs=cuts, shrink=shrink)
    output = AdaptiveOutput(torch.nn.Parameter(torch.randn(V, E)), config, SCHEMA, SIZES).double()
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.normal_(0, 0.7)
    return output


def numbers() -> dict[str, Any]:
    """Hidden states, targets of every token but the start, vectors and parts of contexts."""
    return {
        "hidden": torch.randn(B, T, H, dtype=torch.double),
        "targets": torch.tensor([[0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 2, 10]]),
        "vector": torch.randn(B, K, dtype=torch.double),
        "parts": [torch.randn(B, size, dtype=torch.double) for size in SIZES],
    }


def context_bias(output: AdaptiveOutput | Output, g: dict[str, Any]) -> ContextBias:
    """What the adapted biases of the contexts follow from."""
    context = Context(torch.tensor([[0], [1], [MISSING]]), torch.zeros(B, 1))
    return output.context_bias(g["vector"], g["parts"], context)


def slow_probabilities(
    output: AdaptiveOutput, cuts: tuple[str, ...], biases: tuple[str, ...], text: int, hidden: Tensor, g: dict[str, Any]
) -> list[float]:
    """Of each token, head times cluster, number by number."""
    p = {name: parameter.detach().tolist() for name, parameter in output.named_parameters()}
    features = {
        "low_rank": g["vector"][text].tolist(),
        "low_rank_each": [x for p in g["parts"] for x in p[text].tolist()],
    }
    starts = [0, *map(int, cuts), V]

    def dot(a: Any, b: Any) -> float:
        return math.fsum(x * y for x, y in zip(a, b, strict=True))

    def shift(row: int) -> float:
        return sum(dot(features[name], p[f"adapters.{name}.weight"][row]) for name in biases)

    def shares(scores: dict[Any, float]) -> dict[Any, float]:
        total = sum(math.exp(score) for score in scores.values())
        return {key: math.exp(score) / total for key, score in scores.items()}

    projected = [dot(hidden.tolist(), [row[e] for row in p["projection"]]) for e in range(E)]
    rows = {token: (p["embedding"][token], p["bias"][token], token) for token in range(starts[1]) if token != START}
    for place in range(len(cuts)):
        rows[-place - 1] = (p["clusters"][place], p["bias"][V + place], starts[1] + place)
    head = shares({key: dot(row, projected) + bias + shift(line) for key, (row, bias, line) in rows.items()})
    found, line, column = {START: 0.0, **head}, starts[1] + len(cuts), 0
    for place in range(len(cuts)):
        width = max(1, E // 2 ** (place + 1))
        own = [dot([row[column + d] for row in p["narrow"]], projected) + shift(line + d) for d in range(width)]
        tokens = range(starts[place + 1], starts[place + 2])
        within = shares({token: dot(p["embedding"][token][:width], own) + p["bias"][token] for token in tokens})
        found |= {token: head[-place - 1] * share for token, share in within.items()}
        line, column = line + width, column + width
    return [found[token] for token in range(V)]


@pytest.mark.parametrize("biases", BIASES)
@pytest.mark.parametrize("cuts", CUTS)
def test_probabilities_are_those_of_the_matrices(cuts: tuple[str, ...], biases: tuple[str, ...]) -> None:
    """With and without gradient, and as log probabilities of a step; they sum to one without the start token."""
    output, g = make_output(cuts, biases), numbers()
    given = context_bias(output, g)
    with_gradient = output.nats(g["hidden"], g["targets"], given)
    with torch.no_grad():
        without = output.nats(g["hidden"], g["targets"], output.fold(given))
        steps = [output.log_probabilities(g["hidden"][:, t], given) for t in range(T)]
    for b, t in itertools.product(range(B), range(T)):
        expected = slow_probabilities(output, cuts, biases, b, g["hidden"][b, t], g)
        assert sum(expected) == pytest.approx(1)
        assert steps[t][b].exp().tolist() == pytest.approx(expected)
        assert float(steps[t][b, START]) == -math.inf
        for nats in (with_gradient, without):
            assert float(nats[b, t].detach()) == pytest.approx(-math.log(expected[int(g["targets"][b, t])]))


@pytest.mark.parametrize("biases", BIASES)
def test_without_clusters_it_is_the_full_softmax(biases: tuple[str, ...]) -> None:
    """The same weights, the same nats and gradients; the tables of clusters are empty."""
    adaptive, g = make_output((), biases), numbers()
    config = ModelConfig(hidden_size=H, context_size=K, output_bias=biases)
    full = Output(torch.nn.Parameter(torch.zeros(V, E)), config, SCHEMA, SIZES).double()
    weights = dict(adaptive.named_parameters())
    assert [name for name, weight in weights.items() if not weight.numel()] == ["clusters", "narrow"]
    with torch.no_grad():
        for name, parameter in full.named_parameters():
            parameter.copy_(weights[name])
    nats = [output.nats(g["hidden"], g["targets"], context_bias(output, g)) for output in (adaptive, full)]
    torch.testing.assert_close(*nats)
    for own in nats:
        torch.autograd.backward(own.sum())
    for name, parameter in full.named_parameters():
        torch.testing.assert_close(weights[name].grad, parameter.grad)


@pytest.mark.parametrize("cuts", CUTS)
def test_gradients_by_finite_differences(cuts: tuple[str, ...]) -> None:
    """Of all weights, hidden states and contexts, also where no target is in a cluster."""
    output, g = make_output(cuts), numbers()
    leaves = [tensor.requires_grad_() for tensor in (g["hidden"], g["vector"], *g["parts"])]
    weights = [parameter for parameter in output.parameters() if parameter.numel()]
    for targets in (g["targets"], torch.full((B, T), END), torch.full((B, T), V - 1)):

        def loss(*_: Tensor, targets: Tensor = targets) -> Tensor:
            return output.nats(g["hidden"], targets, context_bias(output, g))

        assert torch.autograd.gradcheck(loss, (*leaves, *weights))
        output.zero_grad()
        torch.autograd.backward(loss().sum())
        assert all(parameter.grad is not None for parameter in output.parameters())  # as several processes need it


def test_widths_shrink_from_cluster_to_cluster() -> None:
    """To at least one number; without cutoffs given the head has a sixteenth of the vocabulary."""
    assert make_output(("3", "5", "7"), shrink=2).widths == [2, 1, 1]
    assert make_output(("3", "5"), shrink=1).widths == [4, 4]
    assert cutoffs((), 20_000) == [1250, 5000]
    assert cutoffs((), 40) == [10]
    assert cutoffs((), 11) == []
    assert cutoffs(("5", "9"), 10) == [5, 9]
    with pytest.raises(UserError, match=r"cutoffs are 5, 10; they must lie below 10, the size of the vocabulary"):
        cutoffs(("5", "10"), 10)


@pytest.mark.parametrize("cuts", CUTS)
def test_it_begins_at_the_frequencies(cuts: tuple[str, ...]) -> None:
    """A cluster is as probable as its tokens together: where nothing is adapted each token has its frequency."""
    output = make_output(cuts)
    frequencies = torch.rand(V, dtype=torch.double)
    frequencies[START] = 0
    frequencies /= frequencies.sum()
    hidden = torch.zeros(B, H, dtype=torch.double)
    with torch.no_grad():
        output.begin(frequencies.log())
        neutral = ContextBias(torch.zeros(B, K + sum(SIZES), dtype=torch.double), torch.zeros(B, 1))
        found = output.log_probabilities(hidden, neutral).exp()
    torch.testing.assert_close(found, frequencies.expand(B, -1))


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        ({"output_bias": ["low_rank", "hash"]}, {}, "output_bias is 'hash'; .*it must be low_rank or low_rank_each"),
        ({"output_bias": ["one_hot"]}, {}, "output_bias is 'one_hot'"),
        ({"output_bias": ["sparse"]}, {}, "output_bias is 'sparse'"),
        ({}, {"loss": "sampled"}, "loss is 'sampled'; with the adaptive softmax it must be 'full'"),
        ({"cutoffs": ["2"]}, {}, "cutoffs are 2; they must be whole numbers from 3 on, in rising order"),
        ({"cutoffs": ["9", "9"]}, {}, "cutoffs are 9, 9;"),
        ({"cutoffs": ["9", "many"]}, {}, "cutoffs are 9, many;"),
        ({"cutoffs": ["9", "-10"]}, {}, "cutoffs are 9, -10;"),
        ({"shrink": 0.5}, {}, "shrink is 0.5; it must be at least 1"),
        ({"softmax": "adaptative"}, {}, "unknown softmax 'adaptative' .did you mean 'adaptive'"),
    ],
)
def test_what_does_not_fit_is_said(model: dict[str, Any], training: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config.from_dict({"model": {"softmax": "adaptive", **model}, "training": training})


@pytest.mark.parametrize("bias", [(), *((name,) for name in INSIDE), INSIDE])
def test_the_model_agrees_with_itself(bias: tuple[str, ...], tmp_path: Path) -> None:
    """All texts at once, one by one, a step at a time, folded; the best of a step have the first ranks."""
    run = make_run(tmp_path / "run", output_bias=bias, **ADAPTIVE)
    corpus = run.prepare(ROWS)
    together, ranks = run.nats(corpus), run.ranks(corpus)
    alone = np.concatenate([run.nats(run.prepare([row])) for row in ROWS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, np.concatenate([nats_of(run, row) for row in ROWS]), atol=1e-5)
    batch = corpus.batch(np.arange(5))
    with torch.no_grad():
        conditioned = run.model.condition(batch.context)
        folded = run.model(batch, run.model.fold(conditioned))
        torch.testing.assert_close(folded, run.model(batch))
        first, _ = run.model.step(batch.tokens[:, 0], conditioned)
    expected = (first >= first.gather(1, batch.tokens[:, 1, None])).sum(1)
    starts = np.cumsum([0, *(len(row["text"].split()) + 1 for row in ROWS)])
    assert ranks[starts[:5]].tolist() == expected.tolist()


def test_contexts_matter(tmp_path: Path) -> None:
    """In the head and within each cluster, through the softmax bias alone."""
    run = make_run(tmp_path / "run", adapt=(), **ADAPTIVE)
    rows = [{**ROWS[0], "city": city} for city in ("Oslo", "Nice")]
    context = run.prepare(rows).context(np.arange(2))
    with torch.no_grad():
        logs, _ = run.model.step(torch.tensor([START, START]), run.model.condition(context))
    for begin, end in ((0, 4), (4, 7), (7, len(run.vocabulary))):
        within = torch.log_softmax(logs[:, begin:end], 1).exp()
        assert (within[0] - within[1]).abs().max() > 1e-3


def config(**training: Any) -> Config:
    """A small recipe with an adaptive softmax."""
    return Config.from_dict(
        {
            "data": {"context": ["dialect"], "min_count": 1, "min_context_count": 1},
            "model": {"embedding_size": 16, "hidden_size": 16, "context_size": 3, "variable_size": 3, **ADAPTIVE},
            "training": {"batch_tokens": 300, "learning_rate": 0.02, "evaluations": 1, **training},
        }
    )


def made(folder: Path, given: Config, rows: list[dict[str, str]]) -> tuple[Run, Any]:
    """An untrained run and its texts."""
    corpus = prepare(rows, given.data)
    return Run.create(folder, given, corpus.vocabulary, corpus.schema), corpus


def test_training_reaches_the_true_perplexity(tmp_path: Path, two_dialects: Any) -> None:
    """From the unigram frequencies to that of the source; the folder opens again and scores the same."""
    rows, truth = two_dialects(1000, 1)
    run, corpus = made(tmp_path / "run", config(epochs=12), rows)
    trainer = Trainer(run, corpus, corpus)
    counts = target_counts(corpus) + 1.0
    starts = [0, 4, 7, len(counts)]
    bias = run.model.output.bias.detach().numpy()
    np.testing.assert_allclose(bias[: len(counts)], np.log(counts / counts.sum()), rtol=1e-5)
    shares = [counts[a:b].sum() / counts.sum() for a, b in itertools.pairwise(starts[1:])]
    np.testing.assert_allclose(bias[len(counts) :], np.log(shares), rtol=1e-5)
    by_token = {id(parameter) for parameter in trainer.optimiser.param_groups[-1]["params"]}
    fast = {name for name, parameter in run.model.named_parameters() if id(parameter) in by_token}
    assert fast == {"embedding", "output.clusters", "output.adapters.low_rank.weight"}
    last = list(train(run, corpus, corpus))[-1]
    assert last["perplexity"] == pytest.approx(truth, rel=0.05)
    again = Run.open(tmp_path / "run")
    np.testing.assert_array_equal(again.nats(corpus), run.nats(corpus))


def test_training_in_half_precision(tmp_path: Path, two_dialects: Any) -> None:
    """Products of bfloat16 numbers: nearly the same loss, in training and in scoring."""
    rows, _ = two_dialects(100, 1)
    losses = []
    for precision in ("float32", "bfloat16"):
        run, corpus = made(tmp_path / precision, config(epochs=2, precision=precision), rows)
        losses.append(list(train(run, corpus, corpus))[-1]["perplexity"])
        with run.scoring():
            run.precision = precision
            assert np.exp(run.nats(corpus).mean()) == pytest.approx(losses[-1], rel=0.02)
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.03)


def test_fine_tuning_moves_its_parts(tmp_path: Path) -> None:
    """The softmax bias with all that adapts it; clusters belong to the projection."""
    run = make_run(tmp_path / "run", **ADAPTIVE, training={"epochs": 2, "batch_tokens": 100})
    parts = {name.removeprefix("output."): part_of(name) for name, _ in run.model.named_parameters()}
    assert parts["clusters"] == parts["narrow"] == parts["projection"] == "projection"
    assert parts["bias"] == parts["adapters.low_rank.weight"] == "output_bias"
    before = {name: tensor.clone() for name, tensor in run.model.kept().items()}
    StartingPoint(before, ("output_bias",), 0.0).write(run.folder)
    corpus = run.prepare(ROWS)
    trainer = Trainer(run, corpus, corpus)
    for batch in trainer.batches():
        trainer.step(batch)
    moved = {name for name, tensor in run.model.kept().items() if not torch.equal(tensor, before[name])}
    assert moved == {"output.bias", "output.adapters.low_rank.weight"}
