"""Texts written a token at a time against all texts that there are."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import UserError
from factorcell.data.vocabulary import END, UNKNOWN
from factorcell.generation.choosing import Constraints, Sampler
from factorcell.generation.sampling import GeneratedText, WritingTask, collect_texts, generate_steps, greedy, sampled
from tests.brute_force import conditioning, enumerate_texts
from tests.small_runs import make_letters, make_run

RUN = make_letters(spread=1.0)
FREE = Constraints(max_tokens=3)
CHANCES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
A, B, C = RUN.tokenizer.encode("abc")


def sample(
    count: int,
    rules: Constraints = FREE,
    draw: Sampler | None = None,
    seed: int = 0,
    first: int = 0,
    prompt: tuple[int, ...] = (),
) -> list[GeneratedText]:
    """Texts of Oslo and Nice by turns."""
    choice = sampled(draw or Sampler(), count, rules.max_tokens, seed, first)
    contexts = (torch.arange(count) + first) % 2
    chosen = generate_steps(
        WritingTask(RUN.model, conditioning(RUN, ["Oslo", "Nice"]), contexts, rules, prompt=prompt), choice
    )
    return collect_texts(count, chosen, rules)


def as_drawn(text: GeneratedText, rules: Constraints = FREE) -> tuple[int, ...]:
    """The tokens with the end token, where it was written."""
    stopped = any(text.tokens[-len(stop) :] == stop for stop in rules.stops)
    return (*text.tokens, END) if text.ended and not stopped else text.tokens


def chi_square(counts: Counter[Any], chances: dict[Any, float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; texts expected fewer than five times are taken together."""
    total = sum(counts.values())
    likely = {text for text, chance in chances.items() if chance * total >= 5}
    bins = [(counts[text], chances[text] * total) for text in sorted(likely)]
    rest = sum(chance for text, chance in chances.items() if text not in likely) * total
    if rest:
        bins.append((sum(count for text, count in counts.items() if text not in likely), rest))
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in bins), len(bins) - 1


@pytest.mark.parametrize(
    "rules",
    [
        FREE,
        Constraints(max_tokens=3, min_tokens=2, banned=(UNKNOWN, B)),
        Constraints(max_tokens=4, no_repeat_ngram=2),
        Constraints(max_tokens=4, stops=((A, C),), banned=(UNKNOWN,)),
    ],
    ids=["free", "long", "new", "stop"],
)
def test_whole_texts_have_their_probabilities(rules: Constraints) -> None:
    texts = sample(6000, rules)
    for place, city in enumerate(("Oslo", "Nice")):
        chances = {text: np.exp(log) for text, log in enumerate_texts(RUN, city, rules, renormalised=True).items()}
        assert sum(chances.values()) == pytest.approx(1)
        drawn_ones = Counter(as_drawn(text, rules) for text in texts[place::2])
        assert set(drawn_ones) <= set(chances)
        statistic, freedom = chi_square(drawn_ones, chances)
        assert statistic < freedom + 4 * (2 * freedom) ** 0.5, (city, statistic, freedom)


def test_log_probabilities_are_those_of_the_model() -> None:
    rules = Constraints(max_tokens=4, min_tokens=1, no_repeat_ngram=2)
    everything = {city: enumerate_texts(RUN, city, Constraints(max_tokens=4)) for city in ("Oslo", "Nice")}
    for number, text in enumerate(sample(60, rules, Sampler(temperature=2.0, top_k=3))):
        wanted = everything[("Oslo", "Nice")[number % 2]][as_drawn(text)]
        assert text.log_probability == pytest.approx(wanted, abs=1e-5)
        assert text.targets == len(as_drawn(text))


@pytest.mark.parametrize("draw", [Sampler(), Sampler(0.7, top_k=3), Sampler(1.5, top_p=0.8)])
def test_a_text_is_the_same_beside_any_others(draw: Sampler) -> None:
    rules = Constraints(max_tokens=8)
    together = sample(200, rules, draw, seed=5)
    for first in (0, 1, 77, 199):
        (alone,) = sample(1, rules, draw, seed=5, first=first)
        assert alone.tokens == together[first].tokens
        assert alone.log_probability == pytest.approx(together[first].log_probability, abs=1e-5)
    assert [text.tokens for text in sample(70, rules, draw, seed=5, first=130)] == [t.tokens for t in together[130:]]
    assert [text.tokens for text in sample(200, rules, draw, seed=6)] != [text.tokens for text in together]


