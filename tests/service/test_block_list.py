"""Phrases that are never suggested, and lists of suggestions that stay full without them."""

from pathlib import Path

import pytest

from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from factorcell.service.privacy import BlockList
from factorcell.service.stores.store import open_store

LIST = BlockList(["Bad word", "  evil ", "", "straße", "c++", "*"])


@pytest.mark.parametrize(
    "text",
    [
        "bad word",
        "a BAD  Word!",
        "ｂａｄ word",
        "(evil)",
        "STRASSE",
        "learn c++ now",
        "a * b",
        "bad\u00a0word",
        "bad\nword",
    ],
)
def test_phrases_match_in_any_spelling(text: str) -> None:
    assert not LIST(text)


@pytest.mark.parametrize("text", ["", "bad", "bad words", "medieval", "badword", "a bad, word", "c+", "strassen"])
def test_other_texts_are_allowed(text: str) -> None:
    assert LIST(text)
    assert BlockList([])(text)


# For each script: a phrase, texts that contain it as a word or within unspaced text, and texts that do not.
SCRIPTS: dict[str, tuple[str, list[str], list[str]]] = {
    "Chinese": ("坏话", ["坏话", "这是坏话吗", "abc坏话123", "坏话。"], ["坏 话", "坏", "话坏"]),
    "Japanese": ("バカ", ["このバカめ", "ﾊﾞｶです", "ハ\u3099カ"], ["ハカ", "バ", "カバ"]),
    "Japanese long vowel": ("ラー", ["ラーメン", "カラー"], ["ラ", "ラメ"]),
    "Thai": ("เลว", ["คนเลวมาก", "เลว"], ["เล", "เลว\u0e48"]),
    "Lao": ("ຊົ່ວ", ["ຄົນຊົ່ວຫຼາຍ"], ["ຊົ່"]),
    "Khmer": ("អាក្រក់", ["មនុស្សអាក្រក់ណាស់", "មនុស្ស\u200bអាក្រក់"], ["អាក្រ"]),
    "Burmese": ("စာ", ["ကစာတ"], ["စား"]),  # a following vowel or tone mark belongs to the last character
    "Korean": ("욕설", ["욕설", "이 욕설이다", "3욕설을", "bad욕설"], ["쌍욕설", "욕"]),
    "Latin next to others": ("bad", ["这是bad吗", "bad이다", "한bad", "คนbadมาก"], ["badé", "ñbad", "badж", "3bad"]),
    "Cyrillic": ("плохо", ["очень ПЛОХО!"], ["плохой", "неплохо"]),
    "Greek": ("κακος", ["ο ΚΑΚΟΣ", "κακοσ"], ["κακοση"]),
    "Arabic": ("سيئ", ["هذا سيئ جدا"], ["سيئة"]),
    "Arabic with tatweel or vowel signs": ("محمد", ["مـحـمـد", "مُحَمَّد", "هو مُحَمَّدٌ"], ["محمدي", "أحمد"]),
    "listed with vowel signs": ("مُحَمَّد", ["محمد"], ["محمدي"]),
    "Hebrew with points": ("שלום", ["שָׁלוֹם", "שלום!"], ["שלומי"]),
    "Turkish without a dot": ("ısır", ["ISIR", "ısır", "Isır", "isir"], ["ısırma"]),
    "Turkish with a dot": ("istanbul", ["İSTANBUL", "ISTANBUL", "i\u0307stanbul"], ["istanbullu"]),
    "apostrophes": ("l'idiot", [f"a L{mark}idiot" for mark in "'’‘‛ʼ＇′"], ["lidiot", "l idiot"]),
    "dashes": ("co-ed", [f"a Co{mark}ed" for mark in "‐‑‒–—−－﹣"], ["coed", "co ed"]),
    "quotation marks": ('a "b" c', ["a “b” c", "a „b“ c", "a «b» c"], ["a b c"]),
    "digits": ("7 of 9", ["７ of ９", "٧ of ٩", "𝟕 of ⑨"], ["7 of 91"]),
    "enclosing marks": ("bad", ["b\u20dda\u20ddd\u20dd", "b\u0336a\u0336d\u0336"], ["b\u0301ad"]),
    "lines": ("bad", ["b\u0332a\u0332d\u0332", "b\u0305a\u0331d"], ["b\u0301ad", "bādly"]),
    "symbols of letters": ("bad", ["🅱🅰🅳", "🅑🅐🅓", "🇧🇦🇩", "b🅰d"], ["🅱🅰🅳🅳"]),
    "flags next to a word": ("bad", ["bad🇩🇪", "🇩🇪bad🇩🇪🇫🇷", "🇩🇪 bad"], ["badly🇩🇪"]),
    "unseen symbols": ("bad", ["b\ufffcad", "b\U0001d159ad", "ba\u2d7fd"], ["b\ufffcadly"]),
    "colons": ("a:b", ["aː\u200bb", "a∶b", "a꞉b"], ["ab", "a;b"]),
    "fractions": ("½", ["a ½ b"], ["1/2", "1 2", "12"]),
    "Hindi": ("बुरा", ["यह बुरा है"], ["बुराई"]),
    "accents": ("évil", ["e\u0301vil", "ÉVIL"], ["evil", "évil\u0323"]),
    "underscores": ("so bad", ["so_bad", "_so__bad_", "＿so bad"], ["so-bad"]),
    "written with an underscore": ("so_bad", ["so bad", "so_bad"], ["sobad"]),
    "signs": ("c++", ["c++20", "(c++)"], ["objc++", "c+"]),
    "emoji": ("🖕", ["ab🖕🏽cd", "🖕\ufe0f"], ["👍"]),
}


