"""Folds of texts: functions whose results are equal for texts that count as equal.

    same_text(" bread  and  butter ")          # "bread and butter"
    screening("４１１１–１１１１")                 # "4111-1111"
    screening("L’Idiot", ignore_case=True)     # "l'idiot"

`clean_text` and `clean_prefix` check texts that users type: Unicode text of at most `MAX_BYTES` bytes, maybe empty.
`same_text` decides which texts are the same when they are stored, learned, counted, suggested or forgotten. Its result
looks like the text. `screening` also equates characters that look alike; it serves only to search for private content
and for blocked phrases. `lower_case` is the lower case of tokenizers. All folds are idempotent.
"""

import unicodedata
from functools import lru_cache
from typing import Any

import regex

from factorcell.errors import UserError
from factorcell.io.output import JOINERS, TAGS

MAX_BYTES = 1 << 16  # bytes in UTF-8 of one text, and of all texts of a history in total
MAX_SHOWN = 50  # maximum number of characters of a text that an error message quotes
_INVISIBLE = (
    r"[[\p{Default_Ignorable_Code_Point}\p{Cc}[\p{Cf}--\p{Prepended_Concatenation_Mark}--\p{Script=Egyptian_Hieroglyphs}]]"
    r"--[\s\x1c-\x1f]]"
)
# Invisible characters that can change what a reader sees: joiners, tags of flags, and selectors of variants
_SELECTIVE = r"[\p{Join_Control}\uFE0E\uFE0F\u180B-\u180F\U000E0020-\U000E007F\U000E0100-\U000E01EF]"
_ANY_INVISIBLE = regex.compile(_INVISIBLE, regex.V1)
_MEANINGLESS = regex.compile(rf"[{_INVISIBLE}--{_SELECTIVE}]++", regex.V1)
# Selective characters that change nothing, because they do not follow an emoji or a letter of a script with such ones
_STRAY = regex.compile(
    rf"{JOINERS}|{TAGS}|(?!(?<=[\p{{Emoji}}--\p{{ASCII}}])|(?<=[0-9#*])\uFE0F++\u20E3)[\uFE0E\uFE0F]"
    r"|(?<!\p{Unified_Ideograph})[\U000E0100-\U000E01EF]|(?<![\p{Script=Mongolian}--\p{DI}])[\u180B-\u180F]",
    regex.V1,
)

# Characters that `screening` removes: also enclosing and overlaid marks, lines above and below, vowel signs of Arabic
# and Hebrew, tatweel, and symbols that show nothing
_LINES = r"\u0305\u0320\u0331-\u0333\u033F\u0347\u035E\u035F\u1AB6\uFE24-\uFE26\uFE2B-\uFE2D"
_EMPTY_SYMBOLS = (
    r"\N{OBJECT REPLACEMENT CHARACTER}\N{MUSICAL SYMBOL NULL NOTEHEAD}\N{KHITAN SMALL SCRIPT FILLER}"
    r"\N{TIFINAGH CONSONANT JOINER}\N{BRAHMI NUMBER JOINER}[\p{Cf}&&\p{Script=Egyptian_Hieroglyphs}]"
)
_UNSEEN = (
    rf"[{_INVISIBLE}{_LINES}{_EMPTY_SYMBOLS}"
    r"\p{Me}\p{Canonical_Combining_Class=1}[\p{Joining_Type=C}--\p{Join_Control}]"
    r"[\p{Mn}&&[\p{Script_Extensions=Arabic}\p{Script_Extensions=Hebrew}]--\p{Script_Extensions=Latin}]]"
)
_LINE = regex.compile(f"[{_LINES}]")
_SYMBOL_LETTER = regex.compile("LATIN (?:CAPITAL|SMALL) LETTER ([A-Z])$")  # the end of the name of 🅐, for example
# Regional indicators that are letters: each flag has two of them, and a flag next to a word is not a part of the word
_REGIONAL_LETTERS = regex.compile(
    r"(?<!\p{RI})\p{RI}(?:\p{RI}{2})*+(?!\p{RI})|(?<![\p{L}\p{M}\p{N}\p{RI}])\p{RI}++(?![\p{L}\p{M}\p{N}])"
)
_DIGIT_MARKS = regex.compile(r"(?<=[0-9])\p{M}++")
# Patterns of characters, and the form of such a character; the first pattern that matches decides.
_FORMS = [
    (regex.compile(pattern, regex.V1), form)
    for pattern, form in (
        (_UNSEEN, ""),
        (r"[\p{Dash}\N{HYPHEN BULLET}\N{MODIFIER LETTER MINUS SIGN}\N{HEAVY MINUS SIGN}]", "-"),
        (r"\N{BRAILLE PATTERN BLANK}", " "),
        ("[ː˸։׃܃܄᛬᠄⁚∶⦂꞉︰]", ":"),
        ("[‘’‚‛‹›´ʹʻʼʽˈ′‵՚׳Ꞌꞌ＇]", "'"),
        ("ı", "i"),
        (r"[\p{Quotation_Mark}--\p{ASCII}]", '"'),
    )
]
_FINAL_SIGMA = regex.compile(r"(?<=\p{Greek}\p{M}{0,2})σ(?!\p{M}*\p{L})")
_DOTS_OF_I = regex.compile("(?<=[iI])\u0307+")
# Letters of scripts without spaces between words; the last two characters belong to several scripts.
UNSPACED = (
    r"\p{Line_Break=Complex_Context}\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Nushu}\p{Tangut}"
    r"\p{Javanese}\p{Balinese}〆ー"
)
HANGUL = r"\p{Hangul}"
_IDEOGRAPHIC_STOP = regex.compile("(?<=[A-Za-z0-9])。(?=[A-Za-z0-9])")  # as a dot of a domain (UTS #46)


