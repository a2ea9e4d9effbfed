"""Answers as they come over the wire, however they are cut and whatever they hold."""

import httpx
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from factorcell.client import RefusedError, UnexpectedAnswerError, UnreachableError, calls
from factorcell.service.http import problems
from factorcell.service.http.messages import TextChunk
from factorcell.service.http.problems import ProblemError

CALL = calls.generate()
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\u2028\x85\r\x0b")), max_size=8)


@given(TEXTS, st.data())
def test_pieces_are_those_that_were_sent(texts: list[str], data: st.DataObject) -> None:
    sent = [*(TextChunk(text=text) for text in texts), TextChunk(text="", done=True)]
    content = b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=10)))
    reader, found = calls.Pieces(CALL), list[TextChunk]()
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        found += reader.feed(content[begin:end])
    assert found == sent
    reader.end()


@pytest.mark.parametrize("content", [b"", b'data: {"text":"a"}\n\n', b'data: {"text":"","done":true}', b": alive\n\n"])
def test_a_text_that_breaks_off_is_an_error(content: bytes) -> None:
    reader = calls.Pieces(CALL)
    list(reader.feed(content))
    with pytest.raises(UnreachableError, match="broke off"):
        reader.end()


@given(st.binary(max_size=100))
@example(b'{"status":"\xff"}')
@example(b'{"type":"\xed\xa0\x80","title":"a","status":502,"detail":"a"}')
@example(b'{"unknown":' + b"[" * 100_000)
def test_any_bytes_are_an_answer_or_an_error(content: bytes) -> None:
    with pytest.raises(UnexpectedAnswerError):
        calls.health().answer(httpx.Response(200, content=content + b"x"))
    with pytest.raises(RefusedError) as raised:
        calls.show("ann").answer(httpx.Response(502, content=content))
    error = raised.value
    assert (error.status, error.type, error.is_temporary, error.may_have_run) == (502, "about:blank", True, True)


@pytest.mark.parametrize("kind", problems.KINDS)
def test_every_problem_of_the_server_is_an_error_with_all_of_it(kind: str) -> None:
    response = ProblemError(kind, "because", retry=2.5).response()
    sent = httpx.Response(response.status_code, headers=dict(response.headers), content=bytes(response.body))
    error = calls.show("ann").refusal(sent)
    status, title = problems.KINDS[kind]
    assert (error.status, error.title, error.detail, error.kind) == (status, title, "because", kind)
    assert (error.type, error.retry_after) == (f"/docs#{kind}", 3.0)
    assert str(error) == f"show: {status} {title}: because"
    assert error.is_temporary == (status in (429, 503))
