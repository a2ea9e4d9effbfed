"""A client of the service over HTTP. It needs httpx and msgspec, but neither PyTorch nor the packages of the server."""

from factorcell.client.clients import AsyncClient, Client
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
from factorcell.client.retries import RetryPolicy
from factorcell.service.http.messages import ContextText, Export, ExportedText, Hypothesis, HypothesisList, TextChunk

__all__ = [
    "AsyncClient",
    "BusyError",
    "Client",
    "ConflictError",
    "ContextText",
    "Export",
    "ExportedText",
    "FailedError",
    "Hypothesis",
    "HypothesisList",
    "InvalidArgumentError",
    "InvalidRequestError",
    "KeyRefusedError",
    "NotFoundError",
    "RefusedError",
    "RetryPolicy",
    "ServiceError",
    "TextChunk",
    "UnexpectedAnswerError",
    "UnreachableError",
]
