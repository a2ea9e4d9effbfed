"""The switches by which parts are as the papers print them, each against the slow model of `test_equations`."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.completion.online import Learner, LearningRule
from factorcell.config import ADAPTERS, OUTPUT_BIASES
from factorcell.data.context import Context
from factorcell.data.schema import ContextSchema
from factorcell.data.vocabulary import END, START
from factorcell.evaluation.classification import classify, draw_samples
from factorcell.generation.beam_search import Beam, stochastic
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import WritingTask
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run
from tests.completion.test_online import CITY as USERS
from tests.evaluation.test_negatives import DRAWS
from tests.evaluation.test_negatives import make as make_counted
from tests.every_text import Texts, best
from tests.generation import test_beam_search
from tests.generation.test_beam_search import as_counted
from tests.model.oracles import Array
from tests.model.test_equations import ACTIVATED, CITY, KINDS, LAYERS, SCHEMAS, Slow, V, batch, make, nats_by_hand
from tests.small import ROWS, make_letters

UNHASHED = tuple(name for name in OUTPUT_BIASES if name != "hash")
NUMBER_LAYERS = (0, 1, 2, 3)


def check(model: LanguageModel, schema: ContextSchema) -> None:
    """The nats of the model are those of the slow one."""
    np.testing.assert_allclose(model(batch(schema)).detach().numpy(), nats_by_hand(model, schema), atol=1e-9)


@pytest.mark.parametrize("schema", ["numbers", "categories", "both"])
@pytest.mark.parametrize("number_layers", NUMBER_LAYERS)
@pytest.mark.parametrize("context_layer", ACTIVATED)
def test_what_joins_variables_and_how_deep_numbers_are_read(
    context_layer: str, number_layers: int, schema: str
) -> None:
    """The activations of the papers, and any number of layers over the numbers: at none they are joined themselves."""
    layers: dict[str, Any] = {"context_layer": context_layer, "number_layers": number_layers}
    check(make(SCHEMAS[schema], ADAPTERS, UNHASHED, **layers), SCHEMAS[schema])


ALONE: dict[str, tuple[ContextSchema, dict[str, int]]] = {
    "category": (ContextSchema((CITY,)), {"variable_size": 3}),
    "number": (SCHEMAS["numbers"], {"number_layers": 0, "context_size": 1}),
    **{f"number of {layers}": (SCHEMAS["numbers"], {"number_layers": layers}) for layers in NUMBER_LAYERS[1:]},
}


@pytest.mark.parametrize("adapt", KINDS)
@pytest.mark.parametrize("alone", ALONE)
def test_one_variable_may_be_the_context_itself(alone: str, adapt: tuple[str, ...]) -> None:
    """Its embedding is c (thesis 2018, section 2.3.1), a missing value the mean of all; so may one number be."""
    schema, sizes = ALONE[alone]
    model = make(schema, adapt, UNHASHED, context_layer="none", **sizes)
    check(model, schema)
    assert model.encoder is not None
    assert bool(list(model.encoder.parameters())) == (alone != "number")


@pytest.mark.parametrize("adapt", KINDS)
@pytest.mark.parametrize("layers", LAYERS)
def test_gates_and_memory_may_be_normalised(layers: int, adapt: tuple[str, ...]) -> None:
    """Layer normalisation (Ba et al. 2016)."""
    model = make(SCHEMAS["both"], adapt, ("low_rank",), layers, layer_norm=True)
    check(model, SCHEMAS["both"])


def drawn_as(run: Run) -> list[float]:
    """How likely each token is among `DRAWS` draws with replacement from what training has as targets."""
    counts = Counter(word for row in ROWS for word in run.tokenizer.split(row["text"]))
    seen = [max(counts[token], 1) for token in run.vocabulary.tokens]
    seen[START], seen[END] = 0, len(ROWS)
    return [1 - (1 - count / sum(seen)) ** DRAWS for count in seen]


@pytest.mark.parametrize("seed", [0, 3])
def test_values_are_told_apart_by_words_drawn_from_unigrams(tmp_path: Path, seed: int) -> None:
    """Thesis 2018, sections 3.4 and 4.3: a softmax over a text's word and the drawn ones, which are all texts' own."""
    run = make_counted(tmp_path / "run")
    found = classify(run, ROWS, "city", samples=DRAWS, seed=seed, proposal="unigram")
    negative = draw_samples(run, DRAWS, seed, "unigram").tokens.tolist()
    assert len(negative) < len(run.vocabulary) - 1
    logs = np.zeros((len(ROWS), len(found.names)))
    for column, city in enumerate(found.names):
        corpus = run.prepare([{**row, "city": city} for row in ROWS])
        context = corpus.context(np.arange(len(ROWS)))
        for row, line in enumerate(ROWS):
            text = [*run.vocabulary.encode(run.tokenizer.split(line["text"])), END]
            logs[row, column] = -sum(Slow(run.model, run.schema, context, row).sampled(text, negative, drawn_as(run)))
    shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))
    np.testing.assert_allclose(found.probabilities, shares, atol=1e-4)


def nats_of_person(model: LanguageModel, schema: ContextSchema, vector: Array, text: list[int]) -> float:
    """What a text costs a person of this `vector`, who takes the place of the first user that is known."""
    assert model.encoder is not None
    with torch.no_grad():
        model.encoder.tables[0][1] = torch.tensor(vector)
    return sum(Slow(model, schema, Context(torch.tensor([[1]]), torch.zeros(1, 0)), 0).nats(text))


def test_adadelta_of_a_person_is_the_printed_one() -> None:
    """Thesis 2018, chapter 5, by Zeiler 2012, algorithm 1; no bound on a vector, which leaves that of the default."""
    run = make_letters(data=USERS, spread=0.8)
    encoder = run.model.encoder
    assert encoder is not None
    with torch.no_grad():
        encoder.tables[0].mul_(0.02)
    longest = float(encoder.tables[0].detach().norm(dim=1).max())
    learner, model = Learner(run, LearningRule("adadelta", 5.0, reach=0)), copy.deepcopy(run.model).double()
    user = learner.new()
    vector = encoder.tables[0][0].detach().double().numpy().copy()
    squares, moves, step = np.zeros(2), np.zeros(2), 1e-5
    for word in ["cab", "abc", "", "cabcab"] * 5:
        text = [*run.vocabulary.encode(run.tokenizer.split(word)), END]
        (user,), (nats,) = learner.learn([user], [word])
        assert nats == pytest.approx(nats_of_person(model, run.schema, vector, text), rel=1e-4)
        above, below = (
            [nats_of_person(model, run.schema, vector + side, text) for side in sign * step * np.eye(2)]
            for sign in (1, -1)
        )
        gradient = np.subtract(above, below) / (2 * step)
        squares = 0.95 * squares + 0.05 * gradient**2
        move = -np.sqrt(moves + 1e-6) / np.sqrt(squares + 1e-6) * gradient
        moves = 0.95 * moves + 0.05 * move**2
        vector = vector + 5 * move
        np.testing.assert_allclose(user.vector, vector, rtol=1e-3, atol=1e-5)
    assert np.linalg.norm(vector) > 1.5 * LearningRule.reach * longest


def every_text(slow: Slow, most: int) -> Texts:
    """The log probability of each text of at most `most` tokens, the end token among them where there is one."""
    found: Texts = {}
    going: list[tuple[int, ...]] = [()]
    for length in range(1, most + 1):
        longer = [(*text, token) for text in going for token in range(V) if token != START]
        found |= {text: -sum(slow.nats(list(text))) for text in longer if text[-1] == END or length == most}
        going = [text for text in longer if text[-1] != END]
    return found


def writers() -> tuple[LanguageModel, Any, list[Slow]]:
    """A model, its conditions for three contexts, and the slow model of each."""
    schema = SCHEMAS["both"]
    model, context = make(schema, ADAPTERS, OUTPUT_BIASES), batch(schema).context
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)  # where less is sure, short texts are among the likeliest
        return model, model.condition(context), [Slow(model, schema, context, row) for row in range(3)]


def test_the_largest_sum_of_log_probabilities_comes_first() -> None:
    """Thesis 2018, section 6.1, penalty 0: a stochastic beam that reaches all texts ranks them by the sum."""
    model, conditioned, slow = writers()
    task = WritingTask(model, conditioned, torch.arange(3), Constraints(max_tokens=4, banned=()))
    found = stochastic(task, Beam(width=300, length_penalty=0.0, best=20), Sampler(100.0), grow=200)
    for texts, own in zip(found, slow, strict=True):
        everything = every_text(own, 4)
        assert sum(np.exp(list(everything.values()))) == pytest.approx(1)
        wanted = best(everything, 0.0, 20)
        assert [as_counted(text, task.rules) for text in texts] == [text for text, _ in wanted]
        assert [text.log_probability for text in texts] == pytest.approx([log for _, log in wanted])
        assert best(everything, 1.0, 20) != wanted


@pytest.mark.parametrize(("width", "grow"), [(1, 1), (2, 2), (6, 3)])
def test_a_narrow_stochastic_beam_is_the_printed_one(monkeypatch: pytest.MonkeyPatch, width: int, grow: int) -> None:
    """The queue of section 6.1 over what the slow model says, penalty 0; `by_hand` has the queue."""
    model, conditioned, slow = writers()

    def logs_after(_run: Run, row: str, tokens: tuple[int, ...]) -> Tensor:
        logits = slow[int(row)].logits([*tokens, END])[-1]
        return torch.tensor([logits.get(v, -np.inf) for v in range(V)], dtype=torch.double).log_softmax(0)

    monkeypatch.setattr(test_beam_search, "logs_after", logs_after)
    rules, numbers = Constraints(max_tokens=5, banned=()), range(40)
    task = WritingTask(model, conditioned, torch.tensor([number % 3 for number in numbers]), rules)
    found = stochastic(task, Beam(width=width, length_penalty=0.0), Sampler(), grow=grow, seed=5)
    for number, (text,) in enumerate(found):
        reached = test_beam_search.by_hand(str(number % 3), number, width, grow, rules)
        ((expected, log),) = best(reached, 0.0, 1)
        assert as_counted(text, rules) == expected
        assert text.log_probability == pytest.approx(log)
