"""A client that waits for each answer."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from time import sleep
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx

from factorcell.client import calls
from factorcell.client.answers import Pieces, answer, refusal
from factorcell.client.calls import Call, Piece
from factorcell.client.connection import DEFAULT_URL, Connection
from factorcell.client.errors import ServiceError
from factorcell.client.trying import Attempts, Patience

P = ParamSpec("P")
T = TypeVar("T")


def _asks(make: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    """The method that asks what `make` makes."""

    def ask(client: "Client", /, *args: P.args, **fields: P.kwargs) -> T:
        return client.ask(make(*args, **fields))

    calls.describe_method(ask, make)
    return ask


def _streams(make: Callable[P, Call[Piece]]) -> Callable[Concatenate["Client", P], Generator[Piece, None, None]]:
    """The method that streams what `make` makes."""

    def stream(client: "Client", /, *args: P.args, **fields: P.kwargs) -> Generator[Piece, None, None]:
        return client.stream(make(*args, **fields))

    calls.describe_method(stream, make, Generator[Piece, None, None])
    return stream


class Client(Connection):
    """Asks a service, from any thread, and waits for each answer."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        patience: Patience | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        """`UserError` for a `url` or `key` that cannot be one.

        `http`: connections of one's own (proxies, certificates), which whoever made them closes.
        """
        super().__init__(url, key, patience, own=http is None)
        self._http = http or httpx.Client()

    complete = _asks(calls.complete)
    accept = _asks(calls.accept)
    show = _asks(calls.show)
    export = _asks(calls.export)
    restore = _asks(calls.restore)
    delete = _asks(calls.delete)
    forget = _asks(calls.forget)
    undo = _asks(calls.undo)
    pause = _asks(calls.pause)
    resume = _asks(calls.resume)
    score = _asks(calls.score)
    classify = _asks(calls.classify)
    rescore = _asks(calls.rescore)
    generate = _streams(calls.generate)
    health = _asks(calls.health)
    ready = _asks(calls.ready)
    metrics = _asks(calls.metrics)

    def ask(self, call: Call[T]) -> T:
        """The answer to a call, tried again while that may help. `ServiceError` if there is none."""
        attempts = Attempts(call, self.patience)
        while True:
            try:
                with self._open(call, attempts) as response:
                    content = b"".join(_parts(response, attempts))
                return answer(call, response.status_code, response.headers, content)
            except ServiceError as error:
                sleep(attempts.pause(error))

    def stream(self, call: Call[Piece]) -> Generator[Piece, None, None]:
        """The pieces of an answer as they come; nothing is tried again once the first is there."""
        attempts = Attempts(call, self.patience)
        while True:
            try:
                with self._open(call, attempts) as response:
                    if response.status_code != HTTPStatus.OK:
                        content = b"".join(_parts(response, attempts))
                        raise refusal(call.name, response.status_code, response.headers, content)
                    pieces = Pieces(call)
                    for part in _parts(response, attempts):
                        for piece in pieces.feed(part):
                            attempts.settle()
                            yield piece
                return pieces.end()
            except ServiceError as error:
                sleep(attempts.pause(error))

    def close(self) -> None:
        """Close the connections, unless they are somebody else's."""
        if self._own:
            self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _open(self, call: Call[Any], attempts: Attempts) -> Iterator[httpx.Response]:
        """The answer to one try, whose content is still to come."""
        try:
            with self._http.stream(**self.request(call, attempts.begin())) as response:
                yield response
        except httpx.RequestError as error:
            raise self.unreachable(call, error) from None


def _parts(response: httpx.Response, attempts: Attempts) -> Iterator[bytes]:
    """The content as it comes. `UnreachableError` once the deadline has passed."""
    for part in response.iter_bytes():
        attempts.check()
        yield part
