"""The pages and their files: the page to type in, the box for other sites, and the page that documents the API.

Files are read once; a browser asks each time whether a file is still the same, by its entity tag.
"""

import hashlib
import html
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

HINT = "Type something"  # in the empty box
BOX = "factorcell.js"  # which other sites load
MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
SAME = "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Nothing but what is served here is loaded or asked; no text ever becomes code or markup.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
    f"{SAME}; require-trusted-types-for 'script'; trusted-types 'none'"
)
DOCS_POLICY = f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{SAME}"
# Path of a request -> folder and name of the file, its content security policy.
FILES = {
    "/": ("service/page", "index.html", PAGE_POLICY),
    **{
        f"/{name}": ("service/page", name, PAGE_POLICY)
        for name in ("page.css", "page.js", "learned.js", "picture.js", BOX, "icon.svg")
    },
    "/docs": ("assets", "api.html", DOCS_POLICY),
    "/docs.js": ("assets", "api.js", DOCS_POLICY),
    "/docs.css": ("assets", "api.css", DOCS_POLICY),
}


def routes(hint: str = "") -> list[Route]:
    """Return the routes of all files; the `hint` is what the empty box says."""
    return [_route(path, *file, hint or HINT) for path, file in FILES.items()]


def _route(path: str, folder: str, name: str, policy: str, hint: str) -> Route:
    content = resources.files("factorcell").joinpath(folder, name).read_bytes()
    if name == "index.html":
        content = content.replace(HINT.encode(), html.escape(hint).encode(errors="replace"))
    tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "cross-origin" if name == BOX else "same-origin",
        "ETag": tag,
    }

    async def answer(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if tag in (one.strip().removeprefix("W/") for one in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=MEDIA[name.rpartition(".")[2]])

    return Route(path, answer)
