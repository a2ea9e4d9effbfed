"""Compare sampled and greedy texts with an enumeration of all texts."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.data.tokenizers.tokenizer import END, UNKNOWN
from factorcell.errors import UserError
from factorcell.generation.generate import GenerationOptions
from factorcell.generation.writing import Constraints, GeneratedText, WritingTask, write_texts
from tests.brute_force import conditioning, enumerate_texts
from tests.kernels import compiled
from tests.small_runs import make_letters, make_run

RUN = make_letters(spread=1.0)
UNCONSTRAINED = Constraints(max_tokens=3)
PROBABILITIES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
A, B, C = RUN.tokenizer.encode("abc")


def generate_texts(
    count: int,
    constraints: Constraints = UNCONSTRAINED,
    first: int = 0,
    prompt: tuple[int, ...] = (),
    **options: Any,
) -> list[GeneratedText]:
    """Return sampled texts, alternating between Oslo and Nice."""
    requests = GenerationOptions(max_tokens=constraints.max_tokens, **options).requests(count, first)
    contexts = (torch.arange(count) + first) % 2
    context = conditioning(RUN, ["Oslo", "Nice"])
    return write_texts(WritingTask(RUN.model, context, contexts, constraints, prompt=prompt), requests)


def with_end(text: GeneratedText) -> tuple[int, ...]:
    """Return the tokens, including the end token if it was written."""
    return (*text.tokens, END) if text.has_ended else text.tokens


def chi_square(counts: Counter[Any], probabilities: dict[Any, float]) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom; texts expected fewer than five times are one class."""
    total = sum(counts.values())
    likely = {text for text, chance in probabilities.items() if chance * total >= 5}
    bins = [(counts[text], probabilities[text] * total) for text in sorted(likely)]
    rest = sum(chance for text, chance in probabilities.items() if text not in likely) * total
    if rest:
        bins.append((sum(count for text, count in counts.items() if text not in likely), rest))
    return sum((count - expected) ** 2 / expected for count, expected in bins), len(bins) - 1


@pytest.mark.parametrize(
    "constraints",
    [
        UNCONSTRAINED,
        Constraints(max_tokens=3, min_tokens=2, banned=(UNKNOWN, B)),
        Constraints(max_tokens=4, no_repeat_ngram=2),
    ],
    ids=["free", "long", "new"],
)
def test_texts_have_the_frequencies_of_the_model(constraints: Constraints) -> None:
    texts = generate_texts(6000, constraints)
    for index, city in enumerate(("Oslo", "Nice")):
        probabilities = {
            text: np.exp(log) for text, log in enumerate_texts(RUN, city, constraints, renormalized=True).items()
        }
        assert sum(probabilities.values()) == pytest.approx(1)
        counts = Counter(with_end(text) for text in texts[index::2])
        assert set(counts) <= set(probabilities)
        statistic, freedom = chi_square(counts, probabilities)
        assert statistic < freedom + 4 * (2 * freedom) ** 0.5, (city, statistic, freedom)


def test_log_probabilities_agree_with_the_model() -> None:
    constraints = Constraints(max_tokens=4, min_tokens=1, no_repeat_ngram=2)
    log_probs = {city: enumerate_texts(RUN, city, Constraints(max_tokens=4)) for city in ("Oslo", "Nice")}
    for number, text in enumerate(generate_texts(60, constraints, temperature=2.0, top_k=3)):
        expected = log_probs[("Oslo", "Nice")[number % 2]][with_end(text)]
        assert text.log_probability == pytest.approx(expected, abs=1e-5)
        assert text.target_count == len(with_end(text))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 3}, {"temperature": 1.5, "top_p": 0.8}])
def test_a_text_is_the_same_in_any_batch(options: dict[str, Any]) -> None:
    constraints = Constraints(max_tokens=8)
    together = generate_texts(200, constraints, seed=5, **options)
    for first in (0, 1, 77, 199):
        (alone,) = generate_texts(1, constraints, first, seed=5, **options)
        assert alone.tokens == together[first].tokens
        assert alone.log_probability == pytest.approx(together[first].log_probability, abs=1e-5)
    assert [text.tokens for text in generate_texts(70, constraints, 130, seed=5, **options)] == [
        t.tokens for t in together[130:]
    ]
    assert [text.tokens for text in generate_texts(200, constraints, seed=6, **options)] != [
        text.tokens for text in together
    ]


