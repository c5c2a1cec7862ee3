"""The server: four routes over the served models and a folder of static files. It keeps nothing about its visitors."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from nvdp import __version__
from nvdp.errors import InputError, unknown_name
from nvdp.posteriors.suggestions import SAMPLES
from nvdp.web.limits import (
    RETRY,
    AllowedHosts,
    BodyLimit,
    Pool,
    QueueFull,
    SecurityHeaders,
    error_answer,
    first_error,
    unless_gone,
)
from nvdp.web.schemas import (
    AdaptAnswer,
    AdaptRequest,
    ClassifyAnswer,
    ClassifyRequest,
    ErrorAnswer,
    ModelEntry,
    SuggestAnswer,
)
from nvdp.web.served import Served, ServedClassifier, ServedModel, served_models
from nvdp.web.workers import answer

STATIC = Path(__file__).parent / "static"
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorAnswer, "description": text}
    for code, text in {
        400: "not JSON",
        404: "no such model",
        413: "the body is too long",
        422: "a value of a wrong type, size or range",
        503: "too many requests are waiting",
    }.items()
}


def create_app(
    served: Mapping[str, Served] | None = None, pool: Pool | None = None, hosts: Iterable[str] = ()
) -> FastAPI:
    """The application.

    Args:
        served: Models by name; the pretrained ones, if left out.
        pool: Where they compute.
        hosts: Names with a dot under which it is asked; addresses and names without one need no mention.

    Returns:
        An ASGI application.

    >>> sorted(path for path in create_app().openapi()["paths"])
    ['/api/adapt', '/api/classify', '/api/models', '/api/suggest']
    """
    models = served_models() if served is None else served
    workers = Pool() if pool is None else pool

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()

    app = FastAPI(
        title="nvdp",
        version=__version__,
        description="Adapt a model to a few points and predict, with an uncertainty, at once.",
        docs_url=None,  # FastAPI's own page asks a CDN for its script; /docs is ours
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.add_middleware(BodyLimit)
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)
    app.add_middleware(AllowedHosts, names=hosts)
    app.add_middleware(SecurityHeaders)
    _answer_errors(app)

    def named(name: str) -> Served:
        if name not in models:
            raise HTTPException(404, str(unknown_name("model", name, models)))
        return models[name]

    def regression(name: str) -> ServedModel:
        model = named(name)
        if not isinstance(model, ServedModel):
            raise InputError(f"'{name}' is a classifier; ask /api/classify")
        return model

    async def computed(request: Request, dear: bool, name: str, method: str, *arguments: Any) -> Response:
        visitor = request.client.host if request.client else ""
        remote = partial(answer, name, method, arguments)
        work = workers.run(lambda: to_json(getattr(models[name], method)(*arguments)), visitor, dear, remote)
        try:
            body = await unless_gone(request.receive, work)
        except asyncio.CancelledError:  # as the server stops
            return error_answer(503, "the server is stopping", RETRY)
        return Response(body, 200 if body else 499, media_type="application/json")

    @app.get("/api/models", response_model=list[ModelEntry])
    async def list_models() -> list[ModelEntry]:
        """The models that can be asked."""
        return [model.entry for model in models.values()]

    @app.post("/api/adapt", response_model=AdaptAnswer, responses=ERRORS)
    async def adapt(request: AdaptRequest, connection: Request) -> Response:
        """Adapt a model to a context and predict at the query: mean, standard deviation, functions, dropout rates."""
        model = regression(request.model)
        points = request.arrays(model.entry)
        dear = model.is_dear(len(request.x), len(request.query), request.samples)
        return await computed(connection, dear, request.model, "answer", *points, request.samples, request.seed)

    @app.post("/api/suggest", response_model=SuggestAnswer, responses=ERRORS)
    async def suggest(request: AdaptRequest, connection: Request) -> Response:
        """Where to observe next: the query point at which the functions of the posterior differ most."""
        model = regression(request.model)
        points = request.arrays(model.entry)
        dear = model.is_dear(len(request.x), len(request.query), SAMPLES)
        return await computed(connection, dear, request.model, "suggest", *points, request.seed)

    @app.post("/api/classify", response_model=ClassifyAnswer, responses=ERRORS)
    async def classify(request: ClassifyRequest, connection: Request) -> Response:
        """Classify pictures from a few labelled ones: a probability for every class, and how sure it is."""
        model = named(request.model)
        if not isinstance(model, ServedClassifier):
            raise InputError(f"'{request.model}' is no classifier; ask /api/adapt")
        pictures = request.arrays(model.entry.x_dim)
        given = (*pictures, request.samples, request.seed)
        return await computed(connection, request.is_dear(), request.model, "classify", *given)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(STATIC / "docs.html")

    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        return error_answer(422, first_error(list(error.errors())))

    @app.exception_handler(InputError)
    async def bad_input(request: Request, error: InputError) -> Response:
        return error_answer(422, str(error))

    @app.exception_handler(QueueFull)
    async def full(request: Request, error: QueueFull) -> Response:
        return error_answer(503, str(error), {"Retry-After": str(error.seconds)})

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        return error_answer(error.status_code, str(error.detail), dict(error.headers or {}))
