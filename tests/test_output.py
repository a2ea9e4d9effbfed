"""Logits and losses against plain sums; biases against tables written out."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from factorcell.config import OUTPUT_BIASES
from factorcell.context import MISSING, RARE, Context, ContextSchema, Variable
from factorcell.output import BIASES, Output, Proposal, Samples
from factorcell.vocabulary import START

V, E, H, K, B, T = 9, 3, 4, 5, 4, 3
SCHEMA = ContextSchema(
    (
        Variable("city", "category", values=(RARE, "a", "b"), counts=(1, 3, 4)),
        Variable("stars", "category", values=(RARE, "1"), counts=(0, 8)),
        Variable("lat", "number"),
    )
)
COMBINATIONS = [names for count in range(len(BIASES) + 1) for names in itertools.combinations(BIASES, count)]


def make_output(biases: tuple[str, ...]) -> Output:
    """A layer in double precision with random weights everywhere."""
    output = Output(torch.nn.Parameter(torch.randn(V, E)), H, K, SCHEMA, biases).double()
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.normal_(0, 0.7)
    return output


def given() -> dict[str, Any]:
    """Hidden states, targets, context vectors and contexts; one city is missing."""
    categories = torch.tensor([[1, 1], [2, 0], [MISSING, 1], [0, 1]])
    return {
        "hidden": torch.randn(B, T, H, dtype=torch.double),
        "targets": torch.tensor([[2, 3, 4], [5, 6, 7], [8, 2, 2], [0, 2, 3]]),
        "vector": torch.randn(B, K, dtype=torch.double),
        "context": Context(categories, torch.zeros(B, 1)),
    }


def slow_bias(output: Output, vector: Tensor, context: Context, text: int, token: int) -> float:
    """The context's bias of one token in one text, from the tables."""
    total = 0.0
    for name, adapter in output.adapters.items():
        if name == "low_rank":
            total += float((vector[text] * adapter.get_parameter("weight")[token]).sum().detach())
        else:
            for column, variable in enumerate(SCHEMA.categories):
                row, before = (
                    int(context.categories[text, column]),
                    sum(len(v.values) for v in SCHEMA.categories[:column]),
                )
                shares = [count / sum(variable.counts) for count in variable.counts]
                values = adapter.get_parameter("weight")[token, before : before + len(shares)].detach().tolist()
                mean = sum(share * value for share, value in zip(shares, values, strict=True))
                total += mean if row == MISSING else values[row]
    return total


def slow_logits(output: Output, text: int, hidden: Tensor, vector: Tensor, context: Context) -> list[float]:
    """E P h + b + the context's bias, token by token; the start token never."""
    logits = []
    for token in range(V):
        parts = output.embedding[token].detach() * (hidden @ output.projection.detach())
        score = sum(parts.tolist())
        score += float(output.bias[token].detach()) + slow_bias(output, vector, context, text, token)
        logits.append(-float("inf") if token == START else score)
    return logits


def sampled_nats(
    output: Output, hidden: Tensor, targets: Tensor, samples: Samples, vector: Tensor, context: Context
) -> Tensor:
    """The sampled loss of `targets`, given as tokens; the rows of the tables that it needs are picked here."""
    used = samples.used(targets)
    tables = [table[used] for table in output.tables()]
    rows = torch.tensor([[used.tolist().index(token) for token in line] for line in targets.tolist()])
    return output.sampled_nats(hidden, rows, output.features(vector, context), samples, used, tables)


def test_names_are_those_of_the_config() -> None:
    """The command line offers what there is."""
    assert tuple(BIASES) == OUTPUT_BIASES


