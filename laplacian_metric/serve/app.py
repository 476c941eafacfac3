"""The service over HTTP: queries, health, reloading, and a page with a form."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from laplacian_metric import __version__
from laplacian_metric.retrieval.engines.engine import EngineError, EngineUnreachableError
from laplacian_metric.retrieval.replies import Reply
from laplacian_metric.retrieval.retriever import Retriever
from laplacian_metric.serve.queries import Embedded, QueryError
from laplacian_metric.serve.service import Options, OverloadedError, Service

try:
    from fastapi import FastAPI, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware.trustedhost import TrustedHostMiddleware
except ImportError as error:
    raise ImportError('the service needs FastAPI: pip install "laplacian-metric[serve]"') from error

LOGGER = logging.getLogger(__name__)

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "testserver")
PAGES = {"index.html": "text/html", "serve.js": "text/javascript", "serve.css": "text/css"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:"

Message = MutableMapping[str, Any]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Asked(BaseModel):
    """What every query may say."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(default=5, ge=1, description="Items that are returned.")
    order: Literal["cosine", "expected distance", "match probability"] = "cosine"
    all: bool = Field(default=False, description="Return items for refused queries too.")
    where: dict[str, str | int | bool | list[str | int | bool]] | None = Field(
        default=None, description="Values by column, for collections in an engine."
    )


class VectorQuery(Asked):
    """A query by its embedding, or by its features where the index has a Trust."""

    embedding: list[Number] | None = Field(default=None, max_length=100_000)
    features: list[Number] | None = Field(default=None, max_length=100_000)
    kappa: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    uncertainty: float | None = Field(default=None, allow_inf_nan=False)


class TextQuery(Asked):
    """A query by a text."""

    text: str = Field(min_length=1)


class Neighbour(BaseModel):
    """An item, its cosine similarity to the query, and the probability that both are of one class."""

    id: str
    similarity: float
    probability: float | None


class Answered(BaseModel):
    """The answer to a query."""

    answered: bool | None = Field(description="Whether it is answered; null where nothing is calibrated.")
    refusal: str | None = Field(description="Why it is refused.")
    reason: str | None = Field(description="trusted, unlike anything seen or no reliable match.")
    because: str | None = Field(description="The input that spoke loudest for the reason.")
    probability: float | None = Field(description="That the nearest item is right.")
    label: str | None = Field(description="The label of the nearest item.")
    neighbours: list[Neighbour]

    @staticmethod
    def of(reply: Reply) -> Answered:
        """Return a reply as plain values."""
        return Answered(
            answered=reply.answered,
            refusal=reply.reason if reply.answered is False else None,
            reason=reply.verdict,
            because=reply.because,
            probability=reply.probability,
            label=reply.label,
            neighbours=[
                Neighbour(id=match.item, similarity=match.similarity, probability=match.probability)
                for match in reply.matches
            ],
        )


class Health(BaseModel):
    """How the service is."""

    status: Literal["ok", "stale"] = Field(description="stale where the folder could not be read again.")
    problem: str | None
    items: int
    dim: int
    features: int | None = Field(description="The number of features that a query needs; null without Trust.")
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
        watch: seconds between looks at the folder's manifest; 0 does not look.
        hosts: names that requests may call the service by; ("*",) for any. Others are refused, so that a page from
            elsewhere cannot reach a service on loopback by a name of its own.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch(watch)) if watch else None
        yield
        if watching is not None:
            watching.cancel()

    refusals: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem} for code in (400, 413, 422, 503, 504)
    }
    app = FastAPI(
        title="laplacian_metric",
        version=__version__,
        description="Neighbours with trust, reason and refusal.",
        lifespan=lifespan,
        docs_url=None,  # its page fetches scripts from elsewhere
        redoc_url=None,
        responses=refusals,
    )
    app.add_middleware(BodyLimit, limit=service.limits.body)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    _add_problems(app)
    _add_pages(app)
    _add_queries(app, service)

    @app.get("/health")
    async def health() -> Health:
        """Return how the service is."""
        retriever, inputs = service.retriever, service.inputs
        takes = ["vector"]
        if inputs is not None:
            takes += [
                name for name, taken in (("image", inputs.takes_images), ("text", inputs.takes_text)) if taken
            ]
        return Health(
            status="ok" if service.problem is None else "stale",
            problem=service.problem,
            items=await run_in_threadpool(len, retriever),
            dim=retriever.dim,
            features=None if retriever.trust is None else retriever.trust.gallery.width,
            takes=takes,
            read=service.number,
            answered=service.answered,
        )

    @app.post("/reload")
    async def reload() -> dict[str, int]:
        """Read the folder again; queries that run are answered from what was there before."""
        try:
            return {"read": await run_in_threadpool(service.reload)}
        except (ValueError, OSError) as error:
            raise HTTPException(409, f"the folder cannot be read again: {error}") from error

    return app


