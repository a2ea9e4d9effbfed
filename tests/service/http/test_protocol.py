"""Heads of any size and requests to change the protocol neither fill the memory nor lose a body."""

from collections.abc import Iterator

import pytest

from factorcell.service.http import server
from factorcell.service.http.application import Site, application
from tests.service.http.sockets import GET, HOST, connect, post, read_all, status_of
from tests.service.listening import listening

PIECE = b"a" * 1000
QUERY = b'{"query":"ab"}'
COMPLETE = b"POST /v1/complete HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
CHUNKED = COMPLETE + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(QUERY), QUERY)


@pytest.fixture
def url(site: Site) -> Iterator[str]:
    with listening(application(site)) as address:
        yield address


def answer_to_endless(url: str, start: bytes, piece: bytes) -> tuple[bytes, int]:
    """Send `start` and then `piece` until the server closes; return the response and the number of bytes sent."""
    sent = 0
    with connect(url) as connection:
        connection.sendall(start)
        try:
            while sent < 100 * server.MAX_HEAD_BYTES:
                connection.sendall(piece)
                sent += len(piece)
        except ConnectionError:
            pass
        return read_all(connection), sent


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /", PIECE),
        (b"GET / HTTP/1.1\r\nX: ", PIECE),
        (b"GET / HTTP/1.1\r\n", b"X: " + PIECE + b"\r\n"),
        (CHUNKED + CHUNK + b"0\r\n", b"X: " + PIECE + b"\r\n"),
        (CHUNKED + CHUNK + b"0\r\nX: ", PIECE),
        (CHUNKED + b"1;", PIECE),
    ],
    ids=["path", "field", "fields", "trailers", "trailer", "chunk extension"],
)
def test_endless_heads_are_refused(url: str, start: bytes, piece: bytes) -> None:
    _, sent = answer_to_endless(url, start, piece)
    assert sent < 50 * server.MAX_HEAD_BYTES, "allows for bytes in the buffers of the sockets"
    with connect(url) as connection:
        assert status_of(connection, GET) == 200


def test_head_up_to_the_limit_is_accepted_in_pieces(url: str) -> None:
    field = b"X: " + b"a" * (server.MAX_HEAD_BYTES - 1000) + b"\r\n"
    with connect(url) as connection:
        assert status_of(connection, GET.replace(b"\r\n\r\n", b"\r\n" + field + b"\r\n")) == 200
    with connect(url) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + 2 * field)
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_large_body_in_small_chunks_is_accepted(url: str) -> None:
    body = QUERY + b" " * 2 * server.MAX_HEAD_BYTES
    chunks = b"".join(b"1\r\n%b\r\n" % body[index : index + 1] for index in range(len(body)))
    with connect(url) as connection:
        assert status_of(connection, CHUNKED + chunks + b"0\r\n\r\n") == 200
        assert status_of(connection, GET) == 200


@pytest.mark.parametrize("field", [b"Upgrade", b"upgrade"])
def test_offer_of_another_protocol_is_ignored(url: str, field: bytes) -> None:
    offer = [b"Connection: Upgrade, HTTP2-Settings", field + b": h2c", b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"]
    with connect(url) as connection:
        assert status_of(connection, post("/v1/complete", QUERY, *offer)) == 200
        assert status_of(connection, GET) == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + 2 * HOST + b"\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"A\x00: b\r\n\r\n",
        COMPLETE + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["no host", "two hosts", "control character", "two lengths"],
)
def test_ambiguous_heads_are_refused(url: str, head: bytes) -> None:
    with connect(url) as connection:
        connection.sendall(head)
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_tunnel_is_refused(url: str) -> None:
    with connect(url) as connection:
        assert status_of(connection, b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n") == 404


def test_requests_sent_together_are_answered_in_order(url: str) -> None:
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connect(url) as connection:
        connection.sendall(post("/v1/complete", QUERY) + GET + last)
        answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 200 ") == 3
    assert answers.index(b'"results"') < answers.index(b'"status"')
