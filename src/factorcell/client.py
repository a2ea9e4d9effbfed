"""A client of the service over HTTP, blocking or for asyncio, which needs neither PyTorch nor the server's packages."""

import secrets
from asyncio import sleep as async_sleep
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from http import HTTPStatus
from random import uniform
from time import monotonic, sleep
from typing import Any, Generic, TypeVar, overload
from urllib.parse import quote

import httpx
import msgspec

from factorcell.service import messages
from factorcell.service.messages import Problem

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = 15.0  # seconds that an attempt waits for a connection or for data from the network
FIRST_PAUSE, MAX_PAUSE = 0.2, 10.0  # bounds of the random pauses between attempts, in seconds; they double
TEMPORARY_STATUSES = (429, 502, 503, 504)  # a proxy sends 502 and 504


class ServiceError(Exception):
    """The service, or a proxy in front of it, refused a request or failed.

    The message contains no user id, but its detail may repeat a part of an invalid request.

    Attributes:
        status: The HTTP status code.
        problem: The problem details of the response: `type`, `title`, `status` and `detail`.
        retry_after: Seconds after which the call may be repeated; 0 if the response does not say so.
    """

    def __init__(self, name: str, response: httpx.Response) -> None:
        self.status = response.status_code
        try:
            self.problem = msgspec.json.decode(response.content, type=Problem)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.problem = Problem(type="about:blank", title=response.reason_phrase, status=self.status, detail="")
        seconds = response.headers.get("retry-after", "")
        self.retry_after = float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0  # it may be a date
        super().__init__(f"{name}: {self.status} {self.problem.title}: {self.problem.detail}".rstrip(": "))


class _Operation(Generic[T]):
    """A method of both clients: it sends its keyword arguments to a path and returns a message of the type T."""

    def __init__(self, method: str, path: str, answer_type: type[T], doc: str, *, can_repeat: bool = True) -> None:
        self.method, self.path, self.answer_type, self.__doc__ = method, path, answer_type, doc
        self.can_repeat = can_repeat

    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, client: "Client", owner: Any = None) -> Callable[..., T]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: Any = None) -> Callable[..., Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: Any = None) -> "_Operation[T]": ...
    def __get__(self, client: Any, owner: Any = None) -> Any:
        return self if client is None else partial(client._send, self)


def _to_plain(value: Any) -> Any:
    """Convert a NumPy scalar or a mapping to a value that JSON can represent."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"expected a value that JSON can represent, got {type(value).__name__}")


class _Call(Generic[T]):
    """The attempts to call an operation within a deadline, with random pauses between them.

    pause ~ retry_after + uniform(0, min(MAX_PAUSE, FIRST_PAUSE * 2^n)) after n + 1 attempts
    """

    def __init__(self, client: "_Operations", operation: _Operation[T], fields: dict[str, Any]) -> None:
        self.operation, self.end, self.bound = operation, monotonic() + client._deadline, FIRST_PAUSE
        path = operation.path
        if "{user}" in path:  # HTTP clients would replace a user called `..` by the parent of the path
            path = path.format(user=quote(fields.pop("user"), safe="").replace(".", "%2E"))
        if operation.name == "accept":
            fields = {"idempotency_key": secrets.token_urlsafe(16), **fields}
        content = msgspec.json.encode(fields, enc_hook=_to_plain) if fields else None
        url, headers = client._url + path, client._headers
        self.request: httpx.Request = client._http.build_request(
            operation.method, url, content=content, headers=headers
        )

    def result(self, response: httpx.Response) -> T:
        """Return the message in a response; raise a `ServiceError` if the status is not 200."""
        if response.status_code != HTTPStatus.OK:
            raise ServiceError(self.operation.name, response)
        return msgspec.json.decode(response.content, type=self.operation.answer_type)

    def pause_after(self, error: httpx.RequestError | ServiceError) -> float:
        """Return the seconds until the next attempt; raise the error if no attempt may follow."""
        pause = uniform(0, self.bound)
        self.bound = min(MAX_PAUSE, 2 * self.bound)
        if isinstance(error, ServiceError):
            pause += error.retry_after
            is_temporary, had_no_effect = error.status in TEMPORARY_STATUSES, error.status == 429
        else:
            is_temporary, had_no_effect = True, isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        may_repeat = is_temporary and (self.operation.can_repeat or had_no_effect)
        if not may_repeat or monotonic() + pause > self.end:
            raise error
        return pause


class _Operations:
    """The operations of both clients. Their keyword arguments are the fields of the request bodies.

    Args:
        url: The address of the service, which may include a path.
        key: A key of the service.
        deadline: Seconds from the start of a call during which attempts may begin.
        http: An httpx client, for example one with proxies or certificates; the caller must close it.
    """

    http_class: type[Any]  # the class of httpx clients

    complete = _Operation("POST", "v1/complete", messages.Completions, "Suggest texts that continue a typed text.")
    accept = _Operation("POST", "v1/accept", messages.AcceptResult, "Save and learn a text; it counts once.")
    show = _Operation("GET", "v1/users/{user}", messages.Profile, "Return all saved data of a user.")
    export = _Operation("GET", "v1/users/{user}/export", messages.Export, "Return a user for `restore`.")
    restore = _Operation("POST", "v1/users", messages.UserAnswer, "Import the fields of an export.", can_repeat=False)
    delete = _Operation("DELETE", "v1/users/{user}", messages.DeletedAnswer, "Delete all data of a user.")
    forget = _Operation("POST", "v1/users/{user}/forget", messages.RemovedAnswer, "Delete all copies of `text`.")
    undo = _Operation(
        "POST", "v1/users/{user}/undo", messages.RemovedAnswer, "Delete a user's newest text.", can_repeat=False
    )
    pause = _Operation("POST", "v1/users/{user}/pause", messages.PausedAnswer, "Pause learning for a user.")
    resume = _Operation("POST", "v1/users/{user}/resume", messages.PausedAnswer, "Resume learning for a user.")

    def __init__(
        self, url: str = DEFAULT_URL, key: str | None = None, *, deadline: float = 30.0, http: Any = None
    ) -> None:
        self._url, self._deadline = url.rstrip("/") + "/", deadline
        self._http, self._owns_http = http or self.http_class(timeout=TIMEOUT), http is None
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


class Client(_Operations):
    """A blocking client of a service. Several threads may use the same client at once."""

    http_class = httpx.Client

    def _send(self, operation: _Operation[T], **fields: Any) -> T:
        call = _Call(self, operation, fields)
        while True:
            try:
                return call.result(self._http.send(call.request))
            except (httpx.RequestError, ServiceError) as error:
                sleep(call.pause_after(error))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns_http:
            self._http.close()


class AsyncClient(_Operations):
    """A client of a service for one event loop of asyncio. It has the operations of `Client` as coroutines."""

    http_class = httpx.AsyncClient

    async def _send(self, operation: _Operation[T], **fields: Any) -> T:
        call = _Call(self, operation, fields)
        while True:
            try:
                return call.result(await self._http.send(call.request))
            except (httpx.RequestError, ServiceError) as error:
                await async_sleep(call.pause_after(error))

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owns_http:
            await self._http.aclose()
