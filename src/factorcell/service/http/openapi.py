"""The OpenAPI description, made from the operations and the messages."""

from collections.abc import Sequence
from typing import Any

import msgspec

from factorcell.service.http import problems
from factorcell.service.http.messages import Problem, UserId
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.site import Operation
from factorcell.version import __version__

MEANINGS = {
    "complete": "ask for completions, scores and texts",
    "learn": "accept texts of people",
    "users": "show, export, forget and delete people",
    "admin": "take exported people back, read the metrics",
}
SCHEMAS = "#/components/schemas/{name}"
EVENTS = "text/event-stream"  # the media type of responses that stream

Json = dict[str, Any]


def openapi(operations: Sequence[Operation] = OPERATIONS, keys: bool = False) -> Json:
    """Return the description of the API; `keys`: whether it needs any."""
    kinds = {kind: None for one in operations for kind in (one.request_type, one.response_type) if kind is not None}
    found, components = msgspec.json.schema_components([*kinds, Problem], ref_template=SCHEMAS)
    schemas = dict(zip([*kinds, Problem], found, strict=True))
    paths: Json = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas, keys)
    described: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "factorcell",
            "version": __version__,
            "description": "Completes what people type, learns each of them, and forgets when asked.",
        },
        "paths": paths,
        "components": {"schemas": components},
        "x-problems": {kind: {"status": status, "title": title} for kind, (status, title) in problems.KINDS.items()},
    }
    if keys:
        meanings = "; ".join(f"{scope}: {meaning}" for scope, meaning in MEANINGS.items())
        scheme = {"type": "http", "scheme": "bearer", "description": meanings}
        described["components"]["securitySchemes"] = {"key": scheme}
    return described


def _operation(one: Operation, schemas: dict[Any, Json], keys: bool) -> Json:
    media = EVENTS if one.streams else "application/json"
    answer = schemas[one.response_type]
    if one.streams:
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": answer}
        answer = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    described: Json = {
        "operationId": f"{one.name}_{one.method.lower()}",
        "summary": (one.answer.__doc__ or "").strip().split("\n")[0],
        "parameters": [],
        "responses": {
            "200": {"description": (one.response_type.__doc__ or "").strip(), "content": {media: {"schema": answer}}},
            "default": {
                "description": "Why it was not answered",
                "content": {problems.MEDIA_TYPE: {"schema": schemas[Problem]}},
            },
        },
    }
    if "{user}" in one.path:
        schema = msgspec.json.schema(UserId)
        described["parameters"].append({"name": "user", "in": "path", "required": True, "schema": schema})
    if one.request_type is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[one.request_type]}},
        }
    if keys and one.scope:
        described["security"] = [{"key": [one.scope]}]
    return described
