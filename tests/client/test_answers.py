"""What comes over the wire, however it is cut and whatever it holds."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from factorcell.client import UnexpectedAnswerError, UnreachableError, answers, calls
from factorcell.client.errors import RefusedError
from factorcell.service.http import problems, streaming
from factorcell.service.http.messages import Piece
from factorcell.service.http.problems import ProblemError

CALL = calls.generate()
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\u2028\x85\r\x0b")), max_size=8)


@given(TEXTS, st.data())
def test_pieces_are_those_that_were_sent(texts: list[str], data: st.DataObject) -> None:
    sent = [*(Piece(text=text) for text in texts), Piece(text="", done=True)]
    content = b"".join(map(streaming.event, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=10)))
    reader, found = answers.Pieces(CALL), list[Piece]()
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        found += reader.feed(content[begin:end])
    assert found == sent
    reader.end()


@pytest.mark.parametrize("content", [b"", b'data: {"text":"a"}\n\n', b'data: {"text":"","done":true}', b": alive\n\n"])
def test_text_that_breaks_off(content: bytes) -> None:
    reader = answers.Pieces(CALL)
    list(reader.feed(content))
    with pytest.raises(UnreachableError, match="broke off"):
        reader.end()


@given(st.binary(max_size=100))
@example(b'{"status":"\xff"}')
@example(b'{"type":"\xed\xa0\x80","title":"a","status":502,"detail":"a"}')
@example(b'{"type":"a","title":"a","status":502,"detail":"\xf0\x9f\x98"}')
@example(b'{"unknown":' + b"[" * 100_000)
def test_any_bytes_are_an_answer_or_an_error(content: bytes) -> None:
    with pytest.raises(UnexpectedAnswerError):
        answers.answer(calls.health(), 200, {}, content + b"x")
    error = answers.refusal("show", 502, {}, content)
    assert (error.status, error.type, error.passing, error.begun) == (502, "about:blank", True, True)
    with pytest.raises(UnexpectedAnswerError):
        list(answers.Pieces(CALL).feed(b"data: " + content.replace(b"\n", b"") + b"x\n"))


@pytest.mark.parametrize("kind", problems.KINDS)
def test_every_problem_of_the_server_is_an_error_with_all_of_it(kind: str) -> None:
    response = ProblemError(kind, "because", retry=2.5).response()
    error = answers.refusal("show", response.status_code, response.headers, bytes(response.body))
    status, title = problems.KINDS[kind]
    assert (error.status, error.title, error.detail, error.kind) == (status, title, "because", kind)
    assert (error.type, error.retry_after) == (f"/docs#{kind}", 3.0)
    assert str(error) == f"show: {status} {title}: because"
    assert error.passing == (status in (429, 503))


@pytest.mark.parametrize("status", [204, 302, 418, 599, 999])
def test_any_status_is_an_error(status: int) -> None:
    with pytest.raises(RefusedError) as raised:
        answers.answer(calls.health(), status, {}, b"<html>")
    assert raised.value.status == status


def test_when_to_come_again() -> None:
    assert [answers.retry_after(value) for value in ("0", "17", "", "soon", "-1", "1.5", "²")] == [0, 17] + [None] * 5
    later = datetime.now(UTC) + timedelta(seconds=100)
    assert 98 < (answers.retry_after(format_datetime(later, usegmt=True)) or 0) <= 100
    assert answers.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
