"""The application: every route there is, FastAPI around them for the rest, and the door in front.

Routes decode and encode with msgspec and are called straight from the door; FastAPI finds paths with parameters, tells
what is not found, and serves the OpenAPI page, which is written from the same routes.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from serving.http.admin import AdminRoutes
from serving.http.door import Door
from serving.http.endpoint import Endpoint
from serving.http.errors import BadRequest, HttpError, MethodNotAllowed, NotFound, error_answer
from serving.http.exposition import Exposition
from serving.http.generation import Generation
from serving.http.guard import Guard
from serving.http.health import Health, HealthAnswer
from serving.http.jobs import job_routes
from serving.http.kserve import KServe, Liveness, ModelMetadata, Readiness, ServerMetadata
from serving.http.kserve_tensors import InferAnswer, InferRequest
from serving.http.meters import Meters
from serving.http.one_pass import OnePass
from serving.http.openai_chat import Chat, ChatRequest
from serving.http.openai_completions import CompletionRequest, Completions
from serving.http.openai_embeddings import EmbeddingRequest, Embeddings
from serving.http.openai_models import Models
from serving.http.openai_types import ChatAnswer, CompletionAnswer, EmbeddingAnswer, ModelAnswer, ModelsAnswer
from serving.http.openapi import openapi_document
from serving.http.prompts import Prompts
from serving.http.routes import Route
from serving.http.service import Service
from serving.http.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest, Tokens
from serving.http.traces import Tracer, make_tracer


def make_app(service: Service, tracer: Tracer | None = None) -> Door:
    """An ASGI application. Without a tracer, one is made if the environment asks for traces."""
    meters = Meters(service.models)
    statistics = service.router.statistics
    health = Health(service, Exposition(meters, statistics, service.figures, service.add_counts))
    admin = AdminRoutes(service)
    routes = [*_health_routes(health), *_model_routes(service, meters), *_admin_routes(admin)]
    routes += job_routes(service)
    pages = list(service.pages(meters, admin.explain))
    guard = Guard(service.listen, service.settings.hosts)
    most = service.settings.open_requests
    endpoints = [Endpoint(route, guard, service.keys, lambda: meters.open > most) for route in [*routes, *pages]]
    app = _fastapi(routes, endpoints)
    return Door(app, endpoints, service.models, service.settings, meters, health, tracer or make_tracer(os.environ))


def _fastapi(routes: list[Route], endpoints: list[Endpoint]) -> FastAPI:
    document = openapi_document(routes)

    class App(FastAPI):
        def openapi(self) -> dict[str, Any]:
            return document

    app = App(title="Penstock", redoc_url=None, redirect_slashes=False, exception_handlers={HTTPException: _told})
    app.router.routes.extend(
        StarletteRoute(one.route.path, one, methods=[one.route.method], include_in_schema=False) for one in endpoints
    )
    return app


async def _told(request: StarletteRequest, error: Exception) -> Response:
    """What the router does not find, in the shape of all errors."""
    assert isinstance(error, HTTPException)
    path, method = request.scope["path"][:200], request.scope["method"]
    told: HttpError
    match error.status_code:
        case 404:
            told = NotFound(f"there is nothing at {path}; /docs lists what there is")
        case 405:
            told = MethodNotAllowed(f"{method} is not for {path}; /docs says what is")
        case _:
            told = BadRequest(str(error.detail))
    plain = {"error": str(told)} if path.startswith("/v2") else error_answer(told)
    return Response(msgspec.json.encode(plain), told.status, dict(error.headers or {}), "application/json")


def _health_routes(health: Health) -> list[Route]:
    def route(path: str, handle: Any, summary: str, **more: Any) -> Route:
        return Route(method="GET", path=path, handle=handle, summary=summary, tag="health", access="open", **more)

    both = (200, 503)
    return [
        route("/livez", health.live, "Whether the process answers", answer=HealthAnswer),
        route("/readyz", health.ready, "Whether every model can be served", answer=HealthAnswer, statuses=both),
        route("/health", health.health, "Whether some model can be served", answer=HealthAnswer, statuses=both),
        route("/metrics", health.metrics, "Figures for Prometheus", media="text/plain"),
    ]


def _model_routes(service: Service, meters: Meters) -> list[Route]:
    prompts, one_pass = Prompts(service.settings), OnePass(service, meters)
    generation, models, tokens = Generation(service, meters), Models(service), Tokens(service, prompts)
    chat = Chat(service, generation, prompts)
    completions = Completions(service, generation, prompts)
    embeddings = Embeddings(service, one_pass, prompts)

    def post(path: str, handle: Any, body: Any, answer: Any, summary: str, **more: Any) -> Route:
        return Route(
            method="POST", path=path, handle=handle, body=body, answer=answer, summary=summary, tag="openai", **more
        )

    def get(path: str, handle: Any, answer: Any, summary: str) -> Route:
        return Route(method="GET", path=path, handle=handle, answer=answer, summary=summary, tag="openai")

    return [
        post("/v1/chat/completions", chat, ChatRequest, ChatAnswer, "Answer a chat", streams=True),
        post("/v1/completions", completions, CompletionRequest, CompletionAnswer, "Continue a text", streams=True),
        post("/v1/embeddings", embeddings, EmbeddingRequest, EmbeddingAnswer, "Turn texts into vectors"),
        get("/v1/models", models.list, ModelsAnswer, "The models served, and how each is"),
        get("/v1/models/{model:path}", models.show, ModelAnswer, "One model"),
        post("/tokenize", tokens.tokenize, TokenizeRequest, TokenizeAnswer, "A text's tokens"),
        post("/detokenize", tokens.detokenize, DetokenizeRequest, DetokenizeAnswer, "The tokens' text"),
        *_kserve_routes(KServe(service, one_pass, prompts)),
    ]


def _kserve_routes(kserve: KServe) -> list[Route]:
    def get(path: str, handle: Any, answer: Any, summary: str, **more: Any) -> Route:
        return Route(
            method="GET",
            path=path,
            handle=handle,
            answer=answer,
            summary=summary,
            tag="kserve",
            plain_errors=True,
            **more,
        )

    routes = [
        get("/v2", kserve.server, ServerMetadata, "This server", access="open"),
        get("/v2/health/live", kserve.live, Liveness, "Whether the process answers", access="open"),
        get("/v2/health/ready", kserve.ready, Readiness, "Whether all is ready", access="open", statuses=(200, 503)),
    ]
    for version in ("", "/versions/{version}"):
        path = "/v2/models/{model}" + version
        infer = Route(
            method="POST",
            path=f"{path}/infer",
            handle=kserve.infer,
            body=InferRequest,
            answer=InferAnswer,
            summary="Answer in one pass",
            tag="kserve",
            any_type=True,
            plain_errors=True,
        )
        ready = get(f"{path}/ready", kserve.model_ready, Readiness, "Whether the model can be served")
        routes += [infer, ready, get(path, kserve.model, ModelMetadata, "The model's inputs and outputs")]
    return routes


def _admin_routes(admin: AdminRoutes) -> list[Route]:
    def route(method: Any, path: str, handle: Any, summary: str, body: Any = None) -> Route:
        return Route(method=method, path=path, handle=handle, summary=summary, tag="admin", access="admin", body=body)

    return [
        route("GET", "/admin/plan", admin.plan, "The plan that runs"),
        route("PUT", "/admin/plan", admin.apply_plan, "Bring the workers to this plan", dict[str, Any]),
        route("POST", "/admin/suggest", admin.suggest, "Look at once whether another plan were better", dict[str, Any]),
        route("GET", "/admin/explain/{kind}", admin.explain, "Why: plan, refusals, loans, moves, experts"),
        route("GET", "/admin/status", admin.status, "Who has which device, queues, attainment"),
    ]
