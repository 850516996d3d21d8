"""Handle one request: limits, authentication, authorization and the response."""

from __future__ import annotations

import csv
import io
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import anyio
import msgspec
from msgspec import Struct, structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from stepgrade.decoding import from_json
from stepgrade.errors import BadHistory, BadValue, KeyTaken, NoSuchRun, NotMeasured, StepgradeError
from stepgrade.model.comparison import RunRow
from stepgrade.report.names import shortened
from stepgrade.store.history import History
from stepgrade.store.pool import Pool
from stepgrade.store.runs import Selection
from stepgrade.store.team import Project, Role, Team
from stepgrade.web import access
from stepgrade.web.access import Door, Identity, Limiter, Refused
from stepgrade.web.housekeeping import Housekeeping
from stepgrade.web.settings import ServerSettings
from stepgrade.web.traces import ReceivedTrace, Scoring, read_body
from stepgrade.web.worker import LOG

T = TypeVar("T")
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
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
    """A route: its path, the role it needs, and the types of its request and response.

    `needs` None is public. A path without a project needs the role in every project, or with `any_project` in
    any one of them.
    """

    method: str
    path: str
    handle: Callable[..., Any]  # takes a Call and the decoded body, or the request itself if direct
    needs: Role | None
    any_project: bool = False
    query: tuple[str, ...] = ()
    body: Any = None  # the type of a JSON body
    answer: Any = None
    status: int = 200
    is_upload: bool = False  # limited per token and minute
    takes_trace: bool = False  # the body is a profile to score; `handle` is called before and after scoring
    is_direct: bool = False  # needs neither the store nor a thread, so it always responds

    @property
    def summary(self) -> str:
        """Return the first line of the handler's docstring."""
        return (self.handle.__doc__ or "").partition("\n")[0].removesuffix(".")

    @property
    def is_page(self) -> bool:
        """Return whether it is a page for a browser."""
        return not self.path.startswith(("/api/", "/healthz", "/readyz", "/metrics", "/openapi.json"))


class Endpoints(list[Endpoint]):
    """The endpoints of a module; call it to declare one above its handler."""

    def __call__(
        self, method: str, path: str, needs: Role | None, **more: Any
    ) -> Callable[[_Handler], _Handler]:
        """Return a decorator that adds an endpoint; `more` are further fields of Endpoint."""

        def declare(handle: _Handler) -> _Handler:
            self.append(Endpoint(method=method, path=path, handle=handle, needs=needs, **more))
            return handle

        return declare


