"""The server: four routes over the served models and a folder of static files. It keeps nothing about its visitors."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from jaxtyping import Float
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

import nvdp
from nvdp.errors import InputError, unknown_name
from nvdp.web.answers import Answer, class_answer
from nvdp.web.limits import BodyLimit, Pool, QueueFull, SecurityHeaders, error_answer, first_error
from nvdp.web.schemas import (
    AdaptAnswer,
    AdaptRequest,
    ClassifyAnswer,
    ClassifyRequest,
    ModelEntry,
    Refusal,
    SuggestAnswer,
)
from nvdp.web.served import Classifies, Predicts, Served, served_models

STATIC = Path(__file__).parent / "static"
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal, "description": text}
    for code, text in {
        400: "not JSON",
        404: "no such model",
        413: "the body is too long",
        422: "a value of a wrong type, size or range",
        503: "too many requests are waiting",
    }.items()
}


def create_app(served: Mapping[str, Served] | None = None, pool: Pool | None = None) -> FastAPI:
    """The application over these models, or over the pretrained ones.

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
        version=nvdp.__version__,
        description="Adapt a model to a few points and predict, with an uncertainty, at once.",
        docs_url=None,  # FastAPI's own page asks a CDN for its script; /docs is ours
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.add_middleware(BodyLimit)
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)
    app.add_middleware(SecurityHeaders)
    _add_refusals(app)

    def named(name: str) -> Served:
        if name not in models:
            raise HTTPException(404, str(unknown_name("model", name, models)))
        return models[name]

    async def ask(request: AdaptRequest, form: Callable[[Answer, Float[np.ndarray, "query x"]], Any]) -> Response:
        model = named(request.model)
        if not isinstance(model, Predicts):
            raise InputError(f"'{request.model}' is a classifier; ask /api/classify")
        entry = model.entry
        x, y, query = request.arrays(entry.x_dim, entry.y_dim, entry.most_context)

        def job() -> bytes:
            return to_json(form(model.answer(x, y, query, request.samples, request.seed), query))

        return Response(await workers.run(job), media_type="application/json")

    @app.get("/api/models", response_model=list[ModelEntry])
    async def list_models() -> list[ModelEntry]:
        """The models that can be asked."""
        return [model.entry for model in models.values()]

    @app.post("/api/adapt", response_model=AdaptAnswer, responses=REFUSALS)
    async def adapt(request: AdaptRequest) -> Response:
        """Adapt a model to a context and predict at the query: mean, deviation, sampled functions, dropout rates."""
        return await ask(request, lambda answer, query: answer.to_json())

    @app.post("/api/suggest", response_model=SuggestAnswer, responses=REFUSALS)
    async def suggest(request: AdaptRequest) -> Response:
        """Where to look next: the query point that the model is least sure of."""
        return await ask(request, lambda answer, query: answer.most_uncertain(query))

    @app.post("/api/classify", response_model=ClassifyAnswer, responses=REFUSALS)
    async def classify(request: ClassifyRequest) -> Response:
        """Name pictures from a few labelled ones: a probability for every class, and how sure that is."""
        model = named(request.model)
        if not isinstance(model, Classifies):
            raise InputError(f"'{request.model}' is no classifier; ask /api/adapt")
        pictures = request.arrays(model.entry.x_dim)

        def job() -> bytes:
            return to_json(class_answer(model.classify(*pictures, request.samples, request.seed), request.samples))

        return Response(await workers.run(job), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(STATIC / "docs.html")

    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        return error_answer(422, first_error(list(error.errors())))

    @app.exception_handler(InputError)
    async def bad_input(request: Request, error: InputError) -> Response:
        return error_answer(422, str(error))

    @app.exception_handler(QueueFull)
    async def full(request: Request, error: QueueFull) -> Response:
        return error_answer(503, str(error), {"Retry-After": "1"})

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        return error_answer(error.status_code, str(error.detail), dict(error.headers or {}))
