"""The page on which one types, and the box that a site puts on its own input: files as they are, with what guards them.

A browser asks each time whether a file is still the same, by its entity tag.
"""

import hashlib
import html
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

START = "index.html"
HINT = "Type something"  # what the empty box says
BOX = "factorcell.js"  # which other sites load
MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = (START, "page.css", "page.js", "learned.js", "picture.js", BOX, "icon.svg")
# Nothing but what is served here runs, looks or is asked; no text ever becomes code or markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


def routes(hint: str = "") -> list[Route]:
    """Those of the page and its files, which are read once; the `hint` says in the empty box what one types."""
    return [_route(name, hint or HINT) for name in FILES]


def read(name: str) -> bytes:
    """A file of the page."""
    return (resources.files("factorcell") / "service" / "page" / name).read_bytes()


def _route(name: str, hint: str) -> Route:
    content = read(name)
    if name == START:
        content = content.replace(HINT.encode(), html.escape(hint).encode(errors="replace"))
    tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Resource-Policy": "cross-origin" if name == BOX else "same-origin",
        "ETag": tag,
    }
    media = MEDIA[name[name.rindex(".") :]]

    async def answer(request: Request) -> Response:
        asked = request.headers.get("if-none-match", "")
        if tag in (one.strip().removeprefix("W/") for one in asked.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media)

    return Route("/" if name == START else f"/{name}", answer, methods=["GET"], name=name)
