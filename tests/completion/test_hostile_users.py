"""Invalid users, invalid texts and learning that would overflow are refused."""

import itertools
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import MAX_RATE, Floats, Learner, LearningRule, User, learn_one
from factorcell.completion.popularity import History
from factorcell.completion.replay import read_streams
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.data.text_folds import MAX_BYTES, check_text, is_valid_text, same_text
from factorcell.errors import UserError
from factorcell.runs.run import Run
from tests.findings import expected_finding
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}
VECTOR, STATE = np.array([0.5, -1.0], np.float32), np.array([[0.0, 2.0]], np.float32)
GOOD = User(VECTOR, STATE, 7, History(("abc", "", "é\x00\x1b\n")), b"\x01run" * 4)


def make_run(**more: Any) -> Run:
    """Return a run of letters whose users are cities."""
    return make_letters(**{"data": CITY, "spread": 0.8, **more})


def with_checksum(content: bytes) -> bytes:
    """Return the content with a valid checksum, as an attacker would write it."""
    return content + struct.pack("<I", zlib.crc32(content))


def forge_user(vector: list[float], state: list[float], **values: Any) -> bytes:
    """Return the bytes of a user with these numbers and values of the header, which may be invalid."""
    header = {"size": len(vector), "rows": 1, "text_count": 3, "fingerprint": "", "texts": [], **values}
    return forge_header(json.dumps(header), struct.pack(f"<{len(vector) + len(state)}f", *vector, *state))


def forge_header(header: str, numbers: bytes = bytes(16)) -> bytes:
    """Return the bytes of a user with this header."""
    return with_checksum(b"fcu\1" + header.encode() + b"\n" + numbers)


with_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (forge_user([NAN, 0], [0, 0]), "not finite"),
        (forge_user([0, -INF], [0, 0]), "not finite"),
        (forge_user([0, 0], [NAN, 0]), "not finite"),
        (forge_user([0, 0], [INF, 0]), "not finite"),
        (forge_user([0, 0], [0, -1e-30]), "not finite"),
        (forge_user([], []), "float32 (0,)"),
        (forge_user([0], [0] * 3, rows=2), "cannot reshape"),
        (forge_user([0], [0], rows=2), "cannot reshape"),
        (forge_user([0], [], rows=-1), "invalid user"),
        (forge_user([0], [0], rows="1"), "cannot be read"),
        (forge_user([0], [0], text_count=-1), "text count -1"),
        (forge_user([0], [0], text_count=None), "cannot be read"),
        (forge_user([0], [0], fingerprint="zz"), "cannot be read"),
        (forge_user([0], [0], fingerprint="01"), "fingerprint of 1 bytes"),
        (forge_user([0], [0], texts=[5]), "cannot be read"),
        (forge_user([0], [0], texts=["\ud800"]), "not Unicode text"),
        (forge_header("{}"), "cannot be read"),
        (forge_header("[" * 100_000), "cannot be read"),
        (forge_header("5"), "cannot be read"),
        (b"", "invalid user"),
        (b"\0" * 7, "invalid user"),
        (b"\0" * 40, "invalid user"),
        (with_checksum(b"\0" * 40), "invalid user"),
    ],
)
def test_invalid_user_bytes_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match="invalid user") as error:
        User.from_bytes(content)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vector": np.array([NAN, 0], np.float32)}, "not finite"),
        ({"vector": VECTOR[:1]}, "32-bit floats"),
        ({"vector": VECTOR[None]}, "32-bit floats"),
        ({"vector": VECTOR.astype(np.float64)}, "32-bit floats"),
        ({"state": -STATE}, "negative"),
        ({"state": STATE[0]}, "32-bit floats"),
        ({"text_count": -1}, "text count -1"),
        ({"fingerprint": b"run"}, "fingerprint of 3 bytes"),
    ],
)
def test_users_with_invalid_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(GOOD, **change)


def test_every_flipped_bit_is_refused() -> None:
    content = GOOD.to_bytes()
    assert User.from_bytes(content).to_bytes() == content
    for position, bit in itertools.product(range(len(content)), range(8)):
        altered = bytearray(content)
        altered[position] ^= 1 << bit
        with pytest.raises(UserError):
            User.from_bytes(bytes(altered))