def test_greedy_takes_the_likeliest_token() -> None:
    rules, contexts = Constraints(max_tokens=6), torch.tensor([0, 1])
    texts = collect_texts(
        2, generate_steps(WritingTask(RUN.model, conditioning(RUN, ["Oslo", "Nice"]), contexts, rules), greedy), rules
    )
    for text, city in zip(texts, ("Oslo", "Nice"), strict=True):
        chances = enumerate_texts(RUN, city, Constraints(max_tokens=len(as_drawn(text))))
        for length in range(1, len(as_drawn(text)) + 1):
            begun = enumerate_texts(RUN, city, Constraints(max_tokens=length))
            siblings = {other: log for other, log in begun.items() if other[:-1] == as_drawn(text)[: length - 1]}
            assert max(siblings, key=siblings.__getitem__) == as_drawn(text)[:length]
        assert text.log_probability == pytest.approx(chances[as_drawn(text)], abs=1e-5)
    for draw in (
        Sampler(temperature=1e-3),
        Sampler(temperature=1e-60),
        Sampler(top_k=1),
        Sampler(top_p=1e-6),
    ):
        assert [text.tokens for text in sample(2, rules, draw)] == [text.tokens for text in texts]


def test_a_prompt_is_read_first() -> None:
    rules, prompt = Constraints(max_tokens=2, no_repeat_ngram=2), (A, B, A)
    chances = {t: np.exp(log) for t, log in enumerate_texts(RUN, "Oslo", rules, prompt, renormalised=True).items()}
    texts = sample(4000, rules, prompt=prompt)[::2]
    assert all(text.tokens[:1] != (B,) for text in texts)
    statistic, freedom = chi_square(Counter(as_drawn(text) for text in texts), chances)
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_no_step_is_begun_without_time() -> None:
    context, contexts = conditioning(RUN, ["Oslo", "Nice"]), torch.tensor([0, 1, 0])
    chosen = generate_steps(WritingTask(RUN.model, context, contexts, FREE, deadline=0), sampled(Sampler(), 3, 3))
    assert collect_texts(3, chosen, FREE) == [GeneratedText((), 0.0, 0, False)] * 3


def test_where_all_is_forbidden_the_text_ends() -> None:
    texts = sample(4, Constraints(max_tokens=9, min_tokens=9, banned=(UNKNOWN, A, B, C)))
    assert all(text.tokens == () and text.ended for text in texts)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sampler(temperature=0.0), "temperature"),
        (lambda: Sampler(temperature=float("nan")), "temperature"),
        (lambda: Sampler(top_k=-1), "top_k"),
        (lambda: Sampler(top_p=0.0), "top_p"),
        (lambda: Constraints(max_tokens=0), "max_tokens"),
        (lambda: Constraints(min_tokens=5, max_tokens=4), "min_tokens"),
        (lambda: Constraints(no_repeat_ngram=-1), "no_repeat_ngram"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize("model", [{}, {"layers": 2, "cell": "lstm"}, {"adapt": ("prefix",)}])
def test_every_kind_of_model_writes(tmp_path: Path, model: dict[str, Any]) -> None:
    run = make_run(tmp_path / "run", ("city",), **model)
    context = conditioning(run, ["Oslo", "Nice"])
    rules = Constraints(max_tokens=9)
    texts = collect_texts(
        6,
        generate_steps(WritingTask(run.model, context, torch.tensor([0, 1] * 3), rules), sampled(Sampler(), 6, 9)),
        rules,
    )
    rows = [
        {"text": " ".join(run.tokenizer.decode(t.tokens)), "city": ("Oslo", "Nice")[i % 2]} for i, t in enumerate(texts)
    ]
    for text, scored in zip(texts, run.score(rows, tokens=True), strict=True):
        nats = [token["nats"] for token in scored["tokens"]][: text.targets]
        assert text.log_probability == pytest.approx(-sum(nats), abs=1e-4)
