"""Alert messages: their text, and their delivery."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import smtplib
import socket
import ssl
import time
from contextlib import suppress
from email.message import EmailMessage
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from stepgrade.errors import BadOption
from stepgrade.report.blocks import Heading, Paragraph, Title, facts
from stepgrade.report.content.comparison import show_metric
from stepgrade.report.markdown import write
from stepgrade.report.names import shortened
from stepgrade.store.alerts import Alert, Channel, Message
from stepgrade.units import show_delta
from stepgrade.web.exchange import EXCHANGE_S, BoundedExchange, ExchangeCut
from stepgrade.web.settings import ServerSettings
from stepgrade.web.targets import check_channel, is_public

_MOST_ANSWER = 64 << 10
_EVENTS = {
    "opened": "got worse",
    "waiver ended": "is still worse, and its waiver has expired",
    "test": "(test message)",
}


class NotSent(Exception):
    """A message was not delivered; the text never contains its target, which may be a secret."""


def addresses_of(host: str, port: int, settings: ServerSettings, exchange: BoundedExchange) -> list[str]:
    """Return the addresses of a host; raise NotSent if one is in the server's own network."""
    try:
        found = exchange.look_up(host, port)
    except ExchangeCut:
        raise
    except OSError:
        raise NotSent("the host name was not found") from None
    if not settings.private_webhooks and not all(map(is_public, found)):
        raise NotSent("the host's address is in the server's own network")
    return found


def post(
    url: str, body: bytes, headers: dict[str, str], settings: ServerSettings, exchange: BoundedExchange
) -> None:
    """Send a request to the checked address itself; raise NotSent unless it succeeds.

    Redirects are not followed: where they lead was not checked.
    """
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    connection = http.client.HTTPConnection(host, port, timeout=EXCHANGE_S)
    try:
        plain = exchange.connect(addresses_of(host, port, settings, exchange)[0], port)
        connection.sock = plain
        if is_tls:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        path = parts.path or "/"
        connection.request("POST", f"{path}?{parts.query}" if parts.query else path, body, headers)
        answer = connection.getresponse()
        exchange.check()  # a cut connection looks like the end of the headers
        with suppress(OSError, http.client.HTTPException):  # only the status matters
            answer.read(_MOST_ANSWER)
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise NotSent(f"status {answer.status}")


def link_to(alert: Alert, settings: ServerSettings) -> str:
    """Return the URL of the alert's page."""
    base = (settings.public_url or f"http://{settings.host}:{settings.port}").rstrip("/")
    return f"{base}/p/{quote(alert.project)}/alerts#alert-{alert.id}"


def sentence(alert: Alert, event: str) -> str:
    """Return the alert in one line."""
    moved = (
        f"{show_metric(alert.metric, alert.level_before)} to {show_metric(alert.metric, alert.level_after)}"
    )
    branch = f" on {shortened(alert.branch, 80)}" if alert.branch else ""
    return f"{alert.project}: {alert.metric}{branch} {_EVENTS[event]}, {moved} ({show_delta(alert.change)})"


def markdown(alert: Alert, event: str, settings: ServerSettings) -> str:
    """Return the alert as Markdown for a comment; names are escaped."""
    rows = {
        "Between": f"run {alert.last_run} and run {alert.first_run}",
        "Commits": f"{(alert.last_commit or '?')[:12]}..{(alert.first_commit or '?')[:12]}",
    }
    blocks = (
        Title(f"{alert.metric} {_EVENTS[event]}", ""),
        Paragraph(sentence(alert, event)),
        facts(rows),
        Heading("Where"),
    )
    return write(blocks) + f"\n<{link_to(alert, settings)}>\n"


