"""What both clients are made of: the address of a service, a key, and what of httpx means that no answer came."""

import copy
from typing import Any, TypeVar

import httpx

from factorcell.client.calls import Call
from factorcell.client.errors import UnreachableError
from factorcell.client.trying import Patience
from factorcell.config import UserError
from factorcell.version import __version__

C = TypeVar("C", bound="Connection")

DEFAULT_URL = "http://127.0.0.1:8000"
# What fails before a request is sent.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError)


class Connection:
    """A service at a `url`, which may have a path, asked with a `key` and with `patience`."""

    def __init__(self, url: str, key: str | None, patience: Patience | None, own: bool) -> None:
        """`own`: whether the connections are to be closed with this."""
        self.patience, self._own, self._url = patience or Patience(), own, _checked(url)
        self._headers = {"User-Agent": f"factorcell/{__version__}"}
        if key is not None:
            if not (key.isascii() and key.isprintable()):
                raise UserError("key: it has characters that no key has; give it as `factorcell users key` printed it")
            self._headers["Authorization"] = f"Bearer {key}"

    def with_patience(self: C, patience: Patience) -> C:
        """The same service over the same connections with other limits; these close with this one."""
        other = copy.copy(self)
        other.patience, other._own = patience, False
        return other

    def request(self, call: Call[Any], seconds: float) -> dict[str, Any]:
        """What httpx takes for a call, each step of which may take `seconds`."""
        media = {} if call.body is None else {"Content-Type": "application/json"}
        return {
            "method": call.method,
            "url": self._url + call.path,
            "content": call.body,
            "headers": {**self._headers, **media},
            "timeout": seconds,
        }

    def unreachable(self, call: Call[Any], error: httpx.RequestError) -> UnreachableError:
        """What an error of httpx says of a call."""
        said = str(error) or type(error).__name__
        begun = not isinstance(error, UNSENT)
        return UnreachableError(call.name, f"no answer came from {self._url} ({said})", begun)


def _checked(url: str) -> str:
    """An address that ends in a slash. `UserError` if it is none."""
    fault = UserError(f"url {url!r:.200}: not the address of a service; valid is such as {DEFAULT_URL}")
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        raise fault from None
    if parts.scheme not in ("http", "https") or not parts.host or parts.query or parts.fragment or parts.userinfo:
        raise fault
    return str(parts).rstrip("/") + "/"