class Server:
    """State shared by all requests."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.pool = Pool(settings.location)
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
        """Open the store at startup, so that a wrong location fails then."""
        with self.pool.history():
            pass

    def check_rate(self, who: Identity) -> None:
        """Count an upload; raise Refused if there were too many."""
        if waits := self.uploads.take(who.name):
            raise Refused(429, "too many uploads", retry_after_s=int(waits) + 1)

    def count(self, endpoint: Endpoint, status: int, seconds: float) -> None:
        """Count a request for the metrics."""
        with self._lock:
            key = (endpoint.method, endpoint.path, status)
            self.counts[key] = self.counts.get(key, 0) + 1
            self.seconds[endpoint.path] = self.seconds.get(endpoint.path, 0.0) + seconds


class Call(Struct, frozen=True, kw_only=True):
    """An authorized request."""

    server: Server
    endpoint: Endpoint
    request: Request
    who: Identity
    history: History
    team: Team
    project: Project | None = None
    body: bytes = b""

    def query(self, name: str) -> str | None:
        """Return a query parameter; None if it is empty."""
        return self.request.query_params.get(name) or None

    def number(self, name: str, default: int, most: int) -> int:
        """Return a query parameter as an integer from 1 to `most`."""
        text = self.query(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and 1 <= int(text) <= most):
            raise Refused(400, f"{name} must be an integer from 1 to {most:,}")
        return int(text)

    def path_id(self) -> int:
        """Return the id in the path."""
        text = str(self.request.path_params["number"])
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise Refused(404, "not found")
        return int(text)

    def run(self) -> RunRow:
        """Return the run whose id is in the path; raise Refused if it does not exist."""
        number = self.path_id()
        found = self.history.runs(Selection(after=number - 1, before=number + 1))
        if not found:
            raise Refused(404, "run not found")
        return found[0]

    def form(self) -> dict[str, str]:
        """Return the fields of a form."""
        return dict(parse_qsl(self.body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS))

    def read(self, kind: Any) -> Any:
        """Return the JSON body decoded as `kind`."""
        try:
            return from_json(self.body, kind)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise Refused(400, f"invalid request body: {shortened(str(error), 200)}") from None

    def note(self, what: str, subject: str = "") -> None:
        """Add an entry to the audit log."""
        self.team.note(
            self.who.name, what, project=self.project.name if self.project else None, subject=subject
        )


class ProjectCall(Call, frozen=True, kw_only=True):
    """An authorized request for a path with a project."""

    project: Project


class TraceCall(ProjectCall, frozen=True, kw_only=True):
    """An uploaded profile."""

    trace: ReceivedTrace


def json_answer(value: Any, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def table_answer(call: Call, rows: Sequence[Any], name: str) -> Response | None:
    """Return a table as CSV or JSON as the `format` parameter says; None for a page."""
    to = call.query("format")
    if to == "json":
        return json_answer(rows)
    if to != "csv":
        return None
    written = io.StringIO()
    table = msgspec.to_builtins(rows)
    columns = list(dict.fromkeys(column for row in table for column in row))
    writer = csv.writer(written)
    writer.writerow(columns)
    for row in table:
        cells = []
        for cell in map(row.get, columns):
            text = msgspec.json.encode(cell).decode() if isinstance(cell, dict | list | tuple) else cell
            # Spreadsheets would take these for formulas.
            is_formula = isinstance(text, str) and text.startswith(tuple("=+-@\t\r"))
            cells.append(f"'{text}" if is_formula else text)
        writer.writerow(cells)
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(written.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


async def in_thread(limiter: anyio.CapacityLimiter, function: Callable[..., T], *args: Any) -> T:
    """Run a blocking function in a thread; it is abandoned when the server stops."""
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=limiter)


async def answer(server: Server, endpoint: Endpoint, request: Request) -> Response:
    """Return the response to a request; errors are responses too, without internal details."""
    begun = time.perf_counter()
    try:
        access.check_names(request, server.settings)
        if endpoint.is_direct:
            response = endpoint.handle(request)
        elif endpoint.method == "GET":
            response = await in_thread(server.limiter, _respond, server, endpoint, request)
        else:
            access.check_origin(request, server.settings)
            # Authorize before reading the body. The store is released meanwhile: clients may be slow.
            who: Identity = await in_thread(server.limiter, _authorize, server, endpoint, request)
            if endpoint.takes_trace:
                response = await _scored(server, endpoint, request, who)
            else:
                most = _MOST_FORM if endpoint.is_page else server.settings.most_bytes
                body = await read_body(request, most)
                response = await in_thread(server.limiter, _respond, server, endpoint, request, body)
    except Refused as refused:
        response = problem(request, refused.status, refused.problem, is_page=endpoint.is_page)
        if refused.retry_after_s is not None:
            response.headers["retry-after"] = str(refused.retry_after_s)
    except ClientDisconnect:
        response = problem(request, 400, "incomplete request body", is_page=endpoint.is_page)
    except anyio.get_cancelled_exc_class():
        response = problem(request, 503, "the server is shutting down", is_page=endpoint.is_page)
    seconds = time.perf_counter() - begun
    server.count(endpoint, response.status_code, seconds)
    response.headers["server-timing"] = f"all;dur={seconds * 1000:.1f}"
    return with_headers(response, server.settings)


async def _scored(server: Server, endpoint: Endpoint, request: Request, who: Identity) -> Response:
    """Receive a profile, score it in a process of its own, and return the response."""
    if not server.settings.accepts_traces:
        raise Refused(403, "this server accepts scorecards only")
    server.check_rate(who)
    with server.scoring.slot(who.name), tempfile.TemporaryDirectory(prefix="stepgrade-trace-") as folder:
        trace = await server.scoring.receive(request, folder)
        respond = (server.limiter, _respond, server, endpoint, request, b"")
        known: Response | None = await in_thread(*respond, trace)
        if known is not None:
            return known
        device = request.query_params.get("device") or None
        card = await in_thread(server.scoring.limiter, server.scoring.score, trace, device)
        response: Response = await in_thread(*respond, structs.replace(trace, card=card))
        return response


def with_headers(response: Response, settings: ServerSettings) -> Response:
    """Add the security headers to a response."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("content-security-policy", _POLICY)
    if settings.is_secure:
        response.headers["strict-transport-security"] = "max-age=31536000"
    return response


def _authorize(server: Server, endpoint: Endpoint, request: Request) -> Identity:
    with refusals(), server.pool.history() as history:
        team = Team(history.database)
        who = _identify(server, endpoint, request, team)
        admitted(endpoint, who, team, request.path_params.get("project"))
        return who


def _identify(server: Server, endpoint: Endpoint, request: Request, team: Team) -> Identity:
    return server.door.identify(request, team) if endpoint.needs or endpoint.is_page else access.NOBODY


