"""Folds of texts: functions whose results are equal for texts that count as equal.

    same_text(" bread  and  butter ")          # "bread and butter"
    screening("４１１１–１１１１")                 # "4111-1111"
    screening("L’Idiot", ignore_case=True)     # "l'idiot"

`same_text` decides which texts are the same when they are stored, learned, counted, suggested or forgotten. Its result
looks like the text. `screening` also equates characters that look alike; it serves only to search for private content
and for blocked phrases. `lower_case` is the lower case of tokenizers. All folds are idempotent.
"""

import unicodedata

import regex

_INVISIBLE = (
    r"[[\p{Default_Ignorable_Code_Point}\p{Cc}[\p{Cf}--\p{Prepended_Concatenation_Mark}--\p{Script=Egyptian_Hieroglyphs}]]"
    r"--[\s\x1c-\x1f]]"
)
# Invisible characters that change what a reader sees between certain characters: joiners, and the selectors of the
# text or emoji presentation, of Han characters and of Mongolian. The tags of a flag are the other ones.
_SELECTIVE = (
    r"[\p{Join_Control}\uFE0E\uFE0F\U000E0100-\U000E01EF[\p{Default_Ignorable_Code_Point}&&\p{Script=Mongolian}]]"
)
_SHIFTER = r"\p{Indic_Syllabic_Category=Register_Shifter}"  # of Khmer
_FLAG = r"\N{WAVING BLACK FLAG}[\U000E0030-\U000E0039\U000E0061-\U000E007A]{3,6}\U000E007F"  # of England, for example
_MEANINGFUL = (
    r"(?<=\p{Extended_Pictographic}\p{Grapheme_Cluster_Break=Extend}{0,4})\u200D(?=\p{Extended_Pictographic})",  # 👩‍🚀
    r"(?<=[\p{Emoji}--\p{Emoji_Presentation}--\p{ASCII}])\uFE0F|(?<=[0-9#*])\uFE0F(?=\u20E3)",  # an emoji, not a symbol
    r"(?<=[\p{Emoji}--\p{ASCII}])\uFE0E|(?<=\p{Unified_Ideograph})[\U000E0100-\U000E01EF]",
    # Between letters of Arabic and other scripts that would join (RFC 5892, appendix A.1), as in Persian words
    r"(?<=[\p{Joining_Type=D}\p{Joining_Type=L}]\p{Joining_Type=T}{0,4})\u200C"
    r"(?=\p{Joining_Type=T}{0,4}[\p{Joining_Type=D}\p{Joining_Type=R}])",
    r"(?<=\u0647\p{Joining_Type=T}{0,4})\u200D(?![\p{L}\p{M}])",  # heh as an abbreviation, unlike the digit 5
    rf"(?<={_SHIFTER})\u200C(?=\p{{M}})|(?<=[\p{{Script=Khmer}}&&[\p{{L}}\p{{M}}]])\u200C(?={_SHIFTER})",
    # Next to a virama, whose class is 9: the form of the letters of Indic scripts
    r"(?<=\p{Canonical_Combining_Class=9})(?:\u200D|\u200C(?=\p{L}))|(?<=\p{L})\u200D(?=\p{Canonical_Combining_Class=9})",
    r"(?<=[\p{Script=Mongolian}--\p{Default_Ignorable_Code_Point}])"
    r"[\p{Default_Ignorable_Code_Point}&&\p{Script=Mongolian}]",
)
_ANY_INVISIBLE = regex.compile(_INVISIBLE, regex.V1)
# `same_text` removes these in this order, so that each remaining character is next to visible ones.
_MEANINGLESS = regex.compile(rf"({_FLAG})|[{_INVISIBLE}--{_SELECTIVE}]++", regex.V1)
_REPEATED = regex.compile(r"(?<=\p{Join_Control})\p{Join_Control}++|(?<=\uFE0F)\uFE0F++")
_STRAY = regex.compile(rf"(?!{'|'.join(_MEANINGFUL)}){_SELECTIVE}", regex.V1)

_SUFFIX_SPACE = (
    r"(?<=[\p{Script=Mongolian}&&[\p{L}\p{Default_Ignorable_Code_Point}]])\u202F"  # joins a suffix to a word
)
_SPACES = regex.compile(rf"(?:(?!{_SUFFIX_SPACE}(?=[\p{{Script=Mongolian}}&&\p{{L}}]))[\s\x1c-\x1f])++", regex.V1)
_FINAL_SUFFIX_SPACE = regex.compile(rf"{_SUFFIX_SPACE}\Z", regex.V1)

