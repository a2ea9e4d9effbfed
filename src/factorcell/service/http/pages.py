"""The demo page, the script of the search box for other sites, and the API page.

The service reads each file once. A browser that has cached a file sends the entity tag of the file, to ask whether the
file has changed.
"""

import hashlib
import html
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

HINT = "Type something"  # default placeholder of the empty search box
BOX = "factorcell.js"  # the script of the search box, which other sites may load
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
NO_EMBEDDING = "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Pages load and request only files of this server, and no text can become code or markup.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
    f"{NO_EMBEDDING}; require-trusted-types-for 'script'; trusted-types 'none'"
)
DOCS_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{NO_EMBEDDING}"
)
# For each request path: the folder and the name of the file, and its content security policy.
FILES = {
    "/": ("service/page", "index.html", PAGE_POLICY),
    **{
        f"/{name}": ("service/page", name, PAGE_POLICY)
        for name in ("page.css", "page.js", "saved_texts.js", "chart.js", BOX, "icon.svg")
    },
    "/docs": ("assets", "api.html", DOCS_POLICY),
    "/docs.js": ("assets", "api.js", DOCS_POLICY),
    "/docs.css": ("assets", "api.css", DOCS_POLICY),
}


def routes(hint: str = "") -> list[Route]:
    """Return the routes of all files of the pages; `hint` is the placeholder of the empty search box."""
    return [_route(path, folder, name, policy, hint or HINT) for path, (folder, name, policy) in FILES.items()]


def _route(path: str, folder: str, name: str, policy: str, hint: str) -> Route:
    content = resources.files("factorcell").joinpath(folder, name).read_bytes()
    if name == "index.html":
        content = content.replace(HINT.encode(), html.escape(hint).encode(errors="replace"))
    entity_tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    _, _, extension = name.rpartition(".")
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
        return Response(content, headers=headers, media_type=MEDIA_TYPES[extension])

    return Route(path, respond)
