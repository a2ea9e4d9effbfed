"""Recognition of private content: secrets, bank data, e-mail addresses and phone numbers in texts that users type.

    find_private_content("my password is hunter2")      # "a password"

Such texts are neither learned online nor suggested. The recognizers are heuristics; when in doubt, they withhold a
text. `docs/results/privacy.md` lists how often they miss a secret, and how often they withhold an ordinary text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import regex

from factorcell.data.secret_phrases import has_secret
from factorcell.data.text_folds import HANGUL, UNSPACED, screening
from factorcell.options import limits

MIN_CARD_DIGITS, MAX_CARD_DIGITS = 13, 19  # minimum and maximum length of a card number
MIN_PHONE_DIGITS, MAX_PHONE_DIGITS = 8, 15  # maximum of ITU-T E.164
MIN_IBAN_LENGTH, MAX_IBAN_LENGTH = 15, 34  # ISO 13616
IBAN_GROUP_LENGTH = 4  # characters of a group of a printed IBAN
MIN_IBAN_DIGITS = 8  # every country has more; words after two letters and two digits have fewer
MIN_PASSWORD_LENGTH = 8  # of a word that is recognized by its characters alone
MIN_KEY_LENGTH = 16  # characters of a random word
# Changes between letters and digits in a random word: their minimum, and their minimum per character.
MIN_CHANGES, MIN_CHANGE_SHARE = 4, 0.18
MAX_RUN_LENGTH = 2.5  # maximum mean length of the parts of a random word, such as Ab, cde, XYZ and 12
COMMON_PUNCTUATION = set("'’-.,:;()[]/\"?&#_")  # common in ordinary text, and therefore not a sign of a password

# Repetitions are possessive or bounded; therefore the search takes milliseconds even in the longest text.
_EMAIL = regex.compile(r"(?<=[^\s@<>()\[\]{},;:`'\"])@[^\s@<>()\[\]{},;:`'\"/]+\.\p{L}[^\s@<>()\[\]{},;:`'\"/]")
SEPARATORS = r" ._/⁄∕|~·•\-"
SEPARATOR = f"[{SEPARATORS}]{{1,3}}"  # between the groups of a number, such as " - "
_DIGITS = regex.compile(rf"\d{{3,}}(?:{SEPARATOR}\d{{3,}})*")  # groups of digits, as on payment cards
_IBAN_START = regex.compile(
    rf"(?<![^\W_])[a-z]{{2}}[0-9]{{2}}[a-z0-9{SEPARATORS}]{{11,60}}", regex.IGNORECASE | regex.ASCII
)
# Letters and digits that must not touch a phone number: not those of scripts that attach words to each other
_WORD = rf"[\w--[{UNSPACED}{HANGUL}]]"
_GAP = rf"[{SEPARATORS}()]{{0,4}}"
# Each alternative begins with a lookahead, because the lookbehinds take longer.
_PHONE = regex.compile(
    rf"(?=[+0])(?<!\+|{_WORD})(?:\+|00(?=[1-9]))\d(?:{_GAP}\d){{6,14}}+(?!{_WORD})"  # with the code of a country
    rf"|(?=[(0])(?<![.,:/+\-]|{_WORD})\(?0[1-9]\d{{0,4}}\)?"  # with the 0 of a national number
    rf"(?:[{SEPARATORS}]{{0,3}}\d){{5,12}}+(?!{_WORD}|%|[.,:]\d)"
    rf"|(?=[(1-9])(?<![.,:/+\-]|{_WORD})(?:1[ .·•\-])?"  # North America
    rf"(?:\([2-9]\d\d\)[ .·•\-]?\d{{3}}[ .·•\-]|[2-9]\d\d([ .·•\-])\d{{3}}\1)\d{{4}}(?!{_WORD}|[.,:\-]\d)"
    rf"|(?=[cfhmptw])(?<!{_WORD})"
    r"(?:tel|telefon|telefonnummer|telephone|téléphone|teléfono|phone|phone number|(?:call|text) me (?:at|on)"
    r"|handy|handynummer|mobil|mobile|mobilnummer|móvil|portable|cell|whatsapp|fax|tlf|mob)\b\W{0,3}"
    rf"(?:(?:is|ist|est|es|er|number|no|nr)\b\W{{0,3}}){{0,2}}\d(?:{_GAP}\d){{6,14}}+(?!{_WORD})",
    regex.IGNORECASE | regex.V1,
)
_TIME = regex.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])[0-2]\d[0-5]\d[0-5]\d\d{0,3}")  # 20240131235959
_DATE = regex.compile(
    r"(?<!\d)(?:\d{1,2}[ ./-]\d{1,2}[ ./-](?:19|20)\d\d|(?:19|20)\d\d[ ./-]\d{1,2}[ ./-]\d{1,2})(?!\d)"
)
_KEY_FORMAT = regex.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\."  # a JSON web token
    r"|\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|sk[-_][\w-]{20,}|[rp]k_live_\w{16,}"
    r"|xox[abprs]-[\w-]{11,}|AIza[\w-]{30,})"
    r"|://[^\s/:@]{1,100}:[^\s/@]{1,100}@",  # a URL with a password
    regex.IGNORECASE,
)
_KEY_WORD = regex.compile(rf"[A-Za-z0-9+/_=-]{{{MIN_KEY_LENGTH},}}+")
_RUN = regex.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")  # as in identifiers: parseHTTP2Request is parse, HTTP, 2, Request
_CHANGE = regex.compile(r"(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_UUID = regex.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", regex.IGNORECASE)


def find_private_content(text: str, context: Mapping[str, Any] | None = None) -> str | None:
    """Return what a text or its context seems to contain, such as "a password"; None if neither seems to be private.

    Args:
        text: The text of a user.
        context: Column -> value. The values that are texts, bytes or containers of them are searched.
    """
    return next(filter(None, map(_find_in_text, (text, *context_texts(context or {})))), None)


def context_texts(context: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of a context that are texts or bytes, also those in lists, sets, arrays and other containers."""
    for value in context.values():
        yield from _texts_in(value)