def _respond(
    server: Server,
    endpoint: Endpoint,
    request: Request,
    body: bytes = b"",
    trace: ReceivedTrace | None = None,
) -> Any:
    """Return the endpoint's response. Blocking: run it in a thread.

    The sender is identified here, after the body: a token may have been revoked while it was being sent.
    """
    with refusals(), server.pool.history() as history:
        team = Team(history.database)
        who = _identify(server, endpoint, request, team)
        project = admitted(endpoint, who, team, request.path_params.get("project"))
        if endpoint.method != "GET":
            _check_sender(endpoint, who, request, body)
        fields: dict[str, Any] = {"server": server, "endpoint": endpoint, "request": request, "who": who}
        fields |= {"team": team, "body": body}
        if project is None:
            call = Call(**fields, history=history)
        else:
            fields |= {"project": project, "history": history.in_project(project.name)}
            call = ProjectCall(**fields) if trace is None else TraceCall(**fields, trace=trace)
        if endpoint.is_upload:
            server.check_rate(who)
        given = [] if endpoint.body is None else [call.read(endpoint.body)]
        response = endpoint.handle(call, *given)
        if endpoint.status == 204:
            response = Response(status_code=204)
        elif response is not None and not isinstance(response, Response):
            response = json_answer(response, endpoint.status)
        if endpoint.is_page and who.by != "session" and who.form_key:
            set_cookie(response, server.settings, access.FORM_COOKIE, who.form_key)
        return response


@contextmanager
def refusals() -> Iterator[None]:
    """Turn stepgrade's errors into responses."""
    try:
        yield
    except NoSuchRun:
        raise Refused(404, "run not found") from None
    except KeyTaken as error:
        raise Refused(409, error.problem) from None
    except BadValue as error:
        raise Refused(400, error.problem) from None
    except BadHistory as error:
        LOG.error("%s", error)  # messages contain no passwords
        raise Refused(503, "the store is unavailable") from None
    except StepgradeError as error:
        raise Refused(404 if isinstance(error, NotMeasured) else 400, str(error)) from None


def admitted(endpoint: Endpoint, who: Identity, team: Team, name: str | None) -> Project | None:
    """Return the requested project; raise Refused if it does not exist or access is denied."""
    if endpoint.needs is None:
        return None
    if who.by == "nobody":
        raise Refused(401, "authentication required")
    if name is None:
        everywhere = None if not endpoint.any_project else next(iter(who.rights), None)
        if not who.may(endpoint.needs, everywhere):
            raise Refused(403, "permission denied")
        return None
    # A project that they may not read looks like one that does not exist.
    project = team.project(name) if who.may("reader", name) else None
    if project is None:
        raise Refused(404, "project not found")
    if not who.may(endpoint.needs, name):
        raise Refused(403, f"permission denied: the role {endpoint.needs} is required")
    return project


def _check_sender(endpoint: Endpoint, who: Identity, request: Request, body: bytes) -> None:
    """Raise Refused if a page of another site may have sent this on behalf of the user (CSRF)."""
    kind = request.headers.get("content-type", "").split(";")[0]
    if not endpoint.is_page:
        # A form on another site can send neither JSON nor a token.
        if who.by == "session":
            raise Refused(403, "the API requires a token, not a session")
        if who.by in ("localhost", "proxy") and body and kind != "application/json":
            raise Refused(415, "Content-Type must be application/json")
        return
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "expected a form body")
    try:
        fields = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise Refused(400, "too many form fields") from None
    access.check_form(who, request, fields.get(access.FORM_FIELD, ""))


def set_cookie(
    response: Response, settings: ServerSettings, name: str, value: str, hours: float = 12.0
) -> None:
    """Set a cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(
        name,
        value,
        max_age=int(hours * 3600),
        httponly=True,
        secure=settings.is_secure,
        samesite="lax",
        path="/",
    )


def problem(request: Request, status: int, problem: str, *, is_page: bool) -> Response:
    """Return an error: a page for browsers (or a redirect to the login), JSON for programs."""
    if is_page and status == 401 and request.method == "GET":
        return Response(status_code=303, headers={"location": "/login"})
    if is_page and "json" not in request.headers.get("accept", ""):
        from stepgrade.web.page import fill  # Jinja2 is for pages alone

        page = fill("problem.html", {"title": "Not possible", "status": status, "problem": problem})
        return Response(page, status, media_type="text/html; charset=utf-8")
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    body = msgspec.json.encode({"problem": problem, "status": status})
    return Response(body, status, headers=headers, media_type="application/json")