def same_text(text: str) -> str:
    """Return the form that is equal for the same texts: in NFC, without invisible characters and extra white space.

    Invisible characters that can change what a reader sees remain, such as the joiners of emoji and of words in Persian
    or Hindi. Each run of white space becomes one space, and there is no white space at the ends.
    """
    return " ".join(_visible(text).split())


def same_prefix(text: str) -> str:
    """Return the same form for the beginning of a text, with a final space if `text` ends in white space.

    A final space means that the last word is complete: "new " begins "new york" but not "newton".
    """
    visible = _visible(text)
    form = " ".join(visible.split())
    return f"{form} " if form and visible[-1].isspace() else form


def screening(text: str, *, ignore_case: bool = False) -> str:
    """Return a form that is equal for texts that look alike, for the search for private content and blocked phrases.

    Digits of all scripts, letters in other widths and styles, dashes, colons, quotation marks and apostrophes have one
    form, and so have both cases with `ignore_case`. Invisible characters, lines above and below letters, marks on
    digits, vowel signs of Arabic and Hebrew, tatweel, the dot of İ and extra white space are removed.
    """
    if text.isascii() and text.isprintable():
        return " ".join((text.casefold() if ignore_case else text).split())
    form = "".join(map(_look_alike, unicodedata.normalize("NFC", text)))
    form = _REGIONAL_LETTERS.sub(lambda match: "".join(unicodedata.name(letter)[-1] for letter in match[0]), form)
    form = _DIGIT_MARKS.sub("", _without_dots_of_i(form))
    form = " ".join(_IDEOGRAPHIC_STOP.sub(".", form).split())
    return unicodedata.normalize("NFC", form.casefold()) if ignore_case else form


def character_ranges(pattern: str) -> list[tuple[int, int]]:
    """Return the first and the last code point of each range of characters that match a class of characters."""
    matches = regex.finditer(f"{pattern}+", _all_characters(), regex.V1)
    return [(ord(match[0][0]), ord(match[0][-1])) for match in matches]