def _texts_in(value: Any) -> Iterator[str]:
    value = limits.plain(value.as_py() if hasattr(value, "as_py") else value)  # `as_py`: a scalar of Arrow
    if isinstance(value, (bytes, bytearray)):
        yield value.decode(errors="replace")
    elif isinstance(value, str):
        yield value
    elif isinstance(value, Iterable):
        for item in [*value, *value.values()] if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


def is_public(text: str) -> bool:
    """Return whether a text seems to contain no private content, so that it may be suggested."""
    return _find_in_text(text) is None


def _find_in_text(text: str) -> str | None:
    text = screening(text)
    digit_count = sum(map(str.isdigit, text))
    for label, min_digits, is_in in RECOGNIZERS:
        if digit_count >= min_digits and is_in(text):
            return label
    return None


def has_email(text: str) -> bool:
    return "@" in text and _EMAIL.search(text) is not None


def has_iban(text: str) -> bool:
    """Return whether a text has an IBAN, written without separators or in groups of four characters."""
    for match in _IBAN_START.finditer(text, overlapped=True):
        groups = regex.split(SEPARATOR, match.group())
        for count, group in enumerate(groups, 1):
            has_valid_form = len(group) <= IBAN_GROUP_LENGTH or count == 1
            if has_valid_form and _is_iban("".join(groups[:count])):
                return True
            if len(group) != IBAN_GROUP_LENGTH:  # only the last group may be shorter
                break
    return False


def has_card_number(text: str) -> bool:
    """Return whether consecutive groups of digits form a number that passes the Luhn check and is not a time."""
    for match in _DIGITS.finditer(text):
        groups = regex.findall(r"\d+", match.group())
        for start in range(len(groups)):
            digits = ""
            for group in groups[start:]:
                digits += group
                if len(digits) > MAX_CARD_DIGITS:
                    break
                if len(digits) >= MIN_CARD_DIGITS and _passes_luhn(digits) and not _TIME.fullmatch(digits):
                    return True
    return False


