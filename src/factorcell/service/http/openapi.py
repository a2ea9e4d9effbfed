"""The OpenAPI description, generated from the operations and the messages."""

from collections.abc import Sequence
from typing import Any

import msgspec

from factorcell.io.extras import __version__
from factorcell.service.http import problems
from factorcell.service.http.messages import Problem, UserId
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.site import Operation

SCOPE_DESCRIPTIONS = {
    "complete": "request completions, scores, classes and generated texts",
    "learn": "accept texts of users",
    "users": "show, export, pause and delete the data of users",
    "admin": "import users and read the metrics",
}
SCHEMA_REFERENCE = "#/components/schemas/{name}"
EVENT_STREAM = "text/event-stream"  # the media type of server-sent events

Json = dict[str, Any]


def openapi(operations: Sequence[Operation] = OPERATIONS, needs_keys: bool = False) -> Json:
    """Return the OpenAPI description of the API.

    Args:
        operations: The operations to describe.
        needs_keys: Whether the service requires keys.
    """
    used_types = [
        message_type
        for operation in operations
        for message_type in (operation.request_type, operation.response_type)
        if message_type is not None
    ]
    message_types = [*dict.fromkeys(used_types), Problem]  # each type once, in the order of the operations
    references, components = msgspec.json.schema_components(message_types, ref_template=SCHEMA_REFERENCE)
    references_by_type = dict(zip(message_types, references, strict=True))
    paths: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(
            operation, references_by_type, needs_keys
        )
    description: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "factorcell",
            "version": __version__,
            "description": "Completes text as users type, learns accepted texts, and deletes user data on request.",
        },
        "paths": paths,
        "components": {"schemas": components},
        "x-problems": {
            kind: {"status": status, "title": title} for kind, (status, title) in problems.PROBLEM_KINDS.items()
        },
    }
    if needs_keys:
        scope_list = "; ".join(f"{scope}: {text}" for scope, text in SCOPE_DESCRIPTIONS.items())
        scheme = {"type": "http", "scheme": "bearer", "description": scope_list}
        description["components"]["securitySchemes"] = {"key": scheme}
    return description


def _describe_operation(operation: Operation, references_by_type: dict[Any, Json], needs_keys: bool) -> Json:
    media_type = EVENT_STREAM if operation.is_streaming else "application/json"
    schema = references_by_type[operation.response_type]
    if operation.is_streaming:
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
        schema = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    description: Json = {
        "operationId": f"{operation.name}_{operation.method.lower()}",
        "summary": (operation.handler.__doc__ or "").strip().split("\n")[0],
        "parameters": [],
        "responses": {
            "200": {
                "description": (operation.response_type.__doc__ or "").strip(),
                "content": {media_type: {"schema": schema}},
            },
            "default": {
                "description": "Why the request failed",
                "content": {problems.MEDIA_TYPE: {"schema": references_by_type[Problem]}},
            },
        },
    }
    if "{user}" in operation.path:
        id_schema = msgspec.json.schema(UserId)
        description["parameters"].append({"name": "user", "in": "path", "required": True, "schema": id_schema})
    if operation.request_type is not None:
        description["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references_by_type[operation.request_type]}},
        }
    if needs_keys and operation.scope:
        description["security"] = [{"key": [operation.scope]}]
    return description
