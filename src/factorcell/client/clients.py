"""The clients of the service: a blocking client, and a client for asyncio."""

from asyncio import sleep as async_sleep
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from http import HTTPStatus
from time import sleep
from typing import Any, Generic, ParamSpec, TypeVar, overload

import httpx

from factorcell.client import calls
from factorcell.client.calls import Call, ChunkReader
from factorcell.client.errors import ServiceError
from factorcell.client.retries import Attempts, RetryPolicy
from factorcell.errors import UserError
from factorcell.io.version import __version__
from factorcell.service.http.messages import TextChunk

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)

DEFAULT_URL = "http://127.0.0.1:8000"


class _Operation(Generic[P, T]):
    """A method of both clients, which sends the call that `create_call` returns."""

    def __init__(self, create_call: Callable[P, Call[T]]) -> None:
        self.create_call, self.__doc__ = create_call, create_call.__doc__

    @overload
    def __get__(self, client: "Client", owner: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: Any = None) -> Any:
        if client is None:  # the attribute is accessed on the class, not on a client
            return self.create_call
        return lambda *args, **fields: client._send(self.create_call(*args, **fields))


class _Operations(Generic[H]):
    """The operations of both clients, the address of the service, and the retry policy."""

    _http_class: type[Any]  # the class of httpx clients

    complete = _Operation(calls.complete)
    accept = _Operation(calls.accept)
    show = _Operation(calls.show)
    export = _Operation(calls.export)
    restore = _Operation(calls.restore)
    delete = _Operation(calls.delete)
    forget = _Operation(calls.forget)
    undo = _Operation(calls.undo)
    pause = _Operation(calls.pause)
    resume = _Operation(calls.resume)
    score = _Operation(calls.score)
    classify = _Operation(calls.classify)
    rescore = _Operation(calls.rescore)
    health = _Operation(calls.health)
    ready = _Operation(calls.ready)
    metrics = _Operation(calls.metrics)

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        retry_policy: RetryPolicy | None = None,
        http: H | None = None,
    ) -> None:
        """Create a client.

        Args:
            url: The address of the service, which may include a path.
            key: A key of the service.
            retry_policy: How long the client waits, and how often it retries.
            http: An httpx client, for example one with proxies or certificates; the caller must close it.

        Raises:
            UserError: `url` or `key` is invalid.
        """
        url_error = UserError(f"url {url!r:.200}: expected the address of a service, such as {DEFAULT_URL}")
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            raise url_error from None
        has_address = parsed.scheme in ("http", "https") and bool(parsed.host)
        if not has_address or parsed.query or parsed.fragment or parsed.userinfo:
            raise url_error
        self._http: H = http or self._http_class()
        self._owns_http = http is None
        self.retry_policy, self._url = retry_policy or RetryPolicy(), str(parsed).rstrip("/") + "/"
        self._headers = {"User-Agent": f"factorcell/{__version__}", "Content-Type": "application/json"}
        if key is not None:
            if not (key.isascii() and key.isprintable()):
                raise UserError(
                    "key: expected printable ASCII characters; pass the key as `factorcell users key` printed it"
                )
            self._headers["Authorization"] = f"Bearer {key}"

    def _next_request(self, attempts: Attempts) -> dict[str, Any]:
        """Count the next attempt; return the arguments of httpx for the request of this attempt."""
        call = attempts.call
        return {
            "method": call.method,
            "url": self._url + call.path,
            "content": call.body,
            "headers": self._headers,
            "timeout": attempts.start_attempt(),
        }


class Client(_Operations[httpx.Client]):
    """A blocking client of a service. Several threads may use the same client at once."""

    _http_class = httpx.Client

    def generate(self, **fields: Any) -> Generator[TextChunk, None, None]:
        """Yield the chunks of a generated text as they arrive; the arguments are the fields of `GenerateRequest`."""
        return self._stream(calls.generate(**fields))

    def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self.retry_policy)
        while True:
            try:
                return call.result_of(self._http.request(**self._next_request(attempts)))
            except (httpx.RequestError, ServiceError) as error:
                sleep(attempts.pause_or_raise(error))

    def _stream(self, call: Call[TextChunk]) -> Generator[TextChunk, None, None]:
        attempts = Attempts(call, self.retry_policy)
        while True:
            try:
                with self._http.stream(**self._next_request(attempts)) as response:
                    if response.status_code != HTTPStatus.OK:
                        response.read()
                        raise call.error_of(response)
                    reader = ChunkReader(call)
                    for data in response.iter_bytes():
                        for chunk in reader.feed(data):
                            attempts.is_final = True
                            yield chunk
                return reader.check_complete()
            except (httpx.RequestError, ServiceError) as error:
                sleep(attempts.pause_or_raise(error))

    def close(self) -> None:
        """Close the connections, except those of an httpx client that was passed as `http`."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Operations[httpx.AsyncClient]):
    """A client of a service for one event loop of asyncio. It has the operations of `Client` as coroutines."""

    _http_class = httpx.AsyncClient

    def generate(self, **fields: Any) -> AsyncGenerator[TextChunk, None]:
        """Yield the chunks of a generated text as they arrive; the arguments are the fields of `GenerateRequest`."""
        return self._stream(calls.generate(**fields))

    async def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self.retry_policy)
        while True:
            try:
                return call.result_of(await self._http.request(**self._next_request(attempts)))
            except (httpx.RequestError, ServiceError) as error:
                await async_sleep(attempts.pause_or_raise(error))

    async def _stream(self, call: Call[TextChunk]) -> AsyncGenerator[TextChunk, None]:
        attempts = Attempts(call, self.retry_policy)
        while True:
            try:
                async with self._http.stream(**self._next_request(attempts)) as response:
                    if response.status_code != HTTPStatus.OK:
                        await response.aread()
                        raise call.error_of(response)
                    reader = ChunkReader(call)
                    async for data in response.aiter_bytes():
                        for chunk in reader.feed(data):
                            attempts.is_final = True
                            yield chunk
                reader.check_complete()
                return
            except (httpx.RequestError, ServiceError) as error:
                await async_sleep(attempts.pause_or_raise(error))

    async def aclose(self) -> None:
        """Close the connections, except those of an httpx client that was passed as `http`."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
