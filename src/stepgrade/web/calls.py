"""One request on its way: what it may hold, who sends it, what it may do, and how its answer is written."""

from __future__ import annotations

import csv
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import anyio
import msgspec
from msgspec import Struct, structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from stepgrade.decoding import from_json
from stepgrade.errors import BadHistory, BadValue, KeyTaken, NoSuchRun, NotMeasured, StepgradeError
from stepgrade.report.names import shortened
from stepgrade.store.history import History
from stepgrade.store.pool import Pool
from stepgrade.store.team import Project, Role, Team
from stepgrade.web import access
from stepgrade.web.access import Door, Identity, Limiter, Refused
from stepgrade.web.housekeeping import Housekeeping
from stepgrade.web.reading import read_body
from stepgrade.web.settings import ServerSettings
from stepgrade.web.traces import ReceivedTrace, Scoring, temporary_folder
from stepgrade.web.worker import LOG

T = TypeVar("T")
_MOST_FIELDS = 50
_MOST_FORM = 64 << 10
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Endpoint(Struct, frozen=True, kw_only=True):
    """One thing that the server does: where, who may ask for it, and what goes in and out.

    `needs` None is open to everybody. A path without a project needs the role in every project, unless
    `any_project` lets those in who have it in one.
    """

    method: str
    path: str
    handle: Callable[[Any], Response]  # of a Call, or of the request itself where it is direct
    needs: Role | None
    summary: str
    any_project: bool = False
    query: tuple[str, ...] = ()
    body: Any = None  # the type of a JSON body
    answer: Any = None
    status: int = 200
    precheck: Callable[[Call], Response | None] | None = None  # of a profile, before it is scored
    is_direct: bool = False  # needs neither the store nor a thread, so that it is answered whatever they do

    @property
    def is_page(self) -> bool:
        """Return whether people look at it, in a browser."""
        return not self.path.startswith(("/api/", "/healthz", "/readyz", "/metrics", "/openapi.json"))

    def most_bytes(self, settings: ServerSettings) -> int:
        """Return how long a body may be."""
        return _MOST_FORM if self.is_page else settings.most_bytes


class Server:
    """What all requests share."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.pool = Pool(settings.place)
        self.door = Door(settings)
        self.housekeeping = Housekeeping(self.pool, settings)
        self.uploads = Limiter(settings.uploads_per_minute)
        self.limiter = anyio.CapacityLimiter(8)
        self.scoring = Scoring(settings)
        self.started = time.time()
        self.counts: dict[tuple[str, str, int], int] = {}
        self.seconds: dict[str, float] = {}
        self.uploaded = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the store before anybody asks, so that a wrong place is told at the start."""
        with self.pool.history():
            pass

    def count(self, endpoint: Endpoint, status: int, seconds: float) -> None:
        """Remember that a request was answered."""
        with self._lock:
            key = (endpoint.method, endpoint.path, status)
            self.counts[key] = self.counts.get(key, 0) + 1
            self.seconds[endpoint.path] = self.seconds.get(endpoint.path, 0.0) + seconds


