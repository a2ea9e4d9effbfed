"""Escaping of hidden and controlling characters; ordinary text of all scripts is unchanged."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.io.output import HIDDEN, escape_hidden, escape_hidden_json, escape_hidden_lines
from tests.hostile_texts import BIDIRECTIONAL

READABLE = [
    "plain, with punctuation: 3.50 €!",
    "Grüße, naïve café, e\u0301te\u0301, A\u030angstro\u0308m",
    "Привет, мир",
    "γειά σου Κόσμε",
    "שלום עולם",
    "السلام عليكم",
    "می\u200cخواهم",  # Persian separates syllables by a non-joiner
    "क्\u200dष और क्\u200cष",
    "ශ්\u200dරී ලංකා",
    "ক্\u200dষ",
    "สวัสดีชาวโลก",
    "日本語、한국어、中文",
    "ᠮᠣᠩᠭᠣᠯ",
    "🙂 👍🏽 🇳🇴",
    "👩\u200d👩\u200d👧\u200d👦 👨🏽\u200d🚀 🏳️\u200d🌈 ❤️\u200d🔥 🤷🏻\u200d♀️",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",  # the flag of Scotland
    "\u00a0 \u2003 ␛ ¶ \\x1b",
]


@pytest.mark.parametrize("text", READABLE)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert escape_hidden(text) == escape_hidden_lines(text) == escape_hidden_json(text) == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\x1b[2J", r"a\x1b[2J"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J\x90q", r"\x9b2J\x90q"),
        ("one\ntwo\r\n\tthree", r"one\ntwo\r\n\tthree"),
        ("\x00\x08\x7f\x85", r"\x00\x08\x7f\x85"),
        ("a\u2028b\u2029", r"a\u2028b\u2029"),
        ("exe\u202egnp", r"exe\u202egnp"),
        ("\u200e\u200f\u061c\u2066\u2069", r"\u200e\u200f\u061c\u2066\u2069"),
        ("ad\u200bmin\ufeff\u2060\xad", r"ad\u200bmin\ufeff\u2060\xad"),
        ("ad\u200dmin \u200c.", r"ad\u200dmin \u200c."),
        ("👩\u200d\u200d👧", "👩\u200d\\u200d👧"),
        ("日\u200d本", r"日\u200d本"),
        ("a\u3164\u115f\uffa0", r"a\u3164\u115f\uffa0"),
        ("x\U000e0041\U000e0042", r"x\U000e0041\U000e0042"),
        ("\ud800 \udfff", r"\ud800 \udfff"),
    ],
)
def test_hidden_and_controlling_characters_are_escaped(text: str, escaped: str) -> None:
    assert escape_hidden(text) == escaped


# Any text, with rare characters more often.
HOSTILE = st.text(st.characters() | st.sampled_from("\x1b\x9b\n\t\r\u202e\u200d\u200c\ufeff\ud800\U000e0041🏴👩क"))


@given(HOSTILE)
def test_escaped_text_contains_no_hidden_or_controlling_character(text: str) -> None:
    escaped = escape_hidden(text)
    assert not [character for character in escaped if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")]
    assert not set(escaped) & BIDIRECTIONAL
    assert not HIDDEN.search(escaped)
    assert len(escaped.splitlines()) <= 1
    assert escape_hidden(escaped) == escaped
    escaped.encode()
    assert escape_hidden_lines(text).translate({10: r"\n", 9: r"\t"}) == escaped


@given(HOSTILE, HOSTILE)
def test_a_prefix_is_escaped_independently_of_the_rest(prefix: str, text: str) -> None:
    assert escape_hidden(prefix + text).startswith(escape_hidden(prefix))


@given(
    st.recursive(HOSTILE | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(HOSTILE, inner))
)
def test_escaped_json_has_the_same_value(value: object) -> None:
    line = escape_hidden_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == json.loads(json.dumps(value))
    assert not HIDDEN.search(line)
    line.encode()
