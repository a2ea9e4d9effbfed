"""Bytes and values that are no user, texts that are no text, and learning that would spoil somebody: each refused."""

import itertools
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
from factorcell.completion.online import FASTEST, MOST_SEEN, Floats, Learner, LearningRule, User, learn_one
from factorcell.completion.popularity import History
from factorcell.completion.replay.streams import read_streams
from factorcell.completion.texts import MAX_BYTES, check_text
from factorcell.config import Notice, UserError
from factorcell.data.canonical import canonical
from factorcell.model.run import Run
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}
VECTOR, STATE = np.array([0.5, -1.0], np.float32), np.array([[0.0, 2.0]], np.float32)
GOOD = User(VECTOR, STATE, 7, History(("abc", "", "é\x00\x1b\n")), b"\x01run" * 4)


def make(**more: Any) -> Run:
    """A run of letters whose users are cities."""
    return make_letters(**{"data": CITY, "spread": 0.8, **more})


def sealed(content: bytes) -> bytes:
    """With a checksum that fits: what somebody writes who means harm."""
    return content + struct.pack("<I", zlib.crc32(content))


def forged(vector: list[float], state: list[float], rows: int = 1, rest: bytes = b"") -> bytes:
    """Bytes of a user with these numbers."""
    numbers = struct.pack(f"<{len(vector) + len(state)}f", *vector, *state)
    return sealed(struct.pack("<3sB16sHHI", b"fcu", 1, bytes(16), len(vector), rows, 3) + numbers + rest)


counting = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (forged([NAN, 0], [0, 0]), "vector has numbers that are not finite"),
        (forged([0, -INF], [0, 0]), "vector has numbers that are not finite"),
        (forged([0, 0], [NAN, 0]), "state has numbers that are negative or not finite"),
        (forged([0, 0], [INF, 0]), "state has numbers that are negative or not finite"),
        (forged([0, 0], [0, -1e-30]), "state has numbers that are negative or not finite"),
        (forged([], []), "a vector of shape (0,)"),
        (forged([0], [0] * 3, rows=3), "state of shape (3, 1)"),
        (forged([0], [0], rows=2), "buffer is smaller"),
        (forged([0], [], rows=0, rest=b"\3"), "not a user"),
        (forged([0], [], rows=0, rest=b"\3\0\0\0ab"), "cut off"),
        (forged([0], [], rows=0, rest=b"\xff\xff\xff\xffab"), "cut off"),
        (forged([0], [], rows=0, rest=b"\1\0\0\0\xff"), "can't decode"),
        (forged([0], [], rows=0, rest=b"\3\0\0\0\xed\xa0\x80"), "can't decode"),  # a surrogate
        (b"", "not a user"),
        (b"\0" * 7, "not a user"),
        (b"\0" * 40, "not a user"),
        (sealed(b"\0" * 40), "not a user"),
    ],
)
def test_bytes_that_no_learning_leads_to_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match="not a user") as error:
        User.from_bytes(content)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vector": np.array([NAN, 0], np.float32)}, "not finite"),
        ({"vector": VECTOR[:1]}, "state of shape"),
        ({"vector": VECTOR[None]}, "a vector of shape"),
        ({"vector": VECTOR.astype(np.float64)}, "32-bit floats"),
        ({"state": -STATE}, "negative"),
        ({"state": STATE[0]}, "state of shape"),
        ({"seen": -1}, "seen -1"),
        ({"seen": MOST_SEEN + 1}, "seen 4,294,967,296"),
        ({"fingerprint": b"run"}, "fingerprint of 3 bytes"),
    ],
)
def test_there_is_no_user_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(GOOD, **change)


def test_every_flipped_bit_is_refused() -> None:
    content = GOOD.to_bytes()
    assert User.from_bytes(content).to_bytes() == content
    for place, bit in itertools.product(range(len(content)), range(8)):
        altered = bytearray(content)
        altered[place] ^= 1 << bit
        with pytest.raises(UserError):
            User.from_bytes(bytes(altered))


@counting
@given(place=st.integers(0, len(GOOD.to_bytes()) - 1), extra=st.binary(min_size=1, max_size=60))
def test_bytes_that_are_cut_or_joined_are_refused(place: int, extra: bytes) -> None:
    content = GOOD.to_bytes()
    residue = struct.pack("<I", zlib.crc32(content))  # after which the checksum of all before fits again
    joined = (content + extra, content + bytes(len(extra)), extra + content, content * 2, content + residue)
    for wrong in (content[:place], content[place + 1 :], *joined, sealed(content[:-4] + extra[:3])):
        with pytest.raises(UserError):
            User.from_bytes(wrong)


@counting
@given(content=st.binary(max_size=80))
def test_any_bytes_are_a_user_or_refused(content: bytes) -> None:
    for one in (content, sealed(b"fcu\1" + content), sealed(GOOD.to_bytes()[:24] + content)):
        try:
            user = User.from_bytes(one)
        except UserError:
            continue
        assert np.isfinite(user.vector).all()
        assert User.from_bytes(user.to_bytes()).to_bytes() == user.to_bytes()