@with_fixtures
@given(position=st.integers(0, len(GOOD.to_bytes()) - 1), extra=st.binary(min_size=1, max_size=60))
def test_bytes_that_are_cut_or_joined_are_refused(position: int, extra: bytes) -> None:
    content = GOOD.to_bytes()
    residue = struct.pack("<I", zlib.crc32(content))  # appended to the content, it makes the checksum valid again
    joined = (content + extra, content + bytes(len(extra)), extra + content, content * 2, content + residue)
    for invalid in (content[:position], content[position + 1 :], *joined, with_checksum(content[:-4] + extra[:3])):
        with pytest.raises(UserError):
            User.from_bytes(invalid)


@with_fixtures
@given(content=st.binary(max_size=80))
def test_any_bytes_are_a_valid_user_or_refused(content: bytes) -> None:
    for user_bytes in (content, with_checksum(b"fcu\1" + content), with_checksum(GOOD.to_bytes()[:-20] + content)):
        try:
            user = User.from_bytes(user_bytes)
        except UserError:
            continue
        assert np.isfinite(user.vector).all()
        assert User.from_bytes(user.to_bytes()).to_bytes() == user.to_bytes()


# Texts, and the error that every entry point reports; None for valid texts.
TEXTS: dict[str, tuple[Any, str | None]] = {
    "empty": ("", None),
    "NUL": ("a\x00b", None),
    "controls": ("\x1b[2J\r\n\t\x7f\x9b", None),
    "bidirectional": ("a\u202eb\u2066", None),
    "largest": ("a" * MAX_BYTES, None),
    "lone surrogate": ("a\ud800", "not Unicode text (character 2)"),
    "surrogates in a pair": ("\ud83d\ude00", "not Unicode text (character 1)"),
    "1 MB": ("a" * 1_000_000, f"1,000,000 characters; a text may have at most {MAX_BYTES:,} bytes"),
    "long in bytes": ("é" * (MAX_BYTES // 2 + 1), f"a text may have at most {MAX_BYTES:,} bytes"),
    "a number": (5, "5: not a text"),
    "nothing": (None, "None: not a text"),
}


def entry_points(run: Run) -> dict[str, Callable[[str], object]]:
    """Return all functions that take a text."""
    user, completer = User.new(run), Completer(run)
    completer.max_text_tokens = 2 * MAX_BYTES  # so that the limit of the run does not apply

    def replay_text(text: str) -> object:
        return read_streams([{"text": text, "city": "Oslo", "time": 1}], run.config, user_column="city")

    return {
        "check_text": check_text,
        "learn_one": lambda text: learn_one(run, user, text),
        "Learner.learn": lambda text: Learner(run).learn([user], [text]),
        "History.add": History().add,
        "Completer.type_text": lambda text: completer.type_text(completer.begin(user), text),
        "replay": replay_text,
    }


@pytest.mark.parametrize("name", [name for name in TEXTS if TEXTS[name][1] is not None])
def test_all_entry_points_refuse_invalid_texts(name: str) -> None:
    text, message = TEXTS[name]
    run = make_run()
    for where, enter in entry_points(run).items():
        if where == "replay" and not isinstance(text, str):
            continue  # a table reports values that are not texts differently
        with pytest.raises(UserError) as error:
            enter(text)
        assert message is not None
        assert message in str(error.value), where
        assert len(str(error.value)) < 500
        str(error.value).encode()
    with pytest.raises(UserError):
        Blend(run, None).complete(text, User.new(run))


@pytest.mark.parametrize("name", [name for name in TEXTS if TEXTS[name][1] is None and name != "largest"])
def test_all_entry_points_accept_valid_texts(name: str) -> None:
    text, run = TEXTS[name][0], make_run()
    for enter in entry_points(run).values():
        enter(text)
    user = learn_one(run, User.new(run), text)
    assert user.history.texts == (same_text(text),)
    assert User.from_bytes(user.to_bytes()).history == user.history
    assert Blend(run, None).complete("", user, k=3)


def test_long_texts_are_cut_as_in_training() -> None:
    run = make_run()
    long, truncated = "abc" * 1000, ("abc" * 1000)[: run.config.data.max_tokens]
    with expected_finding("cut texts"):
        user = learn_one(run, User.new(run), long)
    user_of_truncated = learn_one(run, User.new(run), truncated)
    assert np.array_equal(user.vector, user_of_truncated.vector)
    assert user.history.texts == (long,)


@with_fixtures
@given(
    sizes=st.lists(st.integers(0, MAX_BYTES), max_size=8),
    letters=st.lists(st.sampled_from(["a", "é", "😀"]), min_size=1, max_size=8),
)
def test_a_history_is_bounded_in_bytes(sizes: list[int], letters: list[str]) -> None:
    texts = [letter * (size // 4) for letter, size in zip(itertools.cycle(letters), sizes, strict=False)]
    history = History()
    for text in texts:
        history = history.add(text)
    assert history == History(tuple(texts))
    count = len(history.texts)
    assert history.texts == tuple(texts[len(texts) - count :])
    total = sum(len(text.encode()) for text in history.texts)
    assert total <= MAX_BYTES
    assert count == len(texts) or total + len(texts[-count - 1].encode()) > MAX_BYTES
    user = replace(GOOD, history=history)
    assert len(user.to_bytes()) <= MAX_BYTES + 3 * 100 + 200
    assert User.from_bytes(user.to_bytes()).history == history


def test_learning_that_overflows_leaves_the_user_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    for rule, slope in ((LearningRule("adagrad", 0.1), 1e30), (LearningRule("sgd", MAX_RATE), 3e38)):
        learner = Learner(run, rule)
        user = learner.new()
        before = user.to_bytes()

        def steep_gradients(vectors: Floats, *_: object, slope: float = slope) -> tuple[object, Floats]:
            return np.zeros(len(vectors)), np.full_like(vectors, slope)

        monkeypatch.setattr(learner, "gradients", steep_gradients)
        with pytest.raises(UserError, match=r"'abc' cannot be learned by .* not finite\); the user is unchanged"):
            learner.learn([user], ["abc"])
        assert user.to_bytes() == before
        assert Completer(run).complete("a", user)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"optimizer": "sgd", "rate": NaN}', "rate is nan; it must be a number"),
        ('{"optimizer": "sgd", "rate": -0.1}', "rate is -0.1"),
        ('{"optimizer": "sgd", "rate": 1' + "0" * 400 + "}", "rate is 1000"),
        ('{"optimizer": "sgd", "rate": true}', "rate is True"),
        ('{"optimizer": "sgd", "rate": "0.1"}', "rate is '0.1'"),
        ('{"optimizer": ["sgd"]}', "unknown online optimizer"),
        ('{"max_norm": NaN}', "max_norm is nan; it must be a "),
        ('{"pace": 1}', "not a rule"),
    ],
)
def test_invalid_rules_are_refused(content: str, message: str, tmp_path: Path) -> None:
    run = make_run()
    run.folder = tmp_path
    (tmp_path / "completion.json").write_text('{"format": 1, "rule": ' + content + "}")
    with pytest.raises(UserError) as error:
        Learner(run)
    assert message in str(error.value)
    assert str(tmp_path / "completion.json") in str(error.value)
    assert "\n" not in str(error.value)


def test_half_a_surrogate_pair_in_the_vocabulary_is_not_suggested(tmp_path: Path) -> None:
    """The rows of a program, unlike files, may contain it."""
    config = Config.of(tokenizer="char", min_count=1, adapt=(), output_bias=(), hidden_size=4, embedding_size=3)
    corpus = prepare([{"text": text} for text in ("ab\ud83d", "a\ud83db", "abb")], config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    assert "\ud83d" in run.tokenizer.tokens
    suggestions = Completer(run).complete("a", k=20)
    assert len(suggestions) > 3
    assert all(is_valid_text(suggestion.text) for suggestion in suggestions)
