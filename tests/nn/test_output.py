"""Tests of the softmax head: logits, losses and biases against plain sums, and the proposal distribution."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from factorcell.config import LOW_RANK_BIASES, OUTPUT_BIASES, CharacterOptions, ModelConfig, SoftmaxOptions
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.tokenizers.tokenizer import SPECIAL_IDS, START, CharacterTokenizer
from factorcell.nn.kernels import softmax
from factorcell.nn.output import TABLES, ContextBias, HeadSizes, Proposal, Samples, SoftmaxHead
from paper_kinds import SizedSoftmaxHead, SizedSoftmaxOptions
from tests.small_runs import hash_bucket

V, E, H, K, B, T = 9, 3, 4, 5, 4, 3
SCHEMA = ContextSchema(
    (
        Variable("city", "category", values=(UNKNOWN_VALUE, "a", "b"), counts=(1, 3, 4)),
        Variable("stars", "category", values=(UNKNOWN_VALUE, "1"), counts=(0, 8)),
        Variable("lat", "number"),
    )
)
SIZES = (2, 3, 1)  # sizes of the embeddings of the variables
COMBINATIONS = [names for count in (0, 1, 2, 5) for names in itertools.combinations(OUTPUT_BIASES, count)]


def make_output(biases: tuple[str, ...]) -> SoftmaxHead:
    sizes = HeadSizes(H, ModelConfig(context_size=K, output_bias=biases), SCHEMA, SIZES, SPECIAL_IDS)
    options = SizedSoftmaxOptions(hash_size=40, bloom_size=0)
    output = SizedSoftmaxHead(options, torch.nn.Parameter(torch.randn(V, E)), sizes).double()
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.normal_(0, 0.7)
    return output


def make_inputs() -> dict[str, Any]:
    categories = torch.tensor([[1, 1], [2, 0], [MISSING, 1], [0, 1]])
    return {
        "hidden": torch.randn(B, T, H, dtype=torch.double),
        "targets": torch.tensor([[2, 3, 4], [5, 6, 7], [8, 2, 2], [0, 2, 3]]),
        "vector": torch.randn(B, K, dtype=torch.double),
        "parts": [torch.randn(B, size, dtype=torch.double) for size in SIZES],
        "context": Context(categories, torch.zeros(B, 1)),
    }


def bias_by_equation(output: SoftmaxHead, inputs: dict[str, Any], text: int, token: int) -> float:
    total, rows = 0.0, inputs["context"].categories[text].tolist()
    for name, adapter in output.adapters.items():
        row = adapter.get_parameter("weight")[token].tolist()
        if name in LOW_RANK_BIASES:
            features = (
                inputs["vector"][text] if name == "low_rank" else torch.cat([part[text] for part in inputs["parts"]])
            )
            total += sum(a * b for a, b in zip(features.tolist(), row, strict=True))
            continue
        for column, variable in enumerate(SCHEMA.categories):
            total += value_or_mean(variable, row[: len(variable.values)], rows[column])
            row = row[len(variable.values) :]
    if output.hashed is not None:
        buckets = output.hashed.weight[:, 0].tolist()
        for column, variable in enumerate(SCHEMA.categories):
            places = [hash_bucket(column, value, token, len(buckets)) for value in range(len(variable.values))]
            total += value_or_mean(variable, [buckets[index] for index in places], rows[column])
    return total


def value_or_mean(variable: Variable, values: list[float], row: int) -> float:
    if row != MISSING:
        return values[row]
    return sum(count * value for count, value in zip(variable.counts, values, strict=True)) / sum(variable.counts)


def logits_by_equation(output: SoftmaxHead, text: int, hidden: Tensor, inputs: dict[str, Any]) -> list[float]:
    logits = []
    for token in range(V):
        parts = output.embedding[token].detach() * output.project(hidden).detach()
        score = sum(parts.tolist())
        score += float(output.bias[token].detach()) + bias_by_equation(output, inputs, text, token)
        logits.append(-float("inf") if token == START else score)
    return logits


def context_bias(output: SoftmaxHead, inputs: dict[str, Any]) -> ContextBias:
    return output.condition(inputs["vector"], inputs["parts"], inputs["context"])


def sampled_nats(output: SoftmaxHead, samples: Samples, inputs: dict[str, Any]) -> Tensor:
    sampled_rows = output.sampled_rows(inputs["targets"], samples, inputs["context"].categories)
    row_values = [
        [table[rows] for table in tables] for rows, tables in zip(sampled_rows.rows, output.row_tables(), strict=True)
    ]
    rows = torch.tensor(
        [[sampled_rows.tokens.tolist().index(token) for token in line] for line in inputs["targets"].tolist()]
    )
    return output.sampled_nats(inputs["hidden"], rows, context_bias(output, inputs), samples, sampled_rows, row_values)


def test_names_equal_those_of_the_config() -> None:
    assert (*TABLES, "hash") == OUTPUT_BIASES


@pytest.mark.parametrize("biases", COMBINATIONS)
@pytest.mark.parametrize("chunk", [1, 4_000_000])
def test_exact_nats_equal_the_equations(biases: tuple[str, ...], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorcell.nn.kernels.softmax.MAX_LOGITS", chunk)
    output, inputs = make_output(biases), make_inputs()
    monkeypatch.setattr("factorcell.nn.output.MAX_BIASES", chunk)
    monkeypatch.setattr("factorcell.nn.hash_bias.BATCH_PAIRS", chunk)
    with_gradient = output.nats(inputs["hidden"], inputs["targets"], context_bias(output, inputs))
    with torch.no_grad():
        without = output.nats(inputs["hidden"], inputs["targets"], context_bias(output, inputs))
        steps = output.log_probabilities(inputs["hidden"][:, 1], context_bias(output, inputs))
        folded = output.log_probabilities(inputs["hidden"][:, 1], output.fold(context_bias(output, inputs)))
    torch.testing.assert_close(folded, steps)
    for b in range(B):
        for t in range(T):
            logits = torch.tensor(logits_by_equation(output, b, inputs["hidden"][b, t], inputs))
            expected = torch.logsumexp(logits, 0) - logits[inputs["targets"][b, t]]
            assert float(with_gradient[b, t].detach()) == pytest.approx(float(expected), rel=1e-5)
            assert float(without[b, t]) == pytest.approx(float(expected), rel=1e-5)
        assert float(steps[b].exp().sum()) == pytest.approx(1)
        assert float(steps[b, START]) == -torch.inf
        assert float(steps[b, inputs["targets"][b, 1]]) == pytest.approx(-float(without[b, 1]))


def test_the_softmax_reads_the_token_embeddings_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = []

    def record_table(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        tables.append(table)
        return softmax.nats(values, table, bias, targets)

    monkeypatch.setattr("factorcell.nn.output.softmax", SimpleNamespace(nats=record_table))
    output, inputs = make_output(OUTPUT_BIASES), make_inputs()
    output.nats(inputs["hidden"], inputs["targets"], context_bias(output, inputs))
    assert [table is output.embedding for table in tables] == [True]


def test_inclusion_probabilities_equal_frequencies_in_samples() -> None:
    counts = torch.tensor([5, 0, 100, 20, 1, 1])
    proposal = Proposal(counts, draws=10)
    counts_in_samples = torch.zeros(6)
    for _ in range(4000):
        samples = proposal.draw()
        assert len(samples.tokens) == len(set(samples.tokens.tolist()))
        counts_in_samples[samples.tokens] += 1
    expected = 1 - (1 - counts.double() / counts.sum()) ** 10
    torch.testing.assert_close((counts_in_samples / 4000).double(), expected, atol=0.03, rtol=0)
    torch.testing.assert_close(proposal.log_inclusion[counts > 0].exp(), expected[counts > 0].float())


def test_proposal_by_rank_decreases_with_rank() -> None:
    tokenizer = CharacterTokenizer(CharacterOptions(min_count=1)).train({chr(97 + n): 1 for n in range(47)})
    proposal = Proposal.by_rank(tokenizer, 20)
    assert float(proposal.probabilities[START]) == 0
    others = torch.cat([proposal.probabilities[:START], proposal.probabilities[START + 1 :]])
    assert bool((others[1:] < others[:-1]).all())
    assert float(proposal.probabilities.sum()) == pytest.approx(1)
    # Zipf's law: the tokens a, ..., b - 1 together have a probability proportional to log((b + 1) / (a + 1))
    shares = [
        float(proposal.probabilities[a:b].sum()) / math.log((b + 1) / (a + 1)) for a, b in ((0, 1), (3, 5), (9, 50))
    ]
    assert shares == pytest.approx([shares[0]] * 3)


def test_sampled_loss_has_the_same_minimum_as_the_exact_loss() -> None:
    torch.manual_seed(1)
    truth = torch.tensor([0.1, 0.0, 0.5, 0.25, 0.1, 0.05])
    output = SoftmaxHead(
        SoftmaxOptions(),
        torch.nn.Parameter(torch.zeros(6, 2)),
        HeadSizes(2, ModelConfig(), ContextSchema(), (), SPECIAL_IDS),
    )
    optimizer = torch.optim.Adam([output.bias], 0.05)
    proposal = Proposal(torch.tensor([3, 0, 1, 2, 2, 2]), 3)  # differs from the frequencies to be learned
    empty = Context(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0))
    for step in range(600):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 600)
        targets = torch.multinomial(truth, 256, replacement=True)[None]
        inputs = {"hidden": torch.zeros(1, 256, 2), "targets": targets, "vector": torch.zeros(1, 0), "parts": []}
        loss = sampled_nats(output, proposal.draw(), {**inputs, "context": empty}).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    plain = output.condition(torch.zeros(1, 0), [], empty)
    fitted = output.log_probabilities(torch.zeros(1, 2), plain)[0].exp()
    torch.testing.assert_close(fitted, truth, atol=0.03, rtol=0)