class Call(Struct, frozen=True, kw_only=True):
    """A request of somebody who may make it."""

    server: Server
    endpoint: Endpoint
    request: Request
    who: Identity
    history: History
    team: Team
    project: Project | None
    body: bytes = b""
    trace: ReceivedTrace | None = None

    def query(self, name: str) -> str | None:
        """Return a field of the address; None when it is empty."""
        return self.request.query_params.get(name) or None

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number of the address, from 1 to `most`."""
        text = self.query(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and 1 <= int(text) <= most):
            raise Refused(400, f"{name} is a whole number from 1 to {most:,}")
        return int(text)

    def place(self, name: str = "number") -> int:
        """Return the number in the path."""
        text = str(self.request.path_params[name])
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise Refused(404, "there is nothing here")
        return int(text)

    def form(self) -> dict[str, str]:
        """Return the fields of a form."""
        return dict(parse_qsl(self.body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS))

    def read(self, kind: Any) -> Any:
        """Return the JSON body as its type."""
        try:
            return from_json(self.body, kind)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise Refused(400, f"the body is not as it should be: {shortened(str(error), 200)}") from None

    def note(self, what: str, subject: str = "") -> None:
        """Write down what was done."""
        self.team.note(
            self.who.name, what, project=self.project.name if self.project else None, subject=subject
        )


def json_answer(value: Any, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def table_answer(call: Call, rows: Sequence[Mapping[str, Any]], name: str) -> Response | None:
    """Return a table as CSV or JSON when the address asks for it; None when a page is asked for."""
    to = call.query("format")
    if to == "json":
        return json_answer(rows)
    if to != "csv":
        return None
    text = io.StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    if isinstance(value, dict | list | tuple):
        value = msgspec.json.encode(value).decode()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


async def in_thread(limiter: anyio.CapacityLimiter, function: Callable[..., T], *args: Any) -> T:
    """Return what a function that blocks returns; when the server stops it is not waited for."""
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=limiter)


async def answer(server: Server, endpoint: Endpoint, request: Request) -> Response:
    """Return the answer to a request; what goes wrong is an answer too, and tells nothing of the inside."""
    begun = time.perf_counter()
    try:
        access.check_names(request, server.settings)
        if endpoint.is_direct:
            response = endpoint.handle(request)
        elif endpoint.method == "GET":
            response = await in_thread(server.limiter, _answered, server, endpoint, request)
        else:
            access.check_origin(request, server.settings)
            # Who may not send anything is told so before it is read.
            who = await in_thread(server.limiter, _let_in, server, endpoint, request)
            if endpoint.precheck is not None:
                response = await _scored(server, endpoint, request, who)
            else:
                body = await read_body(request, endpoint.most_bytes(server.settings))
                response = await in_thread(server.limiter, _answered, server, endpoint, request, body)
    except Refused as refused:
        response = problem(endpoint, request, refused.status, refused.problem)
        if refused.retry_after_s is not None:
            response.headers["retry-after"] = str(refused.retry_after_s)
    except ClientDisconnect:
        response = problem(endpoint, request, 400, "the body ends too early")
    except anyio.get_cancelled_exc_class():
        response = problem(endpoint, request, 503, "the server stops")
    seconds = time.perf_counter() - begun
    server.count(endpoint, response.status_code, seconds)
    response.headers["server-timing"] = f"all;dur={seconds * 1000:.1f}"
    return with_headers(response, server.settings)


async def _scored(server: Server, endpoint: Endpoint, request: Request, who: Identity) -> Response:
    """Return the answer to a profile that is sent; only the processes for it are kept busy meanwhile."""
    if not server.settings.accepts_traces:
        raise Refused(403, "this server takes scorecards alone")
    if waits := server.uploads.take(who.name):
        raise Refused(429, "too many uploads", retry_after_s=int(waits) + 1)
    with server.scoring.place(who.name), temporary_folder() as folder:
        trace = await server.scoring.receive(request, folder)
        ask = partial(_answered, server, endpoint, request)
        known = await in_thread(server.limiter, ask, b"", trace, endpoint.precheck)
        if isinstance(known, Response):
            return known
        device = request.query_params.get("device") or None
        card = await in_thread(server.scoring.limiter, server.scoring.score, trace, device)
        kept: Response = await in_thread(server.limiter, ask, b"", structs.replace(trace, card=card))
        return kept


def with_headers(response: Response, settings: ServerSettings) -> Response:
    """Return an answer with what tells browsers to trust nobody else."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("content-security-policy", _POLICY)
    if settings.is_secure:
        response.headers["strict-transport-security"] = "max-age=31536000"
    return response


def _let_in(server: Server, endpoint: Endpoint, request: Request) -> Identity:
    if endpoint.needs is None:
        return access.NOBODY
    with refusals(), server.pool.history() as history:
        team = Team(history.database)
        who = server.door.identify(request, team)
        admitted(endpoint, who, team, request.path_params.get("project"))
        return who


