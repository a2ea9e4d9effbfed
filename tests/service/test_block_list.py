"""Phrases that are suggested to nobody, and lists that stay full without them."""

from pathlib import Path

import pytest

from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.service.block_list import BlockList
from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.learning import ServedModel
from factorcell.service.stores.opening import open_store

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
def test_phrases_are_found_however_written(text: str) -> None:
    assert not LIST(text)


@pytest.mark.parametrize("text", ["", "bad", "bad words", "medieval", "badword", "a bad, word", "c+", "strassen"])
def test_other_texts_are_allowed(text: str) -> None:
    assert LIST(text)
    assert BlockList([])(text)


def test_a_file_has_a_phrase_a_line(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# remark\nbad word\r\n\nÉvil\n", encoding="utf-8")
    assert BlockList.read(path).phrases == ["bad word", "évil"]
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        BlockList.read(path)
    with pytest.raises(UserError, match="there is no such file"):
        BlockList.read(tmp_path / "none")


def test_lists_stay_full(model: ServedModel, tmp_path: Path) -> None:
    """From the model, popular and own texts; none at all after a phrase that is typed, with time to spare."""
    strict = ServedModel(Run.open(model.run.folder), allowed=BlockList(["abba", "abc", "acca b", "cacc"]))
    assert strict.identity == model.identity, "what is learned does not depend on it"
    services = [Service(one, open_store(f"sqlite:///{tmp_path / 'users.db'}")) for one in (strict, model)]
    for text in ("abba", "a abc", "cacc"):
        services[0].accept("ann", text)
    for query in ("", "a", "ca"):
        found, free = (one.complete(CompletionRequest(query, "ann", limit=8)).results for one in services)
        assert len(found) == len(free) == 8
        assert [one.text for one in found if not strict.assistant.allowed(one.text)] == []  # type: ignore[misc]
        assert found != free or query == "ca"
    found = services[0].complete(CompletionRequest("abba ", "ann")).results
    assert found == []
    for service in services:
        service.close()