def tables() -> dict[str, Any]:
    """Return the tables with which another program computes `same_text` and `screening`.

    `meaningless` and `unseen` are ranges of removed characters, `forms` has the form of each other character that
    `screening` changes, and `case` what it makes of a character without case.
    """
    characters = _all_characters()
    special = {c for c in characters if unicodedata.decomposition(c) or unicodedata.digit(c, None) is not None}
    special.update(c for c in characters if unicodedata.category(c) == "So")
    for pattern, _ in _FORMS[1:]:
        special.update(pattern.findall(characters))
    forms = ((character, _look_alike(character)) for character in sorted(special))
    folded = ((character, character.casefold()) for character in characters)
    return {
        "meaningless": character_ranges(f"[{_INVISIBLE}--{_SELECTIVE}]"),
        "unseen": character_ranges(_UNSEEN),
        "forms": {character: form for character, form in forms if form not in ("", character)},
        "case": {character: form for character, form in folded if form != character},
    }


def _all_characters() -> str:
    return "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))  # without surrogates


def lower_case(text: str) -> str:
    """Return `text` in NFC and lower case, such that the form of a prefix begins the form of each of its texts.

    Sigma is always σ, because a prefix does not show whether its last letter ends a word, and İ is i.
    """
    if text.isascii():
        return text.lower()
    return _without_dots_of_i(unicodedata.normalize("NFC", text).lower().replace("ς", "σ"))


def with_final_sigma(text: str) -> str:
    """Return a text in which each σ after a Greek letter at the end of a word is ς; `lower_case` has only σ."""
    return str(_FINAL_SIGMA.sub("ς", text))


@lru_cache(maxsize=20_000)
def _look_alike(character: str) -> str:
    """Return the form of a character in `screening`."""
    for pattern, form in _FORMS:
        if pattern.match(character):
            return form
    if unicodedata.decomposition(character).startswith("<fraction>"):  # ½ is not 1/2, as in 1½
        return character
    plain = _LINE.sub("", unicodedata.normalize("NFD", character))
    form = str(unicodedata.digit(character, unicodedata.normalize("NFKC", plain)))
    if unicodedata.category(character) == "So" and (letter := _SYMBOL_LETTER.search(unicodedata.name(character))):
        form = letter[1].lower() if "SMALL" in unicodedata.name(character) else letter[1]
    return form if form == character else "".join(map(_look_alike, form))


def _visible(text: str) -> str:
    """Return a text in NFC without meaningless invisible characters."""
    if text.isascii() and text.isprintable():
        return text
    form = unicodedata.normalize("NFC", text)
    if not _ANY_INVISIBLE.search(form):
        return form
    form = unicodedata.normalize("NFC", _MEANINGLESS.sub("", form))
    while (shorter := _STRAY.sub("", form)) != form:  # marks can change places without the stray characters
        form = unicodedata.normalize("NFC", shorter)
    return form


def _without_dots_of_i(text: str) -> str:
    """Return a text in NFC, with i and I in place of these letters with a dot above."""
    text = unicodedata.normalize("NFC", text)
    if "\u0307" not in text and "İ" not in text:
        return text
    return unicodedata.normalize("NFC", _DOTS_OF_I.sub("", unicodedata.normalize("NFD", text)))


def check_text(text: str, label: str = "text") -> str:
    """Return `text`; raise a `UserError` that calls it `label` if it is not Unicode text or is too long."""
    if not isinstance(text, str):
        raise UserError(f"{label} {text!r:.{MAX_SHOWN}}: not a text")
    if len(text) > MAX_BYTES or byte_length(text, label) > MAX_BYTES:
        raise UserError(
            f"{label} {text[:MAX_SHOWN]!a}...: {len(text):,} characters; a text may have at most {MAX_BYTES:,} bytes"
        )
    return text


def is_valid_text(text: Any) -> bool:
    """Return whether `check_text` accepts a text."""
    try:
        check_text(text)
    except UserError:
        return False
    return True


def clean_text(text: str, label: str = "text") -> str:
    """Return the canonical form of a whole text; raise the `UserError` of `check_text` for an invalid text."""
    return same_text(check_text(text, label))


def clean_prefix(text: str, label: str = "prefix") -> str:
    """Return the canonical form of a typed prefix; raise the `UserError` of `check_text` for an invalid prefix."""
    return same_prefix(check_text(text, label))


def byte_length(text: str, label: str = "text") -> int:
    """Return the number of bytes of a text in UTF-8; raise a `UserError` if it is not Unicode text."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(f"{label} {text[:MAX_SHOWN]!a}: not Unicode text (character {error.start + 1})") from None
