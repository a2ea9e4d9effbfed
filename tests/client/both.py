"""Both clients behind one interface, so that one test covers both."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import httpx

from factorcell.client import AsyncClient, Client, RetryPolicy

CLIENT_KINDS = ("blocking", "asynchronous")
PATIENT = RetryPolicy(deadline=120, timeout=60)  # for busy machines

Handler = Callable[[httpx.Request], httpx.Response]


class Awaited:
    """An `AsyncClient` with blocking methods, which run in its own event loop."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self.client, self.runner = client, runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def wait(*args: Any, **fields: Any) -> Any:
            result = method(*args, **fields)
            if isinstance(result, AsyncGenerator):
                return _iterate(result, self.runner)
            return self.runner.run(result)

        return wait


def _iterate(items: AsyncGenerator[Any, None], runner: asyncio.Runner) -> Generator[Any, None, None]:
    async def next_item() -> Any:
        return await anext(items, None)

    try:
        while (item := runner.run(next_item())) is not None:
            yield item
    finally:
        runner.run(items.aclose())


def new_client(
    kind: str,
    runner: asyncio.Runner,
    *args: Any,
    handler: Handler | None = None,
    connections: int | None = None,
    **options: Any,
) -> tuple[Any, Callable[[], None]]:
    http_options: dict[str, Any] = {"verify": False} if handler is None else {"transport": httpx.MockTransport(handler)}
    http_options |= {} if connections is None else {"limits": httpx.Limits(max_connections=connections)}
    options = {"retry_policy": PATIENT, **options}
    if kind == "blocking":
        http = httpx.Client(**http_options)
        return Client(*args, http=http, **options), http.close
    async_http = httpx.AsyncClient(**http_options)
    return Awaited(AsyncClient(*args, http=async_http, **options), runner), lambda: runner.run(async_http.aclose())


def call(client: Any, name: str, *args: Any, **fields: Any) -> Any:
    result = getattr(client, name)(*args, **fields)
    return list(result) if inspect.isgenerator(result) else result
