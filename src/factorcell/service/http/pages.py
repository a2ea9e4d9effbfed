"""The OpenAPI description, the pages, and the script of the search box for other sites.

The service reads each file once. A browser that has cached a file sends the entity tag of the file, to ask whether the
file has changed.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from factorcell.io.extras import __version__
from factorcell.service.demo_page import BOX, DEVICE_POLICY, FOLDER, INDEX, device_files, page_files
from factorcell.service.http import problems
from factorcell.service.http.operations import OPERATIONS, Operation
from factorcell.service.messages import Health, Problem, UserId

PATHS = {INDEX: "/", "docs.html": "/docs"}  # of pages; the path of another file is its name
SCOPE_DESCRIPTIONS = {
    "complete": "request completions",
    "learn": "accept texts of users",
    "users": "show, export, pause and delete the data of users",
    "admin": "import users and read the metrics",
}
SCHEMA_REFERENCE = "#/components/schemas/{name}"
DEVICE = "device/"  # where the service serves an exported model
MEDIA_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "json": "application/json",
    "wasm": "application/wasm",
}
# Pages cannot be embedded, and their forms and relative addresses cannot be redirected.
OWN_PAGE = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Pages load and request only files of this server, and no text can become code or markup.
PAGE_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; {OWN_PAGE}; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

Json = dict[str, Any]


def openapi(needs_keys: bool = False) -> Json:
    """Return the OpenAPI description of the API, which depends on whether the service requires keys."""
    used_types = [message for operation in OPERATIONS for message in (operation.request_type, operation.response_type)]
    # Each type once, in the order of the operations.
    message_types = [*(message for message in dict.fromkeys(used_types) if message is not None), Problem]
    references, components = msgspec.json.schema_components(message_types, ref_template=SCHEMA_REFERENCE)
    references_by_type = dict(zip(message_types, references, strict=True))
    paths: Json = {}
    for operation in OPERATIONS:
        description = _describe_operation(operation, references_by_type, needs_keys)
        paths.setdefault(operation.path, {})[operation.method.lower()] = description
    description = {
        "openapi": "3.1.0",
        "info": {
            "title": "factorcell",
            "version": __version__,
            "description": "Completes text as users type, learns accepted texts, and deletes user data on request.",
        },
        "servers": [{"url": "."}],  # the folder of this description: a proxy may serve it under a prefix
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
    description: Json = {
        "operationId": f"{operation.name}_{operation.method.lower()}",
        "summary": (operation.handler.__doc__ or "").strip().split("\n")[0],
        "parameters": [],
        "responses": {
            "200": {
                "description": (operation.response_type.__doc__ or "").strip(),
                "content": {"application/json": {"schema": references_by_type[operation.response_type]}},
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
        body = {"application/json": {"schema": references_by_type[operation.request_type]}}
        description["requestBody"] = {"required": True, "content": body}
    if needs_keys and operation.scope:
        description["security"] = [{"key": [operation.scope]}]
    return description


def routes(needs_keys: bool = False, device: Path | None = None) -> list[Route]:
    """Return the routes of the OpenAPI description and of all files.

    Args:
        needs_keys: Whether requests need keys.
        device: The folder of an exported model with which the demo page completes on the device of its user.
    """
    description = openapi(needs_keys)
    contents = page_files("" if device is None else DEVICE)
    if device is not None:
        contents |= {f"{DEVICE}{name}": content for name, content in device_files(device).items()}
    contents["docs.css"] = (FOLDER / "page" / "docs.css").read_bytes()
    template = jinja2.Template((FOLDER / "page" / "docs.html").read_text("utf-8"), autoescape=True, trim_blocks=True)
    operations = [(path, *item) for path, methods in description["paths"].items() for item in methods.items()]
    docs = template.render(description, operations=operations, problems=description["x-problems"])
    contents["docs.html"] = docs.encode()
    policy = PAGE_POLICY if device is None else f"{DEVICE_POLICY}; {OWN_PAGE}"
    constants = {"/healthz": msgspec.json.encode(Health()), "/openapi.json": msgspec.json.encode(description)}
    endpoints = {path: partial(_respond_with_json, content) for path, content in constants.items()}
    return [
        *(Route(path, endpoint) for path, endpoint in endpoints.items()),
        *(_file_route(name, content, policy) for name, content in contents.items()),
    ]


async def _respond_with_json(content: bytes, _: Request) -> Response:
    return Response(content, media_type="application/json")


def _file_route(name: str, content: bytes, policy: str) -> Route:
    entity_tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    media_type = MEDIA_TYPES.get(Path(name).suffix[1:], "application/octet-stream")
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "cross-origin" if name == BOX else "same-origin",
        "ETag": entity_tag,
    }

    async def respond(request: Request) -> Response:
        cached_tags = request.headers.get("if-none-match", "").split(",")
        if entity_tag in (tag.strip().removeprefix("W/") for tag in cached_tags):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return Route(PATHS.get(name, f"/{name}"), respond)
