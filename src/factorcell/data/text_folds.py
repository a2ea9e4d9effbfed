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
# Invisible characters that change what a reader sees between certain characters: joiners, the selector of the emoji
# presentation, and the selectors of Mongolian. The tags of a flag are the other ones.
_SELECTIVE = r"[\p{Join_Control}\uFE0F[\p{Default_Ignorable_Code_Point}&&\p{Script=Mongolian}]]"
_FLAG = r"\N{WAVING BLACK FLAG}[\U000E0030-\U000E0039\U000E0061-\U000E007A]{3,6}\U000E007F"  # of England, for example
_MEANINGFUL = (
    r"(?<=\p{Extended_Pictographic}\p{Grapheme_Cluster_Break=Extend}{0,4})\u200D(?=\p{Extended_Pictographic})",  # 👩‍🚀
    r"(?<=[\p{Emoji}--\p{Emoji_Presentation}--\p{ASCII}])\uFE0F|(?<=[0-9#*])\uFE0F(?=\u20E3)",  # an emoji, not a symbol
    # Between letters of Arabic and other scripts that would join (RFC 5892, appendix A.1), as in Persian words
    r"(?<=[\p{Joining_Type=D}\p{Joining_Type=L}]\p{Joining_Type=T}{0,4})\u200C"
    r"(?=\p{Joining_Type=T}{0,4}[\p{Joining_Type=D}\p{Joining_Type=R}])",
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

# Characters that `screening` removes: also enclosing and overlaid marks, vowel signs of Arabic and Hebrew, and tatweel
_UNSEEN = regex.compile(
    rf"[{_INVISIBLE}\p{{Me}}\p{{Canonical_Combining_Class=1}}[\p{{Joining_Type=C}}--\p{{Join_Control}}]"
    r"[\p{Mn}&&[\p{Script_Extensions=Arabic}\p{Script_Extensions=Hebrew}]--\p{Script_Extensions=Latin}]]",
    regex.V1,
)
_APOSTROPHE = regex.compile("[‘’‚‛‹›´ʹʻʼʽˈ′‵՚׳ꞌ＇]")
_QUOTATION_MARK = regex.compile(r"[\p{Quotation_Mark}--\p{ASCII}]", regex.V1)
_DASH = regex.compile(r"[\p{Dash}\N{HYPHEN BULLET}\N{MODIFIER LETTER MINUS SIGN}\N{HEAVY MINUS SIGN}]", regex.V1)
MAX_CACHED_FORMS = 20_000  # the forms of further characters are computed each time, which limits memory
_BLANK = regex.compile(r"\N{BRAILLE PATTERN BLANK}")
_FRACTION = regex.compile(r"\p{Decomposition_Type=Fraction}")
# Also a pattern of the library `tokenizers`, whose lookbehinds contain no repetition
FINAL_SIGMA = regex.compile(r"(?<=\p{Greek}|\p{Greek}\p{M}|\p{Greek}\p{M}\p{M})σ(?!\p{M}*\p{L})")
_DOTS_OF_I = regex.compile("(?<=[iI])\u0307+")
_IDEOGRAPHIC_STOP = regex.compile("(?<=[A-Za-z0-9])。(?=[A-Za-z0-9])")  # as a dot of a domain (UTS #46)


def same_text(text: str) -> str:
    """Return the form that is equal for the same texts: in NFC, without invisible characters and extra white space.

    Invisible characters that change what a reader sees remain, such as the joiners of emoji and of words in Persian or
    Hindi. Each run of white space becomes one space, and there is no white space at the ends.
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

    Digits of all scripts, letters in other widths and styles, dashes, quotation marks and apostrophes have one form.
    Invisible characters, vowel signs of Arabic and Hebrew, tatweel, the dot of İ and extra white space are removed.

    Args:
        text: The text.
        ignore_case: Whether upper and lower case have the same form.
    """
    if text.isascii() and text.isprintable():
        return " ".join((text.casefold() if ignore_case else text).split())
    form = unicodedata.normalize("NFC", text).translate(_FOLDED_LOOK_ALIKES if ignore_case else _LOOK_ALIKES)
    return " ".join(_IDEOGRAPHIC_STOP.sub(".", _without_dots_of_i(form)).split())


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

    def __init__(self, ignore_case: bool) -> None:
        super().__init__({ord("ı"): "i"})
        self.ignore_case = ignore_case

    def __missing__(self, code_point: int) -> str:
        form = self._form(chr(code_point))
        if len(self) < MAX_CACHED_FORMS:
            self[code_point] = form
        return form

    def _form(self, character: str) -> str:
        if _UNSEEN.match(character):
            return ""
        for pattern, form in (
            (_DASH, "-"),
            (_BLANK, " "),
            (_APOSTROPHE, "'"),
            (_QUOTATION_MARK, '"'),
            (_FRACTION, character),
        ):
            if pattern.match(character):
                return form
        form = str(unicodedata.digit(character, unicodedata.normalize("NFKC", character)))
        if self.ignore_case:
            form = form.casefold()
        return form if form == character else form.translate(self)


_LOOK_ALIKES, _FOLDED_LOOK_ALIKES = _LookAlikes(ignore_case=False), _LookAlikes(ignore_case=True)


def _visible(text: str) -> str:
    """Return a text in NFC without meaningless invisible characters."""
    if text.isascii() and text.isprintable():
        return text
    text = unicodedata.normalize("NFC", text)
    if not _ANY_INVISIBLE.search(text):
        return text
    remaining = _REPEATED.sub("", _MEANINGLESS.sub(lambda match: match[1] or "", text))
    return unicodedata.normalize("NFC", _STRAY.sub("", remaining))


def _without_dots_of_i(text: str) -> str:
    """Return a text in NFC, with i and I in place of these letters with a dot above."""
    text = unicodedata.normalize("NFC", text)
    if "\u0307" not in text and "İ" not in text:
        return text
    return unicodedata.normalize("NFC", _DOTS_OF_I.sub("", unicodedata.normalize("NFD", text)))
