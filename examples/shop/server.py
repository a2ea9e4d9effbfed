"""The server of a shop: it knows who is logged in, and forwards completion to the service with the key and the user."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl

import httpx
from starlette.applications import Starlette
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

RATE, BURST = 20.0, 40.0  # requests of a user: per second in the long run, and at once
service = httpx.AsyncClient(base_url=os.environ["SERVICE"], headers={"Authorization": f"Bearer {os.environ['KEY']}"})
allowances: dict[str, tuple[float, float]] = {}  # user -> requests left, and at which time


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with service:
        yield


async def log_in(request: Request) -> Response:
    request.session["user"] = dict(parse_qsl((await request.body()).decode()))["user"]  # a real shop checks a password
    return RedirectResponse("/", 303)


async def forward(request: Request) -> Response:
    user, now = request.session.get("user"), time.monotonic()
    if request.headers.get("sec-fetch-site") != "same-origin" or (user is None and request.url.path == "/v1/accept"):
        return JSONResponse({"title": "a page of another site, or no log-in"}, 403)
    name = user or (request.client.host if request.client else "")
    left, since = allowances.get(name, (BURST, now))
    left = min(BURST, left + RATE * (now - since)) - 1
    allowances[name] = max(0.0, left), now
    if left < 0:
        return JSONResponse({"title": "too many requests"}, 429, {"Retry-After": "1"})
    answer = await service.post(request.url.path, json={**await request.json(), "user": user})
    return Response(answer.content, answer.status_code, {"Content-Type": answer.headers["Content-Type"]})


pages = StaticFiles(directory="pages", packages=[("factorcell.service", "page")], html=True)
forwarded = [Route(path, forward, methods=["POST"]) for path in ("/v1/complete", "/v1/accept")]
app = Starlette(routes=[Route("/log-in", log_in, methods=["POST"]), *forwarded, Mount("/", pages)], lifespan=lifespan)
app.add_middleware(SessionMiddleware, secret_key=os.environ["SECRET"])  # with HTTPS, add https_only=True
