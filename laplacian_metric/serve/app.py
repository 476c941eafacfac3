"""The service over HTTP: queries, health, reloading, and a page with a form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from laplacian_metric import __version__
from laplacian_metric.core.gallery import GalleryError
from laplacian_metric.serve.index import Reply
from laplacian_metric.serve.queries import QueryError
from laplacian_metric.serve.service import Service, UnavailableError

try:
    from fastapi import FastAPI, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from fastapi.staticfiles import StaticFiles
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware.trustedhost import TrustedHostMiddleware
except ImportError as error:
    raise ImportError('the service needs FastAPI: pip install ".[serve]"') from error

LOGGER = logging.getLogger(__name__)

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "testserver")
BINARY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}

Message = MutableMapping[str, Any]
Number = Annotated[float, Field(allow_inf_nan=False)]


class VectorQuery(BaseModel):
    """A query by its features."""

    model_config = ConfigDict(extra="forbid")

    vector: list[Number] = Field(max_length=100_000, description="The features of the query.")
    k: int = Field(default=5, ge=1, description="Items that are returned.")


class TextQuery(BaseModel):
    """A query by a text."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1)
    k: int = Field(default=5, ge=1, description="Items that are returned.")


class Health(BaseModel):
    """The state of the service."""

    status: Literal["ok", "stale"] = Field(description="stale where the folder could not be read again.")
    problem: str | None
    items: int
    dim: int = Field(description="The number of features of a query.")
    threshold: float = Field(description="From which probability on an answer is accepted.")
    takes: list[str] = Field(description="vector, image and text: what queries may be.")
    read: int = Field(description="How often the folder was read.")
    answered: int


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


class _TooLargeError(Exception):
    pass


class BodyLimit:
    """Refuses requests whose body is larger than a number of bytes, announced or not."""

    def __init__(self, app: Any, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = JSONResponse(
            {"detail": f"the body is larger than {self.limit} bytes: send less, or start with --max-body"},
            413,
        )
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self.limit:
            await refused(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise _TooLargeError
            return message

        async def unless_too_large(message: Message) -> None:
            if received <= self.limit:
                await send(message)

        with suppress(_TooLargeError):
            await self.app(scope, counted, unless_too_large)
        if received > self.limit:
            await refused(scope, receive, send)


def create_app(service: Service, *, watch: float = 2.0, hosts: tuple[str, ...] = LOOPBACK) -> FastAPI:
    """Return the service as an ASGI application.

    Args:
        service: what answers.
        watch: seconds between looks at the folder's pointer; 0 does not look.
        hosts: names that requests may call the service by; ("*",) for any. Others are refused, so that a page from
            elsewhere cannot reach a service on loopback by a name of its own.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch(watch)) if watch else None
        yield
        if watching is not None:
            watching.cancel()

    app = FastAPI(
        title="laplacian_metric",
        version=__version__,
        description="The nearest item, the probability that it is right, and a verdict.",
        lifespan=lifespan,
        docs_url=None,  # its page fetches scripts from elsewhere
        redoc_url=None,
        responses={code: {"model": Problem} for code in (400, 413, 422, 503, 504)},
    )
    app.add_middleware(BodyLimit, limit=service.limits.body)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    _add_problems(app)
    _add_queries(app, service)

    @app.get("/health")
    async def health() -> Health:
        """Return the state of the service."""
        index = service.index
        return Health(
            status="ok" if service.problem is None else "stale",
            problem=service.problem,
            items=await run_in_threadpool(len, index),
            dim=index.dim,
            threshold=index.trust.threshold,
            takes=service.inputs.takes,
            read=service.number,
            answered=service.answered,
        )

    @app.post("/reload")
    async def reload() -> dict[str, int]:
        """Read the folder again; queries that run are answered from the previous index."""
        try:
            return {"read": await run_in_threadpool(service.reload)}
        except (ValueError, OSError) as error:
            raise HTTPException(409, f"the folder cannot be read again: {error}") from error

    app.mount("/", StaticFiles(packages=[("laplacian_metric.serve", "assets")], html=True))
    return app


def _add_queries(app: FastAPI, service: Service) -> None:
    @app.post("/query/vector")
    async def vector(request: VectorQuery) -> Reply:
        """Search for a vector."""
        return await service.ask(service.row(request.vector), request.k)

    @app.post("/query/text")
    async def text(request: TextQuery) -> Reply:
        """Search for a text."""
        if len(request.text) > service.limits.text:
            raise QueryError(
                f"text has {len(request.text)} characters: at most {service.limits.text} are taken"
            )
        rows = await run_in_threadpool(service.inputs.of_texts, [request.text])
        return await service.ask(rows[0], request.k)

    @app.post("/query/image", openapi_extra={"requestBody": {**BINARY, "required": True}})
    async def image(request: Request, k: Annotated[int, Query(ge=1)] = 5) -> Reply:
        """Search for an image: the body is the content of an image file."""
        rows = await run_in_threadpool(service.inputs.of_image, await request.body())
        return await service.ask(rows[0], k)


def _add_problems(app: FastAPI) -> None:
    """Turn errors into short answers: what is wrong with a request, or that the service cannot answer now."""
    late = "the answer took longer than the service allows: ask again later"
    answers: list[tuple[type[Exception], int, Callable[[Any], str], dict[str, str] | None]] = [
        (QueryError, 422, str, None),
        (RequestValidationError, 422, _complaint, None),
        (UnavailableError, 503, str, {"retry-after": "1"}),
        (GalleryError, 503, str, {"retry-after": "5"}),
        (TimeoutError, 504, lambda error: late, None),
        (asyncio.TimeoutError, 504, lambda error: late, None),
    ]

    def handler(status: int, say: Callable[[Any], str], headers: dict[str, str] | None) -> Any:
        async def handle(request: Request, error: Exception) -> JSONResponse:
            return JSONResponse({"detail": say(error)}, status, headers=headers)

        return handle

    for kind, status, say, headers in answers:
        app.add_exception_handler(kind, handler(status, say, headers))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        LOGGER.error("%s failed", request.url.path, exc_info=error)
        return JSONResponse({"detail": "the service failed: its log says why"}, 500)


def _complaint(error: RequestValidationError) -> str:
    """Return what is wrong with a request, without the values, which may be anything."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in error.errors()[:5]
    )
