"""The same client for asyncio."""

from asyncio import sleep
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
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


def _asks(make: Callable[P, Call[T]]) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """The method that asks what `make` makes."""

    async def ask(client: "AsyncClient", /, *args: P.args, **fields: P.kwargs) -> T:
        return await client.ask(make(*args, **fields))

    calls.describe_method(ask, make)
    return ask


def _streams(make: Callable[P, Call[Piece]]) -> Callable[Concatenate["AsyncClient", P], AsyncGenerator[Piece, None]]:
    """The method that streams what `make` makes."""

    def stream(client: "AsyncClient", /, *args: P.args, **fields: P.kwargs) -> AsyncGenerator[Piece, None]:
        return client.stream(make(*args, **fields))

    calls.describe_method(stream, make, AsyncGenerator[Piece, None])
    return stream


class AsyncClient(Connection):
    """Asks a service from one event loop of asyncio; each method is awaited."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        patience: Patience | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """`UserError` for a `url` or `key` that cannot be one.

        `http`: connections of one's own (proxies, certificates), which whoever made them closes.
        """
        super().__init__(url, key, patience, own=http is None)
        self._http = http or httpx.AsyncClient()

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

    async def ask(self, call: Call[T]) -> T:
        """The answer to a call, tried again while that may help. `ServiceError` if there is none."""
        attempts = Attempts(call, self.patience)
        while True:
            try:
                async with self._open(call, attempts) as response:
                    content = b"".join([part async for part in _parts(response, attempts)])
                return answer(call, response.status_code, response.headers, content)
            except ServiceError as error:
                await sleep(attempts.pause(error))

    async def stream(self, call: Call[Piece]) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer as they come; nothing is tried again once the first is there."""
        attempts = Attempts(call, self.patience)
        while True:
            try:
                async with self._open(call, attempts) as response:
                    if response.status_code != HTTPStatus.OK:
                        content = b"".join([part async for part in _parts(response, attempts)])
                        raise refusal(call.name, response.status_code, response.headers, content)
                    pieces = Pieces(call)
                    async for part in _parts(response, attempts):
                        for piece in pieces.feed(part):
                            attempts.settle()
                            yield piece
                pieces.end()
                return
            except ServiceError as error:
                await sleep(attempts.pause(error))

    async def aclose(self) -> None:
        """Close the connections, unless they are somebody else's."""
        if self._own:
            await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _open(self, call: Call[Any], attempts: Attempts) -> AsyncIterator[httpx.Response]:
        """The answer to one try, whose content is still to come."""
        try:
            async with self._http.stream(**self.request(call, attempts.begin())) as response:
                yield response
        except httpx.RequestError as error:
            raise self.unreachable(call, error) from None


async def _parts(response: httpx.Response, attempts: Attempts) -> AsyncIterator[bytes]:
    """The content as it comes. `UnreachableError` once the deadline has passed."""
    async for part in response.aiter_bytes():
        attempts.check()
        yield part