@pytest.mark.parametrize("biases", COMBINATIONS)
@pytest.mark.parametrize("chunk", [1, 4_000_000])
def test_exact_nats_are_the_equations(biases: tuple[str, ...], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without gradient, in chunks of any size, and as log probabilities of a step."""
    monkeypatch.setattr("factorcell.softmax.CHUNK", chunk)
    output, g = make_output(biases), given()
    features = output.features(g["vector"], g["context"])
    with_gradient = output.nats(g["hidden"], g["targets"], features)
    with torch.no_grad():
        without = output.nats(g["hidden"], g["targets"], features)
        steps = output.log_probabilities(g["hidden"][:, 1], features)
    for b in range(B):
        for t in range(T):
            logits = torch.tensor(slow_logits(output, b, g["hidden"][b, t], g["vector"], g["context"]))
            expected = torch.logsumexp(logits, 0) - logits[g["targets"][b, t]]
            assert float(with_gradient[b, t].detach()) == pytest.approx(float(expected), rel=1e-5)
            assert float(without[b, t]) == pytest.approx(float(expected), rel=1e-5)
        assert float(steps[b].exp().sum()) == pytest.approx(1)
        assert float(steps[b, START]) == -torch.inf
        assert float(steps[b, g["targets"][b, 1]]) == pytest.approx(-float(without[b, 1]))


def test_low_rank_with_one_hot_contexts_is_one_hot() -> None:
    """With a unit vector as context, Q's columns are the rows of a one-hot table (TACL 2018, section 2.3)."""
    schema = ContextSchema((Variable("city", "category", values=(RARE, "a", "b"), counts=(1, 1, 1)),))
    low, one = BIASES["low_rank"](V, 3, schema), BIASES["one_hot"](V, 3, schema)
    with torch.no_grad():
        one.get_parameter("weight").normal_()
        low.get_parameter("weight").copy_(one.get_parameter("weight"))
    rows = torch.tensor([2, 0, 1])
    context = Context(rows[:, None], torch.zeros(3, 0))
    features = torch.eye(3)[rows]
    torch.testing.assert_close(low(features, context), one(features, context))


@pytest.mark.parametrize("biases", COMBINATIONS)
def test_sampling_everything_is_exact(biases: tuple[str, ...]) -> None:
    """With every token among the samples for sure, the sampled loss is the exact one."""
    output, g = make_output(biases), given()
    every = Samples(torch.tensor([token for token in range(V) if token != START]), torch.zeros(V))
    sampled = sampled_nats(output, g["hidden"], g["targets"], every, g["vector"], g["context"])
    exact = output.nats(g["hidden"], g["targets"], output.features(g["vector"], g["context"]))
    torch.testing.assert_close(sampled, exact)


@pytest.mark.parametrize("biases", COMBINATIONS)
def test_gradients_by_finite_differences(biases: tuple[str, ...]) -> None:
    """Of the exact and of the sampled loss."""
    output, g = make_output(biases), given()
    samples = Samples(torch.tensor([2, 3, 7]), torch.linspace(-2, 0, V, dtype=torch.double))
    parameters = list(output.parameters())

    def exact(hidden: Tensor, vector: Tensor, *_: Tensor) -> Tensor:
        return output.nats(hidden, g["targets"], output.features(vector, g["context"]))

    def sampled(hidden: Tensor, vector: Tensor, *_: Tensor) -> Tensor:
        return sampled_nats(output, hidden, g["targets"], samples, vector, g["context"])

    for loss in (exact, sampled):
        leaves = (g["hidden"].requires_grad_(), g["vector"].requires_grad_(), *parameters)
        assert torch.autograd.gradcheck(loss, leaves)


def test_proposal_includes_tokens_as_often_as_it_says() -> None:
    """The share of draws that hold a token is its inclusion probability; tokens without a count never come."""
    counts = torch.tensor([5, 0, 100, 20, 1, 1])
    proposal = Proposal(counts, draws=10)
    seen = torch.zeros(6)
    for _ in range(4000):
        samples = proposal.draw()
        assert len(samples.tokens) == len(set(samples.tokens.tolist()))
        seen[samples.tokens] += 1
    expected = 1 - (1 - counts.double() / counts.sum()) ** 10
    torch.testing.assert_close((seen / 4000).double(), expected, atol=0.03, rtol=0)
    torch.testing.assert_close(proposal.log_inclusion[counts > 0].exp(), expected[counts > 0].float())


def test_the_sampled_loss_has_the_exact_minimum() -> None:
    """Fitted to known frequencies by sampling, the biases reach those frequencies: the correction is right."""
    torch.manual_seed(1)
    truth = torch.tensor([0.1, 0.0, 0.5, 0.25, 0.1, 0.05])
    output = Output(torch.nn.Parameter(torch.zeros(6, 2)), 2, 0, ContextSchema(), ())
    optimiser = torch.optim.Adam([output.bias], 0.05)
    proposal = Proposal(torch.tensor([3, 0, 1, 2, 2, 2]), 3)  # not the frequencies to be learned
    nothing = Context(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0))
    for step in range(600):
        optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / 600)
        targets = torch.multinomial(truth, 256, replacement=True)[None]
        hidden, vector = torch.zeros(1, 256, 2), torch.zeros(1, 0)
        loss = sampled_nats(output, hidden, targets, proposal.draw(), vector, nothing).mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    fitted = output.log_probabilities(torch.zeros(1, 2), torch.zeros(1, 0))[0].exp()
    torch.testing.assert_close(fitted, truth, atol=0.03, rtol=0)
