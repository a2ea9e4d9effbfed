"""Both clients behind one face, so that one test asks both."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import httpx

from factorcell.client import AsyncClient, Client, RetryPolicy

KINDS = ("blocking", "asynchronous")
LONG = RetryPolicy(deadline=120, timeout=60)  # the machine of a test may be busy

Handler = Callable[[httpx.Request], httpx.Response]


class Awaited:
    """An `AsyncClient` whose methods wait, in an event loop of its own."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self.client, self.runner = client, runner

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self.client, name)

        def wait(*args: Any, **fields: Any) -> Any:
            given = asked(*args, **fields)
            if isinstance(given, AsyncGenerator):
                return _each(given, self.runner)
            return self.runner.run(given)

        return wait


def _each(items: AsyncGenerator[Any, None], runner: asyncio.Runner) -> Generator[Any, None, None]:
    async def following() -> Any:
        return await anext(items, None)

    try:
        while (item := runner.run(following())) is not None:
            yield item
    finally:
        runner.run(items.aclose())


def made(
    kind: str,
    runner: asyncio.Runner,
    *args: Any,
    handler: Handler | None = None,
    connections: int | None = None,
    **options: Any,
) -> tuple[Any, Callable[[], None]]:
    own: dict[str, Any] = {"verify": False} if handler is None else {"transport": httpx.MockTransport(handler)}
    own |= {} if connections is None else {"limits": httpx.Limits(max_connections=connections)}
    options = {"patience": LONG, **options}
    if kind == "blocking":
        http = httpx.Client(**own)
        return Client(*args, http=http, **options), http.close
    other = httpx.AsyncClient(**own)
    return Awaited(AsyncClient(*args, http=other, **options), runner), lambda: runner.run(other.aclose())


def ask(client: Any, name: str, *args: Any, **fields: Any) -> Any:
    given = getattr(client, name)(*args, **fields)
    return list(given) if inspect.isgenerator(given) else given
