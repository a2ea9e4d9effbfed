"""The server of a shop: it knows who is logged in, and forwards completion to the service with the key and the user."""

import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

service = httpx.AsyncClient(base_url=os.environ["SERVICE"], headers={"Authorization": f"Bearer {os.environ['KEY']}"})
counts = Counter[tuple[str, int]]()  # of requests, by user and second


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with service:
        yield


async def post(request: Request) -> Response:
    content, path, user = await request.json(), request.url.path, request.session.get("user")
    if not request.headers.get("origin", "").endswith(f"//{request.headers['host']}"):
        return JSONResponse({"title": "a page of another site"}, 403)
    if path == "/session":  # with a user: logs in, or with null out; a real shop checks a password
        user = request.session["user"] = content.get("user", user)
        return JSONResponse({"user": user})
    if content.get("user") != user:  # the page was opened by another user, whose texts must not be saved for this one
        return JSONResponse({"title": "another user is logged in; load the page again"}, 409)
    key = user or (request.client.host if request.client else ""), int(time.time())
    if len(counts) > 100_000:
        counts.clear()
    counts[key] += 1
    if counts[key] > 30:  # requests of a user per second
        return JSONResponse({"title": "too many requests"}, 429, {"Retry-After": "1"})
    answer = await service.post(path, json=content)
    return Response(answer.content, answer.status_code, media_type=answer.headers["Content-Type"])


posts = [Route(path, post, methods=["POST"]) for path in ("/session", "/v1/complete", "/v1/accept")]
pages = Mount("/", StaticFiles(directory="pages", html=True))
on_failure = {httpx.HTTPError: lambda *_: JSONResponse({"title": "the service does not answer"}, 503)}
app = Starlette(routes=[*posts, pages], exception_handlers=on_failure, lifespan=lifespan)
app.add_middleware(SessionMiddleware, secret_key=os.environ["SECRET"])  # with HTTPS, add https_only=True