# A text, and what is said of it wherever a text goes in; None where it is a text like all others.
TEXTS: dict[str, tuple[Any, str | None]] = {
    "empty": ("", None),
    "NUL": ("a\x00b", None),
    "controls": ("\x1b[2J\r\n\t\x7f\x9b", None),
    "bidirectional": ("a\u202eb\u2066", None),
    "largest": ("a" * MAX_BYTES, None),
    "lone surrogate": ("a\ud800", "not Unicode text (character 2)"),
    "surrogates in a pair": ("\ud83d\ude00", "not Unicode text (character 1)"),
    "1 MB": ("a" * 1_000_000, f"1,000,000 characters; a text takes at most {MAX_BYTES:,} bytes"),
    "long in bytes": ("é" * (MAX_BYTES // 2 + 1), f"a text takes at most {MAX_BYTES:,} bytes"),
    "a number": (5, "5: not a text"),
    "nothing": (None, "None: not a text"),
}


def entries(run: Run) -> dict[str, Callable[[str], object]]:
    """Wherever a text goes in."""
    user, completer = User.new(run), Completer(run)
    completer.most = 2 * MAX_BYTES  # what is too long for the run alone is another line

    def replayed(text: str) -> object:
        return read_streams([{"text": text, "city": "Oslo", "time": 1}], run.config, user_column="city")

    return {
        "checked": check_text,
        "learn_one": lambda text: learn_one(run, user, text),
        "Learner.learn": lambda text: Learner(run).learn([user], [text]),
        "History.add": History().add,
        "Completer.type": lambda text: completer.type(completer.begin(user), text),
        "replay": replayed,
    }


@pytest.mark.parametrize("name", [name for name in TEXTS if TEXTS[name][1] is not None])
def test_one_rule_refuses_texts_wherever_they_go_in(name: str) -> None:
    text, message = TEXTS[name]
    run = make()
    completer = Completer(run)
    for where, entered in entries(run).items():
        if where == "replay" and not isinstance(text, str):
            continue  # a table has its own line for a value that is no text
        with pytest.raises(UserError) as error:
            entered(text)
        assert message is not None
        assert message in str(error.value), where
        assert len(str(error.value)) < 500
        str(error.value).encode()
    with pytest.raises(UserError):
        Blend(completer, None).complete(text, User.new(run))


@pytest.mark.parametrize("name", [name for name in TEXTS if TEXTS[name][1] is None and name != "largest"])
def test_one_rule_accepts_all_other_texts(name: str) -> None:
    text, run = TEXTS[name][0], make()
    for entered in entries(run).values():
        entered(text)
    user = learn_one(run, User.new(run), text)
    assert user.history.texts == (canonical(text),)
    assert User.from_bytes(user.to_bytes()).history == user.history
    assert Blend(Completer(run), None).complete("", user, k=3)


def test_what_is_longer_than_the_run_reads_is_cut_as_in_training() -> None:
    run = make()
    long, read_ = "abc" * 1000, ("abc" * 1000)[: run.config.data.max_tokens]
    with pytest.warns(Notice, match="the text learned: 1 of 1 texts is cut after"):
        user = learn_one(run, User.new(run), long)
    cut = learn_one(run, User.new(run), read_)
    assert np.array_equal(user.vector, cut.vector)
    assert user.history.texts == (long,)


@counting
@given(
    sizes=st.lists(st.integers(0, MAX_BYTES), max_size=8),
    letters=st.lists(st.sampled_from(["a", "é", "😀"]), min_size=1, max_size=8),
)
def test_a_history_is_bounded_in_bytes(sizes: list[int], letters: list[str]) -> None:
    texts = [letter * (count // 4) for letter, count in zip(itertools.cycle(letters), sizes, strict=False)]
    history = History()
    for text in texts:
        history = history.add(text)
    assert history == History(tuple(texts))
    kept = len(history.texts)
    assert history.texts == tuple(texts[len(texts) - kept :])
    total = sum(len(text.encode()) for text in history.texts)
    assert total <= MAX_BYTES
    assert kept == len(texts) or total + len(texts[-kept - 1].encode()) > MAX_BYTES
    user = replace(GOOD, history=history)
    assert len(user.to_bytes()) <= MAX_BYTES + 4 * 100 + 32 + 16
    assert User.from_bytes(user.to_bytes()).history == history


def test_learning_spoils_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()
    for rule, slope in ((LearningRule("adagrad", 0.1), 1e30), (LearningRule("sgd", FASTEST), 3e38)):
        learner = Learner(run, rule)
        user = learner.new()
        before = user.to_bytes()

        def steep(vectors: Floats, *_: object, slope: float = slope) -> tuple[object, Floats]:
            return np.zeros(len(vectors)), np.full_like(vectors, slope)

        monkeypatch.setattr(learner, "gradients", steep)
        with pytest.raises(UserError, match=r"nothing can be learned of 'abc' by .* not finite\); the user stays"):
            learner.learn([user], ["abc"])
        assert user.to_bytes() == before
        assert Completer(run).complete("a", user)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"optimiser": "sgd", "rate": NaN}', "rate is nan; it must be a number from 0 to 1e+09"),
        ('{"optimiser": "sgd", "rate": -0.1}', "rate is -0.1"),
        ('{"optimiser": "sgd", "rate": 1' + "0" * 400 + "}", "rate is 1000"),
        ('{"optimiser": "sgd", "rate": true}', "rate is True"),
        ('{"optimiser": "sgd", "rate": "0.1"}', "rate is '0.1'"),
        ('{"optimiser": ["sgd"]}', "unknown online optimiser"),
        ('{"reach": NaN}', "the online reach is nan; it must be at least 0"),
        ('{"pace": 1}', "not a rule"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(content: str, message: str, tmp_path: Path) -> None:
    run = make()
    run.folder = tmp_path
    (tmp_path / "online.json").write_text('{"format": 1, ' + content[1:])
    with pytest.raises(UserError) as error:
        Learner(run)
    assert message in str(error.value)
    assert str(tmp_path / "online.json") in str(error.value)
    assert "\n" not in str(error.value)