def _answered(
    server: Server,
    endpoint: Endpoint,
    request: Request,
    body: bytes = b"",
    trace: ReceivedTrace | None = None,
    handle: Callable[[Call], Any] | None = None,
) -> Any:
    """Return the answer of an endpoint; it blocks, so a thread does it."""
    with refusals(), server.pool.history() as history:
        team = Team(history.database)
        who = server.door.identify(request, team) if endpoint.needs or endpoint.is_page else access.NOBODY
        project = admitted(endpoint, who, team, request.path_params.get("project"))
        if endpoint.method != "GET":
            _check_sender(endpoint, who, request, body)
        call = Call(
            server=server,
            endpoint=endpoint,
            request=request,
            who=who,
            history=history.of_project(project.name) if project else history,
            team=team,
            project=project,
            body=body,
            trace=trace,
        )
        response = (handle or endpoint.handle)(call)
        if endpoint.is_page and who.by != "session" and who.form_key:
            set_cookie(response, server.settings, access.FORM_COOKIE, who.form_key)
        return response


@contextmanager
def refusals() -> Iterator[None]:
    """Let errors of ours be answers: a store that is gone is one, wherever it is asked."""
    try:
        yield
    except NoSuchRun:
        raise Refused(404, "there is no such run") from None
    except KeyTaken as error:
        raise Refused(409, error.problem) from None
    except BadValue as error:
        raise Refused(400, error.problem) from None
    except BadHistory as error:
        LOG.error("%s", error)  # the message says it all, and holds no password
        raise Refused(503, "the store does not answer") from None
    except StepgradeError as error:
        raise Refused(404 if isinstance(error, NotMeasured) else 400, str(error)) from None


def admitted(endpoint: Endpoint, who: Identity, team: Team, name: str | None) -> Project | None:
    """Return the project that is asked for; raise Refused when there is none, or none for them."""
    if endpoint.needs is None:
        return None
    if who.by == "nobody":
        raise Refused(401, "a token is asked for")
    if name is None:
        everywhere = None if not endpoint.any_project else next(iter(who.rights), None)
        if not who.may(endpoint.needs, everywhere):
            raise Refused(403, "this takes other rights")
        return None
    # A project that they may not see looks like one that is not there.
    project = team.project(name) if who.may("reader", name) else None
    if project is None:
        raise Refused(404, "there is no such project")
    if not who.may(endpoint.needs, name):
        raise Refused(403, f"this takes the role of {endpoint.needs}")
    return project


def _check_sender(endpoint: Endpoint, who: Identity, request: Request, body: bytes) -> None:
    """Raise Refused when a page of another site may have sent this in the name of who is signed in."""
    kind = request.headers.get("content-type", "").split(";")[0]
    if not endpoint.is_page:
        # A form of another site cannot send JSON, and cannot bring a token along.
        if who.by == "session":
            raise Refused(403, "programs come with a token")
        if who.by in ("localhost", "proxy") and body and kind != "application/json":
            raise Refused(415, "the body must be application/json")
        return
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "a form is asked for")
    try:
        fields = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise Refused(400, "too many fields") from None
    access.check_form(who, request, fields.get(access.FORM_FIELD, ""))


def set_cookie(
    response: Response, settings: ServerSettings, name: str, value: str, hours: float = 12.0
) -> None:
    """Set a cookie that no script reads and no other site sends along."""
    response.set_cookie(
        name,
        value,
        max_age=int(hours * 3600),
        httponly=True,
        secure=settings.is_secure,
        samesite="lax",
        path="/",
    )


def problem(endpoint: Endpoint, request: Request, status: int, problem: str) -> Response:
    """Return what went wrong: a page for people, JSON for programs, the way to the door for strangers."""
    if endpoint.is_page and status == 401 and request.method == "GET":
        return Response(status_code=303, headers={"location": "/login"})
    if endpoint.is_page and "json" not in request.headers.get("accept", ""):
        from stepgrade.web.page import fill  # Jinja2 is for pages alone

        page = fill("problem.html", {"title": "Not possible", "status": status, "problem": problem})
        return Response(page, status, media_type="text/html; charset=utf-8")
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    body = msgspec.json.encode({"problem": problem, "status": status})
    return Response(body, status, headers=headers, media_type="application/json")
