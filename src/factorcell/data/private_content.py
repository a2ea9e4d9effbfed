"""Recognition of private content: secrets, bank data, e-mail addresses and phone numbers in texts that users type.

    find_private_content("my password is hunter2")      # "a password"

Such texts are neither learned online nor suggested. The rules (assets/private_content.toml) are heuristics; when in
doubt, they withhold a text. `docs/results/privacy.md` lists how often they miss a secret, and how often they withhold
an ordinary text.

A secret may be announced, in five languages, by a phrase of a name of a secret, a link and a value. The link decides
which values count as secrets:

    link               password and the like                  PIN and the like       token, API key and the like
    : or =             every value                            4 characters, a digit  4 characters, a digit
    is, ist, est, ...  every value that continues no          4 to 12 digits         6 characters, letters and digits
                       sentence, unlike "wrong" or "stored"
    none               letters and digits, or 4 to 12 digits  4 to 12 digits         8 characters, letters and digits

A CVV may have 3 digits, and after the French "mot de passe" a value needs no link.
"""

import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from itertools import accumulate
from typing import Any, TypeAlias

import regex

from factorcell.data.text_folds import HANGUL, UNSPACED, character_ranges, screening
from factorcell.options import limits

Match: TypeAlias = "regex.Match[str]"

CARD_DIGITS = range(13, 20)
PHONE_DIGITS = range(8, 16)  # maximum of ITU-T E.164
IBAN_LENGTHS = range(15, 35)  # ISO 13616
MIN_IBAN_DIGITS = 8  # every country has more; words after two letters and two digits have fewer
MIN_KEY_LENGTH = 16  # characters of a random word
COMMON_PUNCTUATION = set("'’-.,:;()[]/\"?&#_")  # common in ordinary text, and therefore not a sign of a password

_TABLES = tomllib.loads((resources.files("factorcell") / "assets" / "private_content.toml").read_text("utf-8"))
_PARTS = {"unspaced": UNSPACED, "hangul": HANGUL}


def _expand(pattern: str | list[str], parts: Mapping[str, str] = _PARTS) -> str:
    """Return a pattern of the tables in which each {name} is replaced by a part; a list becomes its alternatives."""
    alternatives = pattern if isinstance(pattern, str) else f"(?:{'|'.join(pattern)})"
    return str(regex.sub(r"\{([a-z_]+)\}", lambda match: parts[match[1]], alternatives))


for _name, _part in _TABLES["parts"].items():
    _PARTS[_name] = _expand(_part)
ORDINARY_WORDS = frozenset(_TABLES["words"]["ordinary"].split())
ORDINARY_ENDINGS = tuple(_TABLES["words"]["ordinary_endings"])
PATTERNS = {name: regex.compile(_expand(pattern), regex.IGNORECASE) for name, pattern in _TABLES["patterns"].items()}


def tables() -> dict[str, Any]:
    """Return the rules with whole patterns, for another program; its patterns have {unspaced} and {hangul}."""
    names = {**_PARTS, "unspaced": "{unspaced}", "hangul": "{hangul}"}
    for name, part in _TABLES["parts"].items():
        names[name] = _expand(part, names)
    rules = [
        {key: _expand(rule[key], names) if key in ("hint", "pattern") else rule[key] for key in rule}
        for rule in _TABLES["rules"]
    ]
    patterns = {name: _expand(pattern, names) for name, pattern in _TABLES["patterns"].items()}
    ranges = {name: character_ranges(f"[{_PARTS[name]}]") for name in ("unspaced", "hangul")}
    words = {"ordinary": sorted(ORDINARY_WORDS), "ordinary_endings": ORDINARY_ENDINGS}
    return {"rules": rules, "patterns": patterns, "ranges": ranges, "words": words}


