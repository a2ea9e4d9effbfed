"""Compare completion with pieces of words with an enumeration of all texts."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from factorcell import UserError
from factorcell.completion import User, learn_one
from factorcell.completion.completer import Completer
from factorcell.completion.pieces import MORE_TOKENS, PieceEngine
from factorcell.completion.search import SearchRequest
from factorcell.config import BpeOptions, Config
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.data.tokenizers.tokenizer import Specials
from factorcell.runs.run import Run
from tests.pretrained_models import write_pretrained
from tests.small_runs import as_any

LETTERS = ["a", "b", "Ġ", "Ã", "©", "'"]  # the last letters but one are the bytes of é
MERGES = [("a", "b"), ("Ġ", "a"), ("Ġa", "b"), ("b", "b"), ("ab", "ab"), ("Ã", "©"), ("a", "Ã"), ("'", "a")]
ALPHABET = "ab é'"
MAX_TOKENS, MAX_CHARACTERS = 3, 5  # of the enumerated texts; a text of 3 tokens may have more characters
CITIES = ("Oslo", "Nice")
CLOSE = 1e-4


def tiny_tokenizer(has_whole_words: bool = False) -> BpeTokenizer:
    """Return a tokenizer with few pieces; `has_whole_words`: "bb" is a word as a whole, but not a piece of others."""
    names = ["<s>", *LETTERS, "<unk>", *(first + second for first, second in MERGES), "</s>"]
    merges = [merge for merge in MERGES if not (has_whole_words and merge == ("b", "b"))]
    id_by_name = {name: index for index, name in enumerate(names)}
    library = tokenizers.Tokenizer(models.BPE(id_by_name, merges, ignore_merges=has_whole_words))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>", "<unk>", "</s>"])
    ids = [library.get_vocab()[name] for name in ("<unk>", "<s>", "</s>")]
    return BpeTokenizer(BpeOptions(), library, Specials(*ids))


def make_pieces(folder: Path, seed: int = 0, has_whole_words: bool = False, **options: Any) -> Run:
    """Create a run with the tiny tokenizer and random weights, in which every text has a substantial probability."""
    fields = {"tokenizer": "bpe", "context": ("city",), "min_context_count": 1, "max_tokens": MAX_TOKENS + 1}
    sizes = {"embedding_size": 5, "hidden_size": 6, "rank": 2, "context_size": 3, "variable_size": 2}
    config = Config.of(**fields, **sizes, **options)
    rows = [{"text": "ab", "city": city, "user": "Ada"} for city in CITIES]
    corpus = prepare(rows, config, tokenizer=tiny_tokenizer(has_whole_words))
    run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.7)
    return run


@pytest.fixture(scope="module", params=[False, True], ids=["merges", "whole words"])
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Run:
    return make_pieces(tmp_path_factory.mktemp("pieces") / "run", has_whole_words=request.param)


def all_tokens(tokenizer: BpeTokenizer) -> list[str]:
    return [token for index, token in enumerate(tokenizer.tokens) if index not in tokenizer.specials]


def enumerate_texts(run: Run, city: str) -> dict[str, float]:
    """Return the log probability of each text that has at most `MAX_TOKENS` tokens."""
    tokenizer = run.tokenizer
    texts = {}
    for length in range(MAX_TOKENS + 1):
        for tokens in itertools.product(all_tokens(tokenizer), repeat=length):  # type: ignore[arg-type]
            text = tokenizer.join(tokens)
            if tokenizer.split(text) == list(tokens):
                texts[text] = list(tokens)
    corpus = run.prepare([{"text": text, "city": city} for text in texts])
    assert not corpus.truncated.any()
    nats = run.nats(corpus).astype(np.float64)
    ends = np.cumsum([len(tokens) + 1 for tokens in texts.values()])
    totals = np.add.reduceat(nats, np.concatenate([[0], ends[:-1]]))
    return dict(zip(texts, (-totals).tolist(), strict=True))


def log_z(run: Run, city: str, prefix: str) -> float:
    """Return the log probability of all covers of a prefix, by a sum over all sequences of tokens."""
    tokenizer, target = run.tokenizer, prefix.encode()
    assert isinstance(tokenizer, BpeTokenizer)
    conditioning = run.model.condition(run.prepare([{"text": "", "city": city}]).context(np.zeros(1, np.int64)))
    total = -math.inf

    def visit(tokens: tuple[int, ...], content: bytes, log_prob: float) -> None:
        nonlocal total
        if content.startswith(target):
            total = float(np.logaddexp(total, log_prob))
            return
        if not target.startswith(content) or not tokenizer.may_begin(tokenizer.decode(tokens)):
            return
        state, log_probs = None, torch.zeros(0)
        for token in (tokenizer.specials.start, *tokens):
            log_probs, state = run.model.step(torch.tensor([token]), conditioning, state)
        for token, more in enumerate(tokenizer.bytes_by_id):
            if more:
                visit((*tokens, token), content + more, log_prob + float(log_probs[0, token]))

    with torch.no_grad():
        visit((), b"", 0.0)
    return total


PREFIXES = st.text(alphabet=ALPHABET, max_size=MAX_CHARACTERS)


@cache
def texts_of(run: Run, city: str) -> dict[str, float]:
    return enumerate_texts(run, city)


@given(prefix=PREFIXES, city=st.sampled_from(CITIES), k=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_completions_are_the_most_probable_texts_each_counted_once(run: Run, prefix: str, city: str, k: int) -> None:
    completer = Completer(run)
    typed_text = completer.type_text(completer.begin(context={"city": city}), prefix)
    result = completer.suggest(typed_text, k)
    assert not result.is_cut
    prefix = typed_text.text
    normalizer = log_z(run, city, prefix)
    # Completions are compared in canonical form: white space at the ends does not count.
    best: dict[str, float] = {}
    for text, log_prob in texts_of(run, city).items():
        form = " ".join(text.split())
        if text.startswith(prefix) and form.startswith(prefix) and form != prefix:
            best[form] = max(best.get(form, -math.inf), log_prob - normalizer)
    expected = sorted(best.values(), reverse=True)[:k]
    assert [item.log_probability for item in result.suggestions] == pytest.approx(expected, abs=CLOSE)
    assert len({item.text for item in result.suggestions}) == len(expected)
    for item in result.suggestions:
        assert item.log_probability == pytest.approx(best[item.text], abs=CLOSE)


@given(prefixes=st.lists(PREFIXES, min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_typing_one_character_at_a_time_gives_the_state_of_the_whole_prefix(run: Run, prefixes: list[str]) -> None:
    completer = Completer(run)
    empty = typed = completer.begin(context={"city": "Oslo"})
    for prefix in prefixes:
        typed = completer.type_text(typed, prefix)
        whole = completer.type_text(empty, prefix)
        assert typed.prefix_state.covers == pytest.approx(whole.prefix_state.covers, abs=CLOSE)
        assert {*typed.prefix_state.beginnings} == {*whole.prefix_state.beginnings}


def test_the_probability_of_a_text_after_a_prefix_is_that_of_its_suggestion(run: Run) -> None:
    completer, context = Completer(run), {"city": "Nice"}
    suggestions = completer.complete("a", context=context, k=5)
    texts = [item.text for item in suggestions]
    expected = [item.log_probability for item in suggestions if item.text == item.text.strip()]
    log_probs = completer.log_probabilities("a", texts, context=context)
    assert len(expected) == 5
    assert all(value <= best + CLOSE for value, best in zip(log_probs, expected, strict=True))
    assert math.isnan(completer.log_probabilities("b", ["ab"])[0])


def test_a_prefix_of_too_many_pieces_has_no_completions(run: Run) -> None:
    completer = Completer(run)
    assert completer.type_text(completer.begin(), "abab" * MAX_TOKENS).fits
    assert not completer.type_text(completer.begin(), "b b b b b").fits
    assert completer.complete("b b b b b") == []


def test_a_long_prefix_without_spaces_is_read_up_to_the_longest_text(run: Run) -> None:
    completer = Completer(run)
    prefix = "ab" * 5_000
    assert completer.type_text(completer.begin(), prefix).fits  # none of its pieces is certain
    typed_text = completer.type_text(completer.begin(), prefix)
    assert max(map(len, typed_text.prefix_state.beginnings)) == MAX_TOKENS + MORE_TOKENS
    assert len(typed_text.prefix_state.beginnings) < 100  # not all ways to divide it
    assert not typed_text.prefix_state.covers
    assert completer.suggest(typed_text).suggestions == []


def test_beginnings_share_the_keys_and_values_of_a_transformer(tmp_path: Path) -> None:
    texts = ["the sea is cold", "the sea is old", "a sea of cold air"]
    base = write_pretrained(tmp_path / "base", texts)
    config = Config.of(base=str(base), context=("city",), min_context_count=1, adapt=("factor",), output_bias=())
    config = config.with_options(max_tokens=30)
    corpus = prepare([{"text": text, "city": "Oslo"} for text in texts], config)
    run = Run(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    completer, prefix = Completer(run), "the sea is the sea is co"
    empty = completer.begin(context={"city": "Oslo"})
    state = completer.type_text(empty, prefix).prefix_state
    certain = run.tokenizer.encode(run.tokenizer.certain_tokens(prefix))  # type: ignore[attr-defined]
    shared = [state.beginnings[tuple(certain[:length])].state for length in range(1, len(certain) + 1)]
    assert len(shared) > 2
    assert len({beginning.arrays[0].data_ptr() for beginning in shared}) == 1
    alone = completer.type_text(empty, "the sea is ").prefix_state
    both = set(alone.beginnings) & {tuple(certain[:length]) for length in range(1, len(certain) + 1)}
    assert both
    for tokens in both:
        keys, expected = (each.beginnings[tokens].state.arrays[2] for each in (state, alone))
        torch.testing.assert_close(keys, expected)
    request = SearchRequest(state, 2, completer.max_text_tokens, max_expanded=1, max_waiting=10)
    with run.scoring():
        frontier = completer.engine._begin(request)
    longest = max(len(tokens) for tokens in state.covers)  # with the start token, without the last one
    assert frontier.states.stored_tokens <= longest * len({tokens[:-1] for tokens in state.covers})


def test_a_search_that_ends_early_says_so(run: Run) -> None:
    engine = PieceEngine(run.predictor, tiny_tokenizer(), MAX_TOKENS)
    completer = Completer(run)
    typed_text = completer.type_text(completer.begin(), "a")
    request = SearchRequest(typed_text.prefix_state, 10, completer.max_text_tokens)
    with run.scoring():
        cut = engine.search(replace(request, max_expanded=3))
    assert cut.is_cut
    assert cut.expanded_count <= 3
    with run.scoring():
        whole = engine.search(request)
    assert not whole.is_cut


def test_typos_are_refused(run: Run) -> None:
    with pytest.raises(UserError, match="typos: expected a tokenizer of characters, got bpe"):
        Completer(run, typos=1)


def test_the_index_finds_tokens_by_their_bytes() -> None:
    contents = [b"", b"a", b"ab", b"b", b"a", b"\xff", b"\xff\xff"]
    engine = PieceEngine(as_any(None), as_any(SimpleNamespace(bytes_by_id=contents)), MAX_TOKENS)

    def expected(content: bytes) -> Iterator[int]:
        return (number for number, item in enumerate(contents) if item and item.startswith(content))

    for content in (b"", b"a", b"ab", b"abc", b"\xff", b"c"):
        assert sorted(engine.tokens_beginning_with(content)) == sorted(expected(content))
        equal = [number for number, item in enumerate(contents) if item and item == content]
        assert engine.tokens.get(content, []) == equal


def test_a_user_is_learned_online(tmp_path: Path) -> None:
    run = make_pieces(tmp_path / "run", user="user", min_user_count=1)
    completer, user = Completer(run, unknown="expected"), User.new(run)
    before = completer.log_probabilities("a", ["abab"], user)
    for _ in range(3):
        user = learn_one(run, user, "abab")
    assert completer.log_probabilities("a", ["abab"], user)[0] > before[0]