# Characters that `screening` removes: also enclosing and overlaid marks, lines above and below, vowel signs of Arabic
# and Hebrew, tatweel, and symbols that show nothing
_LINES = r"\u0305\u0320\u0331-\u0333\u033F\u0347\u035E\u035F\u1AB6\uFE24-\uFE26\uFE2B-\uFE2D"
_EMPTY_SYMBOLS = (
    r"\N{OBJECT REPLACEMENT CHARACTER}\N{MUSICAL SYMBOL NULL NOTEHEAD}\N{KHITAN SMALL SCRIPT FILLER}"
    r"\N{TIFINAGH CONSONANT JOINER}\N{BRAHMI NUMBER JOINER}[\p{Cf}&&\p{Script=Egyptian_Hieroglyphs}]"
)
_UNSEEN = regex.compile(
    rf"[{_INVISIBLE}{_LINES}{_EMPTY_SYMBOLS}"
    r"\p{Me}\p{Canonical_Combining_Class=1}[\p{Joining_Type=C}--\p{Join_Control}]"
    r"[\p{Mn}&&[\p{Script_Extensions=Arabic}\p{Script_Extensions=Hebrew}]--\p{Script_Extensions=Latin}]]",
    regex.V1,
)
_LINE = regex.compile(f"[{_LINES}]")
_SYMBOL_LETTER = regex.compile("LATIN (?:CAPITAL|SMALL) LETTER ([A-Z])$")  # the end of the name of 🅐, for example
# Regional indicators that are letters: each flag has two of them, and a flag next to a word is not a part of the word
_REGIONAL_LETTERS = regex.compile(
    r"(?<!\p{RI})\p{RI}(?:\p{RI}{2})*+(?!\p{RI})|(?<![\p{L}\p{M}\p{N}\p{RI}])\p{RI}++(?![\p{L}\p{M}\p{N}])"
)
_REGIONAL_A = ord("\N{REGIONAL INDICATOR SYMBOL LETTER A}")
_DIGIT_MARKS = regex.compile(r"(?<=[0-9])\p{M}++")
# Patterns of characters, and the form of such a character; the first pattern that matches decides.
_FORMS = [
    (_UNSEEN, ""),
    (regex.compile(r"[\p{Dash}\N{HYPHEN BULLET}\N{MODIFIER LETTER MINUS SIGN}\N{HEAVY MINUS SIGN}]"), "-"),
    (regex.compile(r"\N{BRAILLE PATTERN BLANK}"), " "),
    (regex.compile("[ː˸։׃܃܄᛬᠄⁚∶⦂꞉︰]"), ":"),
    (regex.compile("[‘’‚‛‹›´ʹʻʼʽˈ′‵՚׳Ꞌꞌ＇]"), "'"),
    (regex.compile(r"[\p{Quotation_Mark}--\p{ASCII}]", regex.V1), '"'),
]
MAX_CACHED_FORMS = 20_000  # the forms of further characters are computed each time, which limits memory
_FRACTION = regex.compile(r"\p{Decomposition_Type=Fraction}")
# Also a pattern of the library `tokenizers`, whose lookbehinds contain no repetition
FINAL_SIGMA = regex.compile(r"(?<=\p{Greek}|\p{Greek}\p{M}|\p{Greek}\p{M}\p{M})σ(?!\p{M}*\p{L})")
_DOTS_OF_I = regex.compile("(?<=[iI])\u0307+")
# Scripts without spaces between words: those of the Unicode line breaking classes ID and SA (UAX #14), and those of
# Java and Bali.
UNSPACED_SCRIPTS = (
    *("Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Nushu", "Tangut"),
    *("Thai", "Lao", "Khmer", "Myanmar", "Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet", "Ahom"),
    *("Javanese", "Balinese"),
)
# The last two characters belong to several scripts.
UNSPACED = "".join(rf"\p{{Script={script}}}" for script in UNSPACED_SCRIPTS) + "〆ー"
HANGUL = r"\p{Script=Hangul}"
_IDEOGRAPHIC_STOP = regex.compile("(?<=[A-Za-z0-9])。(?=[A-Za-z0-9])")  # as a dot of a domain (UTS #46)


def same_text(text: str) -> str:
    """Return the form that is equal for the same texts: in NFC, without invisible characters and extra white space.

    Invisible characters that change what a reader sees remain, such as the joiners of emoji and of words in Persian or
    Hindi. Each run of white space becomes one space, and there is no white space at the ends. The narrow space before
    a Mongolian suffix remains.
    """
    return _with_single_spaces(_visible(text))