def _add_queries(app: FastAPI, service: Service) -> None:
    async def answered(query: Embedded, request: Asked) -> Answered:
        if request.k > service.limits.items:
            raise QueryError(f"k is {request.k}: at most {service.limits.items} items are returned")
        if request.where is not None and isinstance(service.retriever, Retriever):
            raise QueryError(
                "where is given: an index has no columns to filter by, a collection in an engine has"
            )
        where = None if request.where is None else json.dumps(request.where, sort_keys=True)
        return Answered.of(await service.ask(query, Options(request.k, request.order, request.all, where)))

    @app.post("/query/vector")
    async def vector(request: VectorQuery) -> Answered:
        """Search for a vector."""
        names = ("embedding", "features", "kappa", "uncertainty")
        return await answered(service.of_vector({name: getattr(request, name) for name in names}), request)

    @app.post("/query/text")
    async def text(request: TextQuery) -> Answered:
        """Search for a text."""
        if len(request.text) > service.limits.text:
            raise QueryError(
                f"text has {len(request.text)} characters: at most {service.limits.text} are taken"
            )
        if service.inputs is None:
            raise QueryError(
                "texts are not taken: start the service with --text, the sentence encoder of the index"
            )
        return await answered(
            await run_in_threadpool(service.inputs.of_text, service.retriever, request.text), request
        )

    content = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}

    @app.post("/query/image", openapi_extra={"requestBody": {**content, "required": True}})
    async def image(request: Request, k: Annotated[int, Query(ge=1)] = 5, all: bool = False) -> Answered:
        """Search for an image: the body is the content of an image file."""
        if service.inputs is None:
            raise QueryError("images are not taken: start the service with --model, the model of the index")
        body = await request.body()
        query = await run_in_threadpool(service.inputs.of_image, service.retriever, body)
        return await answered(query, Asked(k=k, all=all))


def _add_pages(app: FastAPI) -> None:
    folder = files("laplacian_metric.serve") / "assets"
    contents = {name: (folder / name).read_bytes() for name in PAGES}

    def page(name: str) -> Response:
        headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
        return Response(contents[name], media_type=PAGES[name], headers=headers)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in PAGES:
            raise HTTPException(404, f"there is no {name}")
        return page(name)


def _add_problems(app: FastAPI) -> None:
    """Turn errors into short answers: what a request does wrong, or that the service cannot answer now."""

    def answers(kind: type[Exception], status: int, say: Callable[[Any], str] = str, **headers: str) -> None:
        @app.exception_handler(kind)
        async def handle(request: Request, error: Exception) -> JSONResponse:
            return JSONResponse({"detail": say(error)}, status, headers=headers or None)

    answers(QueryError, 422)
    answers(EngineError, 422)
    answers(EngineUnreachableError, 503, retry_after="5")
    answers(OverloadedError, 503, retry_after="1")
    answers(
        TimeoutError, 504, lambda error: "the answer took longer than the service allows: ask again later"
    )
    answers(
        asyncio.TimeoutError,
        504,
        lambda error: "the answer took longer than the service allows: ask again later",
    )
    answers(RequestValidationError, 422, _complaint)

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
