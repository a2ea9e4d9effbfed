"""Responses in any split and with any content."""

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
def test_chunks_equal_those_that_were_sent(texts: list[str], data: st.DataObject) -> None:
    sent = [*(TextChunk(text=text) for text in texts), TextChunk(text="", done=True)]
    content = b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=10)))
    reader, chunks = calls.ChunkReader(CALL), list[TextChunk]()
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        chunks += reader.feed(content[start:end])
    assert chunks == sent
    reader.check_complete()


@pytest.mark.parametrize("content", [b"", b'data: {"text":"a"}\n\n', b'data: {"text":"","done":true}', b": alive\n\n"])
def test_cut_off_text_is_an_error(content: bytes) -> None:
    reader = calls.ChunkReader(CALL)
    list(reader.feed(content))
    with pytest.raises(UnreachableError, match="cut off"):
        reader.check_complete()


@given(st.binary(max_size=100))
@example(b'{"status":"\xff"}')
@example(b'{"type":"\xed\xa0\x80","title":"a","status":502,"detail":"a"}')
@example(b'{"unknown":' + b"[" * 100_000)
def test_any_bytes_are_a_response_or_an_error(content: bytes) -> None:
    with pytest.raises(UnexpectedAnswerError):
        calls.health().result_of(httpx.Response(200, content=content + b"x"))
    with pytest.raises(RefusedError) as raised:
        calls.show("ann").result_of(httpx.Response(502, content=content))
    error = raised.value
    assert (error.status, error.type, error.is_temporary, error.may_have_run) == (502, "about:blank", True, True)


@pytest.mark.parametrize("kind", problems.PROBLEM_KINDS)
def test_every_problem_becomes_an_error_with_all_fields(kind: str) -> None:
    response = ProblemError(kind, "because", retry_after=2.5).response()
    sent = httpx.Response(response.status_code, headers=dict(response.headers), content=bytes(response.body))
    error = calls.show("ann").error_of(sent)
    status, title = problems.PROBLEM_KINDS[kind]
    assert (error.status, error.title, error.detail, error.kind) == (status, title, "because", kind)
    assert (error.type, error.retry_after) == (f"/docs#{kind}", 3.0)
    assert str(error) == f"show: {status} {title}: because"
    assert error.is_temporary == (status in (429, 503))