def same_prefix(text: str) -> str:
    """Return the same form for the beginning of a text, with a final space if `text` ends in white space.

    A final space means that the last word is complete: "new " begins "new york" but not "newton".
    """
    visible = _visible(text)
    form = _with_single_spaces(visible)
    if not form or not visible[-1].isspace():
        return form
    return form + ("\u202f" if _FINAL_SUFFIX_SPACE.search(visible) else " ")


def screening(text: str, *, ignore_case: bool = False) -> str:
    """Return a form that is equal for texts that look alike, for the search for private content and blocked phrases.

    Digits of all scripts, letters in other widths and styles, dashes, colons, quotation marks and apostrophes have one
    form. Invisible characters, lines above and below letters, marks on digits, vowel signs of Arabic and Hebrew,
    tatweel, the dot of İ and extra white space are removed.

    Args:
        text: The text.
        ignore_case: Whether upper and lower case have the same form.
    """
    if text.isascii() and text.isprintable():
        return " ".join((text.casefold() if ignore_case else text).split())
    form = unicodedata.normalize("NFC", text).translate(_LOOK_ALIKES)
    form = _REGIONAL_LETTERS.sub(
        lambda match: "".join(chr(ord(letter) - _REGIONAL_A + ord("A")) for letter in match[0]), form
    )
    form = _DIGIT_MARKS.sub("", _without_dots_of_i(form))
    form = " ".join(_IDEOGRAPHIC_STOP.sub(".", form).split())
    return unicodedata.normalize("NFC", form.casefold()) if ignore_case else form


def lower_case(text: str) -> str:
    """Return `text` in NFC and lower case, such that the form of a prefix begins the form of each of its texts.

    Sigma is always σ, because a prefix does not show whether its last letter ends a word, and İ is i.
    """
    if text.isascii():
        return text.lower()
    return _without_dots_of_i(unicodedata.normalize("NFC", text).lower().replace("ς", "σ"))


def with_final_sigma(text: str) -> str:
    """Return a text in which each σ after a Greek letter at the end of a word is ς; `lower_case` has only σ."""
    return str(FINAL_SIGMA.sub("ς", text))


class _LookAlikes(dict[int, str]):
    """The form of each character in `screening`, computed when it is first needed; a table for `str.translate`."""

    def __missing__(self, code_point: int) -> str:
        form = self._form(chr(code_point))
        if len(self) < MAX_CACHED_FORMS:
            self[code_point] = form
        return form

    def _form(self, character: str) -> str:
        for pattern, form in (*_FORMS, (_FRACTION, character)):
            if pattern.match(character):
                return form
        plain = _LINE.sub("", unicodedata.normalize("NFD", character))
        form = str(unicodedata.digit(character, unicodedata.normalize("NFKC", plain)))
        if unicodedata.category(character) == "So" and (letter := _SYMBOL_LETTER.search(unicodedata.name(character))):
            form = letter[1].lower() if "SMALL" in unicodedata.name(character) else letter[1]
        return form if form == character else form.translate(self)


_LOOK_ALIKES = _LookAlikes({ord("ı"): "i"})


def _visible(text: str) -> str:
    """Return a text in NFC without meaningless invisible characters."""
    if text.isascii() and text.isprintable():
        return text
    form = unicodedata.normalize("NFC", text)
    if not _ANY_INVISIBLE.search(form):
        return form
    text = ""
    while form != text:  # without invisible characters, marks can change places, and others become meaningless
        text = form
        form = unicodedata.normalize("NFC", _MEANINGLESS.sub(lambda match: match[1] or "", text))
        form = unicodedata.normalize("NFC", _STRAY.sub("", _REPEATED.sub("", form)))
    return form


def _with_single_spaces(text: str) -> str:
    """Return a text with one space for each run of white space, and none at its ends; suffixes of Mongolian stay."""
    if "\u202f" not in text:
        return " ".join(text.split())
    return " ".join(filter(None, _SPACES.split(text)))


def _without_dots_of_i(text: str) -> str:
    """Return a text in NFC, with i and I in place of these letters with a dot above."""
    text = unicodedata.normalize("NFC", text)
    if "\u0307" not in text and "İ" not in text:
        return text
    return unicodedata.normalize("NFC", _DOTS_OF_I.sub("", unicodedata.normalize("NFD", text)))
