"""Which texts are the same, which characters look alike, and lower case that does not depend on where a text ends."""

import unicodedata

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from factorcell.data.text_folds import lower_case, same_prefix, same_text, screening, with_final_sigma

# Characters that show nothing: joiners, marks of direction, fillers, controls, invisible operators, tags, selectors.
INVISIBLE = (
    "\u200b\u200c\u200d\u200e\u200f\u00ad\ufeff\u2060\u2061\u2064\u061c\u202a\u202e\u2066\u2069\u034f\u115f\u1160"
    "\u3164\uffa0\u180b\u180e\ufe00\ufe0e\ufe0f\ufff9\ufffb\x00\x07\x7f\x9f\U000e0041\U000e007f"
)
# Characters that show nothing or only a line, without the property of an invisible character.
UNSEEN = (
    "\ufffc\u2d7f\U0001107f\U00016fe4\U0001d159\U00013430\U0001343f\u0305\u0320\u0331\u0332\u0333\u033f\u0347"
    "\u035e\u035f\u1ab6\ufe26\ufe2d"
)
# Texts in which an invisible character changes what a reader sees.
MEANINGFUL = {
    "emoji of a profession": "so proud 👩🏽\u200d🚀 today",
    "emoji of a couple": "👩\u200d❤\ufe0f\u200d👨",
    "emoji presentation": "we ❤\ufe0f bread",
    "keycap": "press 1\ufe0f\u20e3",
    "flag of Scotland": "go 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f go",
    "Persian": "می\u200cخواهم",
    "Persian with a vowel sign": "میِ\u200cخواهم",
    "Hindi half form": "क्\u200dष",
    "Hindi without a ligature": "क्\u200cष",
    "Bengali": "র\u200d্যাব",
    "Sinhala": "ශ්\u200dරී ලංකා",
    "Malayalam": "അവന്\u200d",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ\u180eᠠ",
    "Khmer vowel after a register shifter": "ស៊\u200cី ប៉\u200cា",
    "Khmer register shifter": "ស\u200c៊ី",
    "Persian abbreviation": "۱۴۰۰ ه\u200d.ش",
    "Arabic abbreviation at the end": "عام ١٤٤٥ ه\u200d",
    "text presentation": "☺\ufe0e ❤\ufe0e ⌚\ufe0e",
    "variant of a Han character": "葛\U000e0100城 辻\U000e0101",
}
ANY_TEXT = st.text(
    st.one_of(
        st.sampled_from(
            [
                *INVISIBLE,
                *UNSEEN,
                *"".join(MEANINGFUL.values()),
                *" \t\n\u00a0\u2009\u202faAiIıİjJßΣςσ\u0300\u0301\u0307\u030c\u0323é4。į🇩🅔ḏǟ\U000e0100\ufe0e",
            ]
        ),
        st.characters(),
        st.characters(categories=["Mn", "Cf"]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("character", INVISIBLE, ids=ascii)
def test_texts_that_differ_only_in_invisible_characters_are_the_same(character: str) -> None:
    for text in ("password", "crème brûlée", "слово", "日本語", "1 or 2", "中文"):
        variants = [text[:at] + character * count + text[at:] for at in range(len(text) + 1) for count in (1, 3)]
        for form in (same_text, same_prefix, screening):
            assert {form(variant) for variant in variants} == {text}
    assert same_text(f"e{character}\u0301") == "é"
    assert same_prefix(f"new {character}") == same_prefix(f"new{character} ") == "new "
    assert same_text(character) == same_prefix(character) == screening(character) == ""


@pytest.mark.parametrize("character", UNSEEN, ids=ascii)
def test_screening_ignores_characters_that_show_nothing_or_a_line(character: str) -> None:
    for text in ("password", "4111 1111", "слово", "日本語"):
        for at in range(1, len(text) + 1):
            assert screening(text[:at] + character + text[at:]) == text


@pytest.mark.parametrize("text", MEANINGFUL.values(), ids=MEANINGFUL)
def test_invisible_characters_with_a_meaning_remain(text: str) -> None:
    text = unicodedata.normalize("NFC", text)
    assert same_text(text) == text
    positions = [at for at, character in enumerate(text) if regex.match(r"[\p{DI}]", character)]
    assert positions
    for at in positions:
        assert screening(text) == screening(text[:at] + text[at + 1 :])
    if "\U000e007f" not in text:  # repeated, or next to other invisible characters, they mean the same
        for at in positions:
            for variant in (text[at] * 2, f"\u200e{text[at]}\u200b", f"{text[at]}\u200b{text[at]}"):
                assert same_text(text[:at] + variant + text[at + 1 :]) == text


@given(ANY_TEXT)
@example("☝\ufe0f\u200d🏽")
@example("i\u0307\u0307\u0301")
@example("ⅠI\u0307\u0323\u0307")
@example("❤\u200d\ufe0f🔥")
@example("\u0301\u0300\u180e\u094d\u200d\u012f")
@example("🇮\u0307")
@example("4\u0301。c")
@example("d\u0331\u0301\u0307")
def test_folds_do_not_change_their_result(text: str) -> None:
    for form in (same_text, same_prefix, lower_case, screening, lambda value: screening(value, ignore_case=True)):
        assert form(form(text)) == form(text)
    assert unicodedata.is_normalized("NFC", same_text(text))


def test_selectors_without_a_meaning_are_removed() -> None:
    plain = "a葛ء☺1سلام ស្រី"
    for variant in (
        "a\ufe0e葛ء☺1سلام ស្រី",
        "a\U000e0100葛ء☺1سلام ស្រី",
        "a葛\ufe0eء☺1\ufe0eسلام ស្រី",
        "a\u200d葛ء☺\U000e01001\u200cسلام ស្រី",
    ):
        assert same_text(variant) == same_text(plain)


@given(ANY_TEXT)
def test_screening_equates_the_same_texts(text: str) -> None:
    for ignore_case in (False, True):
        forms = {screening(variant, ignore_case=ignore_case) for variant in (text, same_text(text))}
        assert len(forms) == 1


@given(ANY_TEXT, st.integers(0, 12))
def test_a_prefix_has_the_form_with_which_its_texts_begin(text: str, length: int) -> None:
    clusters = regex.findall(r"\X", text)
    prefix = "".join(clusters[:length])
    rest = "".join(clusters[length:])
    if prefix and rest and not regex.match(r"[\p{M}\p{Cf}\p{DI}\p{Emoji_Modifier}]", rest):
        form = same_prefix(prefix)
        assert same_text(f"{prefix}{rest}").startswith((form, form.removesuffix(" ")))
    assert same_prefix(prefix).rstrip() == same_text(prefix)


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "4111–1111‑1111−1111": "4111-1111-1111-1111",
        "４１１１－１１１１": "4111-1111",
        "𝟒𝟏𝟏𝟏 ④①①① ⁴¹¹¹ ➃➀➀➀ ⒋⒈⒈⒈": "4111 4111 4111 4111 4111",
        "٤١١١ ۴۱۱۱ ४१११ ৪১১১": "4111 4111 4111 4111",
        "4\ufe0f\u20e31\ufe0f\u20e3": "41",
        "a\u2009\u00a0b\tc\u2800d": "a b c d",
        "ann＠example．com ann﹫example。com": "ann@example.com ann@example.com",
        "今日は。明日": "今日は。明日",
        "l’idiot l‘idiot lʼidiot l＇idiot l′idiot": "l'idiot " * 4 + "l'idiot",
        "“a” „b“ «c»": '"a" "b" "c"',
        "𝐩𝐚𝐬𝐬ｗｏｒｄ Pass\u0336w\u0336ord": "password Password",
        "ラーメン": "ラーメン",
        "½ 1½": "½ 1½",
        "مـــحـــمَّد": "محمد",
        "שָׁלוֹם": "שלום",
        "أحمد évil": "أحمد évil",
        "PİN pın": "PIN pin",
        "p\u0332i\u0332n\u0332 4\u03328\u0301\u03242\u0305\u03051\u0308": "pin 4821",
        "ḏ ẖ ṯ d\u0323\u0331 é\u0331 ā": "d h t ḍ é ā",
        "🅟🅘🅝 🅿🅸🅽 🄿🄸🄽 Ⓟⓘⓝ p🅰ss": "PIN PIN PIN Pin pAss",
        "🇵🇮🇳 🇨\u200b🇴\u200b🇩\u200b🇪 b🇦d": "PIN CODE bAd",
        "bad🇩🇪 0🇩🇪🇫🇷 e\u0301🇩🇪": "bad🇩🇪 0🇩🇪🇫🇷 é🇩🇪",  # flags next to a word
        "aːb∶c꞉d˸e։f׃g⁚h：i︰j": "a:b:c:d:e:f:g:h:i:j",
        "ᠮ\u202fᠢ": "ᠮ ᠢ",
    }.items(),
)
def test_characters_that_look_alike_have_one_form(text: str, expected: str) -> None:
    assert screening(text) == expected
    assert screening(unicodedata.normalize("NFD", text)) == expected
    assert screening(text, ignore_case=True) == expected.casefold()


SCRIPTS = {
    "Greek": "οδος ερμου και σοφος",
    "Greek with accents": "ὁδὸς τῆς ᾠδῆς",
    "Turkish": "istanbul ve izmir",
    "Turkish capital with a dot": "İstanbul İZMİR",
    "German": "schöne grüße",
    "Russian": "улица ёлка",
    "Armenian": "փողոց",
    "Georgian": "ქუჩა",
    "Czech with a decomposed letter": "j\u030caro ẖa",
    "Latin": "straight on",
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_lower_case_does_not_depend_on_where_a_text_ends(text: str) -> None:
    clusters = regex.findall(r"\X", text)
    whole = lower_case(text)
    for length in range(len(clusters) + 1):
        prefix = "".join(clusters[:length])
        assert whole.startswith(lower_case(prefix))
        if lower_case(prefix.upper().lower()) == lower_case(prefix):  # not ß, whose capital is SS
            assert lower_case(prefix.upper()) == lower_case(prefix)
    assert with_final_sigma(lower_case("ΟΔΟΣ ΤΗΣ ΣΟΦΟΎΣ. Σ ΟΣ\u0301")) == "οδος της σοφούς. σ ος\u0301"
    assert with_final_sigma(lower_case("2kσ 5σ k\u0302σ дσ ῥῆσ")) == "2kσ 5σ k\u0302σ дσ ῥῆς"
    assert lower_case("ΟΔΟΣ") == lower_case("οδοσ") == lower_case("οδος")
    assert lower_case("İSTANBUL") == lower_case("ISTANBUL") == "istanbul"
