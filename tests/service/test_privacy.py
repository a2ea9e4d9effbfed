"""Which texts are withheld, how many are saved, and how durations are written."""

import time
from typing import Any

import pytest

from factorcell.errors import UserError
from factorcell.service.privacy import MAX_USER_BYTES, Privacy, parse_duration
from factorcell.service.record import StoredText

WITHHELD = {
    "an e-mail address": [
        "ann@example.org",
        "write to <Ann.Lee+x@mail.example.co.uk> now",
        "ä@müller.de",
        "mailto:a@b.io",
    ],
    "a card number": [
        "4111111111111111",
        "pay 4111 1111 1111 1111 today",
        "4111-1111-1111-1111 123",
        "12345 4111 1111 1111 1111",
        "378282246310005",
        "6304.0000.0000.0000.000",
        "٤١١١١١١١١١١١١١١١",
    ],
    "a password": [
        "password: hunter2",
        "Passwort = geheim",
        "mot de passe soleil",
        "pwd=x",
        "Tr0ub4dor$3",
        "my login Summer2024! works",
        "token=abc123def",
        "API key: 9f8e7d6c",
        "mot de passe :  soleil",
        "my password is hunter2",
    ],
    "a key": [
        "-----BEGIN RSA PRIVATE KEY-----",
        "ghp_" + "a1B2" * 9,
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
        "jwt=eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
        "aZ3kP9qL2mN8vB4xC7tR",
    ],
    "an IBAN": ["DE89 3704 0044 0532 0130 00"],
    "a phone number": ["call +49 30 1234567"],
    "a withheld pattern": ["project Zeus plans", "zeus"],
}
PLAIN = [
    "how to bake bread",
    "",
    "forgot my password",
    "password reset page",
    "pinterest",
    "Fix #1234: token handling",
    "token: handle expiry",
    "@ann thanks",
    "meet @ 5.30 pm",
    "iPhone 15 Pro Max",
    "4111111111111112",
    "0000 0000 0000 0000",
    "2024-11-22 10:15:00",
    "https://Example.org/A1b2?x=%20",
    "C++20",
    "src/Main_v2.java",
    "1234567890 1234567890 1234567890",
    "Don't-2nite(Again)",
    "donaudampfschifffahrtsgesellschaft",
    "\x00\n\t \u202e",
]
RULES = Privacy(withheld_patterns=("(?i)zeus",))


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in WITHHELD.items() for text in texts])
def test_secrets_are_withheld(reason: str, text: str) -> None:
    assert RULES.withhold_reason(text) == reason
    assert RULES.withhold_reason("bread", {"city": "Oslo", "place": text, "stars": 4111111111111111}) == reason


@pytest.mark.parametrize("text", PLAIN, ids=ascii)
def test_ordinary_texts_are_not_withheld(text: str) -> None:
    assert RULES.withhold_reason(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "a" * 65_536,
        "@" * 65_536,
        "a@" * 32_768,
        "1" * 65_536,
        "1 " * 32_768,
        "41111 " * 10_000,
        "pass " * 13_000,
        "pin:" * 16_384,
        "token" + " " * 65_000,
        "password:" + " " * 65_000,
        "mot de passe" + " " * 65_000,
        "eyJ-" * 16_384,
        "eyJaaaaaaaa." * 5_000,
        "-----BEGIN " + "A " * 32_000,
        "sk-xoxb-ghp_" * 5_000,
        "AB12 " * 13_000,
        "+49 " * 16_384,
        "password for " * 5_000,
        "password is a " * 5_000,
        "a1" * 32_768,
    ],
    ids=lambda text: text[:12],
)
def test_search_for_secrets_is_fast_in_any_text(text: str) -> None:
    start = time.process_time()
    RULES.withhold_reason(text)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("text", ["Zeus", "ze\u200bus", "Ｚｅｕｓ", "𝐳𝐞𝐮𝐬", "z\u00ade\u0336us"])
def test_patterns_match_characters_that_look_alike(text: str) -> None:
    assert RULES.withhold_reason(f"project {text}") == "a withheld pattern"
    assert RULES.withhold_reason("project", {"name": text, "stars": 5}) == "a withheld pattern"
    assert Privacy(withheld_patterns=("№ ?[0-9]+",)).withhold_reason("№ 5") == "a withheld pattern"
    assert RULES.withhold_reason("zeüs") is None


def test_text_is_withheld_if_a_pattern_takes_too_long() -> None:
    start = time.perf_counter()
    assert Privacy(withheld_patterns=("(a|aa)+$",)).withhold_reason("a" * 60 + "b") == "a withheld pattern"
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    "values",
    [
        {"withheld_patterns": ("(",)},
        {"withheld_patterns": ("",)},
        {"withheld_patterns": ("x*",)},
        {"max_texts": 0},
        {"retention": 0},
    ],
)
def test_invalid_rules_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"not a regular expression|does not match the empty text|at least 1 text"):
        Privacy(**values)


def test_newest_texts_within_the_limits_are_saved() -> None:
    texts = tuple(StoredText(number, "é" * 10, number) for number in range(10))
    assert Privacy(max_texts=3).newest(texts) == texts[-3:]
    assert Privacy().newest(texts) == texts
    assert [text for text in texts if not Privacy(retention=5).is_expired(text, 10)] == [*texts[5:]]
    assert not any(Privacy().is_expired(text, 10**9) for text in texts)
    large = tuple(StoredText(number, "é" * (MAX_USER_BYTES // 8), 0) for number in range(10))
    assert Privacy().newest(large) == large[-4:]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90d", 7_776_000), ("12h", 43_200), ("30m", 1800), ("1s", 1), ("2w", 1_209_600)]
)
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "90", "-1d", "1.5d", "0d", "1y", "٣d", "1" * 20 + "d", " 1d"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="such as 90d"):
        parse_duration(text)