def test_greedy_takes_the_most_probable_token() -> None:
    constraints, contexts = Constraints(max_tokens=6), torch.tensor([0, 1])
    task = WritingTask(RUN.model, conditioning(RUN, ["Oslo", "Nice"]), contexts, constraints)
    texts = write_texts(task, GenerationOptions("greedy").requests(2))
    for text, city in zip(texts, ("Oslo", "Nice"), strict=True):
        probabilities = enumerate_texts(RUN, city, Constraints(max_tokens=len(with_end(text))))
        for length in range(1, len(with_end(text)) + 1):
            prefixes = enumerate_texts(RUN, city, Constraints(max_tokens=length))
            siblings = {other: log for other, log in prefixes.items() if other[:-1] == with_end(text)[: length - 1]}
            assert max(siblings, key=siblings.__getitem__) == with_end(text)[:length]
        assert text.log_probability == pytest.approx(probabilities[with_end(text)], abs=1e-5)
    for options in ({"temperature": 1e-3}, {"temperature": 1e-60}, {"top_k": 1}, {"top_p": 1e-6}):
        assert [text.tokens for text in generate_texts(2, constraints, **options)] == [text.tokens for text in texts]


@compiled
def test_each_context_reads_the_prompt_once_in_a_single_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, forward = [], RUN.model.backbone.forward

    def record_shape(inputs: torch.Tensor, *arguments: Any) -> Any:
        shapes.append(tuple(inputs.shape[:2]))
        return forward(inputs, *arguments)

    monkeypatch.setattr(RUN.model.backbone, "forward", record_shape)
    texts = generate_texts(6, Constraints(max_tokens=1, min_tokens=1), prompt=(A, B, A))
    assert len(texts) == 6
    assert shapes == [(2, 3), (6, 1)]


def test_texts_continue_the_prompt() -> None:
    constraints, prompt = Constraints(max_tokens=2, no_repeat_ngram=2), (A, B, A)
    probabilities = {
        t: np.exp(log) for t, log in enumerate_texts(RUN, "Oslo", constraints, prompt, renormalized=True).items()
    }
    texts = generate_texts(4000, constraints, prompt=prompt)[::2]
    assert all(text.tokens[:1] != (B,) for text in texts)
    statistic, freedom = chi_square(Counter(with_end(text) for text in texts), probabilities)
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_without_time_texts_are_empty() -> None:
    context, contexts = conditioning(RUN, ["Oslo", "Nice"]), torch.tensor([0, 1, 0])
    task = WritingTask(RUN.model, context, contexts, UNCONSTRAINED, deadline=0)
    assert write_texts(task, GenerationOptions().requests(3)) == [GeneratedText((), 0.0, 0, False)] * 3


def test_the_text_ends_if_all_tokens_are_forbidden() -> None:
    texts = generate_texts(4, Constraints(max_tokens=9, min_tokens=9, banned=(UNKNOWN, A, B, C)))
    assert all(text.tokens == () and text.has_ended for text in texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram"),
        ({"width": 0}, "width is 0"),
        ({"length_penalty": -1.0}, "length_penalty"),
        ({"branching": 0}, "branching is 0"),
    ],
)
def test_invalid_numbers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        GenerationOptions(**options)


@pytest.mark.parametrize("model", [{}, {"layers": 2, "cell": "lstm"}, {"adapt": ("prefix",)}])
def test_all_kinds_of_models_generate(tmp_path: Path, model: dict[str, Any]) -> None:
    run = make_run(tmp_path / "run", ("city",), **model)
    context = conditioning(run, ["Oslo", "Nice"])
    constraints = Constraints(max_tokens=9)
    task = WritingTask(run.model, context, torch.tensor([0, 1] * 3), constraints)
    texts = write_texts(task, GenerationOptions().requests(6))
    rows = [
        {"text": " ".join(run.tokenizer.decode(t.tokens)), "city": ("Oslo", "Nice")[i % 2]} for i, t in enumerate(texts)
    ]
    for text, scored in zip(texts, run.score_rows(rows, tokens=True), strict=True):
        nats = [token["nats"] for token in scored["tokens"]][: text.target_count]
        assert text.log_probability == pytest.approx(-sum(nats), abs=1e-4)