def has_phone_number(text: str) -> bool:
    """Return whether a text has a phone number; dates do not count.

    It begins with + or 0, is grouped as in North America, or follows a word such as phone.
    """
    for match in _PHONE.finditer(text):
        count = sum(map(str.isdigit, match.group()))
        if MIN_PHONE_DIGITS <= count <= MAX_PHONE_DIGITS and not _DATE.search(match.group()):
            return True
    return False


def has_password(text: str) -> bool:
    """Return whether a text has a word whose characters are those of a password."""
    return any(map(_resembles_password, text.split()))


def has_key(text: str) -> bool:
    """Return whether a text has a word in the format of a known kind of key, or a word of random characters."""
    if max(map(len, text.split()), default=0) < MIN_KEY_LENGTH and "PRIVATE KEY" not in text:
        return False
    return _KEY_FORMAT.search(text) is not None or any(map(_is_random, _KEY_WORD.findall(text)))


# For each kind of private content: its label, the minimum number of digits in the text, and the function that finds
# it. The first match determines the label. A text without digits passes within microseconds, because every suggestion
# of a search is checked.
RECOGNIZERS: tuple[tuple[str, int, Callable[[str], bool]], ...] = (
    ("an e-mail address", 0, has_email),
    ("an IBAN", MIN_IBAN_DIGITS, has_iban),
    ("a card number", MIN_CARD_DIGITS, has_card_number),
    ("a key", 0, has_key),
    ("a password", 0, has_secret),
    ("a password", 1, has_password),
    ("a phone number", MIN_PHONE_DIGITS, has_phone_number),
)


def _is_iban(candidate: str) -> bool:
    """Return whether letters and digits, without separators, have the check digits of ISO 7064 (MOD 97-10)."""
    is_long_enough = MIN_IBAN_LENGTH <= len(candidate) <= MAX_IBAN_LENGTH
    if not is_long_enough or sum(map(str.isdigit, candidate)) < MIN_IBAN_DIGITS:
        return False
    digits = "".join(str(int(letter, 36)) for letter in candidate[4:] + candidate[:4])
    return int(digits) % 97 == 1


def _passes_luhn(digits: str) -> bool:
    """Return whether digits pass the Luhn check of ISO/IEC 7812-1 and are not all equal."""
    # Every second digit from the right is doubled, and a product of two digits counts as the sum of these digits.
    products = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    checksum = sum(product // 10 + product % 10 for product in products)
    return len(set(digits)) > 1 and checksum % 10 == 0


def _resembles_password(word: str) -> bool:
    """Return whether a word has letters in both cases, a digit, and a character that is rare in ordinary text."""
    if len(word) < MIN_PASSWORD_LENGTH or "://" in word:  # words with :// are URLs
        return False
    is_mixed = any(map(str.islower, word)) and any(map(str.isupper, word)) and any(map(str.isdigit, word))
    return is_mixed and any(
        letter.isprintable() and not letter.isalnum() and letter not in COMMON_PUNCTUATION for letter in word
    )


def _is_random(word: str) -> bool:
    """Return whether letters and digits alternate as in random words, such as API keys, and not as in identifiers.

    A UUID alone is not a secret: most of them are identifiers.
    """
    word = _UUID.sub("", word)
    if len(word) < MIN_KEY_LENGTH:
        return False
    if sum(1 for _ in _CHANGE.finditer(word)) >= max(MIN_CHANGES, MIN_CHANGE_SHARE * len(word)):
        return True
    part = max(regex.split("[-_]", word), key=len)
    is_mixed = part.isalnum() and any(map(str.islower, part)) and any(map(str.isupper, part))
    return is_mixed and len(part) >= MIN_KEY_LENGTH and len(part) <= MAX_RUN_LENGTH * len(_RUN.findall(part))