def find_private_content(text: str, context: Mapping[str, Any] | None = None) -> str | None:
    """Return what a text or its context seems to contain, such as "a password"; None if neither seems to be private.

    Args:
        text: The text of a user.
        context: Column -> value. The values that are texts, bytes or containers of them are searched.
    """
    return next(filter(None, map(_find_in_text, (text, *texts_in([*(context or {}).values()])))), None)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts of a value: itself, if it is text or bytes, or those in a mapping, a list or the like."""
    value = limits.plain(value.as_py() if hasattr(value, "as_py") else value)  # `as_py`: a scalar of Arrow
    if isinstance(value, (bytes, bytearray)):
        yield value.decode(errors="replace")
    elif isinstance(value, str):
        yield value
    elif isinstance(value, Iterable):
        for item in [*value, *value.values()] if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def is_public(text: str) -> bool:
    """Return whether a text seems to contain no private content, so that it may be suggested."""
    return _find_in_text(text) is None


def _find_in_text(text: str) -> str | None:
    text = screening(text)
    lowercase, digit_count = text.lower(), sum(map(str.isdigit, text))
    for label, min_digits, hint, pattern, is_private in RULES:
        if digit_count >= min_digits and hint.search(lowercase) and any(map(is_private, pattern.finditer(text))):
            return label
    return None


def _is_iban(match: Match) -> bool:
    """Return whether an IBAN begins here, written without separators or in groups of four characters."""
    groups = PATTERNS["separator"].split(match[1])
    for count, group in enumerate(groups, 1):
        has_valid_form = len(group) <= 4 or count == 1
        if has_valid_form and _has_check_digits("".join(groups[:count])):
            return True
        if len(group) != 4:  # only the last group may be shorter
            break
    return False


def _has_check_digits(candidate: str) -> bool:
    """Return whether letters and digits, without separators, have the check digits of ISO 7064 (MOD 97-10)."""
    if len(candidate) not in IBAN_LENGTHS or sum(map(str.isdigit, candidate)) < MIN_IBAN_DIGITS:
        return False
    digits = "".join(str(int(letter, 36)) for letter in candidate[4:] + candidate[:4])
    return int(digits) % 97 == 1


def _has_card_number(match: Match) -> bool:
    """Return whether consecutive groups of digits form a number that passes the Luhn check and is not a time."""
    groups = regex.findall("[0-9]+", match[0])
    return any(
        len(digits) in CARD_DIGITS and _passes_luhn(digits) and not PATTERNS["time"].fullmatch(digits)
        for start in range(len(groups))
        for digits in accumulate(groups[start : start + CARD_DIGITS[-1] // 3])  # a group has 3 digits or more
    )


def _passes_luhn(digits: str) -> bool:
    """Return whether digits pass the Luhn check of ISO/IEC 7812-1 and are not all equal."""
    # Every second digit from the right is doubled, and a product of two digits counts as the sum of these digits.
    products = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return len(set(digits)) > 1 and sum(product // 10 + product % 10 for product in products) % 10 == 0


def _is_phone_number(match: Match) -> bool:
    """Return whether the number has the length of a phone number and is not a date."""
    return sum(map(str.isdigit, match[0])) in PHONE_DIGITS and not PATTERNS["date"].search(match[0])


def _is_secret(match: Match) -> bool:
    """Return whether the value of a phrase counts as a secret, by the table at the head of this module."""
    if match["pass"]:
        return True
    value = match["value"].rstrip(".,;:!?")
    min_length = 3 if (match["pin"] or "").lower().startswith("cv") else 4  # a CVV may have 3 digits
    if match["colon"]:
        return bool(match["password"]) or (len(value) >= min_length and any(map(str.isdigit, value)))
    has_verb = match["verb"] is not None
    if match["password"]:
        # French writes no link: "mot de passe soleil".
        may_be_word = has_verb or match["password"].lower().startswith("mot")
        return _resembles_code(value, 4) or (may_be_word and not _continues_sentence(value))
    if match["pin"]:
        if not has_verb and match["pin"].lower() == "code":  # as in "Summer of Code 2012"
            return False
        return value.isdigit() and min_length <= len(value) <= 12
    return _resembles_code(value, 6 if has_verb else 8) and not value.isdigit()


def _is_reversed_secret(match: Match) -> bool:
    """Return whether the value before "is my password" counts as a secret."""
    value = match["value"].lstrip("\"'“‘„«(").rstrip("\"'”’“»),")
    return _resembles_code(value, 4) or (bool(match["password"]) and not _continues_sentence(value))


def _resembles_code(value: str, min_length: int) -> bool:
    """Return whether a value has letters and digits, or 4 to 12 digits."""
    if value.isdigit():
        return 4 <= len(value) <= 12
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return len(value) >= min_length and has_both and PATTERNS["technical_word"].fullmatch(value) is None


def _continues_sentence(value: str) -> bool:
    """Return whether a word is an ordinary continuation of "the password is"."""
    word = value.lower()
    is_ordinary = word in ORDINARY_WORDS or (word.isalpha() and word.endswith(ORDINARY_ENDINGS))
    return is_ordinary or not any(map(str.isalnum, word))


def _resembles_password(match: Match) -> bool:
    """Return whether a word has letters in both cases, a digit, and a character that is rare in ordinary text."""
    word = match[0]
    if "://" in word or not _is_mixed(word) or not any(map(str.isdigit, word)):  # words with :// are URLs
        return False
    others = (letter for letter in word if not letter.isalnum() and letter not in COMMON_PUNCTUATION)
    # The marks of a letter, such as Thai vowels, are a part of it.
    return any(letter.isprintable() and not unicodedata.category(letter).startswith("M") for letter in others)


def _is_mixed(word: str) -> bool:
    """Return whether a word has letters in both cases."""
    return any(map(str.islower, word)) and any(map(str.isupper, word))


def _is_random(match: Match) -> bool:
    """Return whether letters and digits alternate as in random words, unlike in identifiers and UUIDs."""
    word = PATTERNS["uuid"].sub("", match[0])
    if len(word) < MIN_KEY_LENGTH:
        return False
    # Changes between letters and digits: at least 4, and at least 0.18 per character
    if len(PATTERNS["change"].findall(word)) >= max(4, 0.18 * len(word)):
        return True
    part = max(regex.split("[-_]", word), key=len)
    has_form = part.isalnum() and _is_mixed(part) and len(part) >= MIN_KEY_LENGTH
    # Runs, such as Ab, cde, XYZ and 12, are short.
    return has_form and len(part) <= 2.5 * len(PATTERNS["run"].findall(part))


CHECKS: dict[str, Callable[[Match], bool]] = {
    "iban": _is_iban,
    "card number": _has_card_number,
    "random word": _is_random,
    "phrase": _is_secret,
    "reversed phrase": _is_reversed_secret,
    "mixed word": _resembles_password,
    "phone number": _is_phone_number,
}


# For each rule: its label, the minimum number of digits, a hint, a pattern, and a condition of its matches. `re` finds
# hints quickly; every suggestion of a search is checked.
RULES: list[tuple[str, int, "re.Pattern[str]", "regex.Pattern[str]", Callable[[Match], bool]]] = [
    (
        rule["label"],
        rule.get("min_digits", 0),
        re.compile(_expand(rule.get("hint", ""))),
        regex.compile(_expand(rule["pattern"]), regex.IGNORECASE),
        CHECKS[rule["check"]] if "check" in rule else bool,
    )
    for rule in _TABLES["rules"]
]