def payload(channel: Channel, alert: Alert, event: str, settings: ServerSettings) -> Any:
    """Return the message in the channel's own format."""
    text, link = sentence(alert, event), link_to(alert, settings)
    # Remove Slack's and Discord's markup, which a branch name may contain.
    plain = re.sub(r"[<>&*_`~|@]", " ", text)
    match channel.kind:
        case "slack":
            return {"text": f"{plain}\n<{link}|Show the alert>"}
        case "discord":
            return {"content": f"{plain}\n<{link}>", "allowed_mentions": {"parse": []}}
        case "teams":
            body = [{"type": "TextBlock", "text": plain, "wrap": True, "weight": "bolder"}]
            card = {
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": body,
                "actions": [{"type": "Action.OpenUrl", "title": "Show the alert", "url": link}],
            }
            content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
            return {"type": "message", "attachments": [content]}
        case "github":
            return {"body": markdown(alert, event, settings)}
        case "gitlab":
            return {"note": markdown(alert, event, settings)}
    return {"event": event, "alert": msgspec.to_builtins(alert), "text": text, "link": link}


def send(
    message: Message, channel: Channel, alert: Alert, settings: ServerSettings, exchange: BoundedExchange
) -> None:
    """Send a message; raise NotSent if that fails or times out."""
    try:
        check_channel(channel.kind, channel.target, channel.secret, settings)
        with exchange:
            _deliver(message, channel, alert, settings, exchange)
    except BadOption as error:
        raise NotSent(str(error)) from None
    except (OSError, ValueError, http.client.HTTPException, smtplib.SMTPException) as error:
        # These errors may contain the target, so only their type is shown.
        late = f"no complete response within {EXCHANGE_S:.0f} s"
        raise NotSent(late if exchange.is_cut else f"no connection: {type(error).__name__}") from None


def _deliver(
    message: Message, channel: Channel, alert: Alert, settings: ServerSettings, exchange: BoundedExchange
) -> None:
    if channel.kind == "email":
        send_mail(channel, alert, message.event, settings, exchange)
        return
    body = msgspec.json.encode(payload(channel, alert, message.event, settings))
    at = str(int(time.time()))
    headers = {"content-type": "application/json", "user-agent": "stepgrade"}
    url = channel.target
    if channel.kind in ("github", "gitlab"):
        if alert.first_commit is None:
            return  # nothing to comment on
        commit = quote(alert.first_commit, safe="")
        tail = "commits" if channel.kind == "github" else "repository/commits"
        url = f"{url.rstrip('/')}/{tail}/{commit}/comments"
        name = "authorization" if channel.kind == "github" else "private-token"
        headers[name] = f"Bearer {channel.secret}" if channel.kind == "github" else channel.secret
    elif channel.kind == "webhook":
        headers |= {"x-stepgrade-delivery": str(message.id), "x-stepgrade-timestamp": at}
        headers["x-stepgrade-signature"] = signature(channel.secret, at, body)
    post(url, body, headers, settings, exchange)


def signature(secret: str, at: str, body: bytes) -> str:
    """Return the HMAC signature of a webhook's body and timestamp."""
    return "sha256=" + hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()


def send_mail(
    channel: Channel, alert: Alert, event: str, settings: ServerSettings, exchange: BoundedExchange
) -> None:
    """Send a message by e-mail; raise the errors of smtplib or the connection."""
    mail = settings.mail
    if mail is None:
        raise NotSent("e-mail is not configured")
    letter = EmailMessage()
    subject = sentence(alert, event)
    letter["Subject"] = re.sub(r"[\x00-\x1f\x7f]", " ", subject)[:200]
    letter["From"], letter["To"] = mail.sender, channel.target
    letter.set_content(f"{subject}\n\n{link_to(alert, settings)}\n")
    with _MailExchange(exchange, mail.host, mail.port) as server:
        if mail.starttls:
            server.starttls(context=ssl.create_default_context())
        password = os.environ.get("STEPGRADE_SMTP_PASSWORD")
        if mail.user and password:
            server.login(mail.user, password)
        server.send_message(letter)


class _MailExchange(smtplib.SMTP):
    """SMTP over the connections of an exchange."""

    def __init__(self, exchange: BoundedExchange, host: str, port: int) -> None:
        self._exchange = exchange
        super().__init__(host, port, timeout=EXCHANGE_S)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:  # noqa: ARG002  its own
        return self._exchange.connect(self._exchange.look_up(host, port)[0], port)