@pytest.mark.parametrize(("phrase", "blocked", "allowed"), SCRIPTS.values(), ids=SCRIPTS)
def test_word_boundaries_are_required_where_the_script_has_them(
    phrase: str, blocked: list[str], allowed: list[str]
) -> None:
    whole = BlockList(phrase for phrase, _, _ in SCRIPTS.values())
    for text in blocked:
        assert not BlockList([phrase])(text), text
        assert not whole(text), text
    for text in allowed:
        assert BlockList([phrase])(text), text


@pytest.mark.parametrize(
    "mark", ["\u00ad", "\u200b", "\u200c", "\u200d", "\u2060", "\ufe0f", "\ufeff", "\u180b", "\x00", "\x7f"]
)
def test_invisible_characters_are_ignored(mark: str) -> None:
    for phrase in ("bad", f"b{mark}ad", f"{mark}bad"):
        for text in (f"b{mark}ad", f"so {mark}bad", f"bad{mark}!", "BAD"):
            assert not BlockList([phrase])(text)
        assert BlockList([phrase])(f"bad{mark}ly")
    assert BlockList([mark, "_", " "]).phrases == []


def test_file_has_one_phrase_per_line(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# comment\nbad word\r\n\nÉvil\n", encoding="utf-8")
    assert BlockList.read(path).phrases == ["bad word", "évil"]
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        BlockList.read(path)
    with pytest.raises(UserError, match="there is no such file"):
        BlockList.read(tmp_path / "none")


def test_lists_of_suggestions_stay_full(model: ServedModel, tmp_path: Path) -> None:
    is_allowed = BlockList(["abba", "abc", "acca b", "cacc"])
    strict = ServedModel(Run.open(model.run.folder), is_allowed=is_allowed)
    assert strict.identity == model.identity, "the learned state does not depend on the block list"
    services = [Service(served, open_store(f"sqlite:///{tmp_path / 'users.db'}")) for served in (strict, model)]
    for text in ("abba", "a abc", "cacc"):
        services[0].accept("ann", text)
    for query in ("", "a", "ca"):
        filtered, unfiltered = (
            service.complete(CompletionRequest(query, "ann", limit=8)).results for service in services
        )
        assert len(filtered) == len(unfiltered) == 8
        assert [result.text for result in filtered if not is_allowed(result.text)] == []
        assert filtered != unfiltered or query == "ca"
    assert services[0].complete(CompletionRequest("abba ", "ann")).results == []
    for service in services:
        service.close()
