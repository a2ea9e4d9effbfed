"""A client of the service over HTTP, which needs neither PyTorch nor the server: httpx and msgspec will do."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.client.asynchronous import AsyncClient
    from factorcell.client.blocking import Client
    from factorcell.client.errors import (
        BusyError,
        ConflictError,
        FailedError,
        InvalidArgumentError,
        InvalidRequestError,
        KeyRefusedError,
        NotFoundError,
        RefusedError,
        ServiceError,
        UnexpectedAnswerError,
        UnreachableError,
    )
    from factorcell.client.trying import Patience
    from factorcell.service.http.messages import ContextText, Export, GivenText, Hypothesis, HypothesisList, Piece

__all__ = [
    "AsyncClient",
    "BusyError",
    "Client",
    "ConflictError",
    "ContextText",
    "Export",
    "FailedError",
    "GivenText",
    "Hypothesis",
    "HypothesisList",
    "InvalidArgumentError",
    "InvalidRequestError",
    "KeyRefusedError",
    "NotFoundError",
    "Patience",
    "Piece",
    "RefusedError",
    "ServiceError",
    "UnexpectedAnswerError",
    "UnreachableError",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "asynchronous": ("AsyncClient",),
        "blocking": ("Client",),
        "calls": ("ContextText", "Export", "GivenText", "Hypothesis", "HypothesisList", "Piece"),
        "errors": (
            "BusyError",
            "ConflictError",
            "FailedError",
            "InvalidArgumentError",
            "InvalidRequestError",
            "KeyRefusedError",
            "NotFoundError",
            "RefusedError",
            "ServiceError",
            "UnexpectedAnswerError",
            "UnreachableError",
        ),
        "trying": ("Patience",),
    },
)
