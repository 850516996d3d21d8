"""Messages that leave the server: where they may go, what they say, and how they get there."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import os
import re
import smtplib
import socket
import ssl
import time
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
from stepgrade.store.remote import is_loopback
from stepgrade.units import show_delta
from stepgrade.web.settings import ServerSettings

_TIMEOUT_S = 10.0
_MOST_ANSWER = 64 << 10
_EVENTS = {
    "opened": "got worse",
    "waiver ended": "is still worse, and its waiver has ended",
    "test": "would look like this",
}


class NotSent(Exception):
    """A message that did not get there, and why; never with its target, which may be a secret."""


def check_target(kind: str, target: str, settings: ServerSettings) -> None:
    """Raise BadOption for a target that we would not send to."""
    if kind == "email":
        if settings.mail is None:
            raise BadOption("this server sends no e-mail", hint="its operator names a mail server")
        if not re.fullmatch(r"[^@\s,;<>]{1,100}@[\w.-]{1,150}", target):
            raise BadOption("is no address for e-mail", field="target")
        return
    try:
        parts = urlsplit(target)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise BadOption("is no URL", field="target") from None
    schemes = ("https", "http") if settings.private_webhooks else ("https",)
    if parts.scheme not in schemes or not host or parts.username is not None or not target.isascii():
        raise BadOption("is no URL that begins with https:// and holds no password", field="target")
    if re.search(r"[\x00-\x20\x7f]", target):
        raise BadOption("holds signs that no URL has", field="target")
    if settings.private_webhooks:
        return
    try:
        is_public = ipaddress.ip_address(host).is_global
    except ValueError:
        # Numbers that some resolvers take for an address, such as 0x7f.1 or 2130706433.
        is_public = not is_loopback(host) and "." in host and not re.fullmatch(r"(?i)[0-9a-fx.]+", host)
    if not is_public:
        raise BadOption("is an address of the server's own network", field="target")


def addresses_of(host: str, port: int, settings: ServerSettings) -> list[str]:
    """Return the addresses of a host; raise NotSent when one of them is of the own network."""
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        raise NotSent("the host's name is not known") from None
    for text in found:
        address = ipaddress.ip_address(text.partition("%")[0])
        inner = getattr(address, "ipv4_mapped", None) or address
        if not settings.private_webhooks and not inner.is_global:
            raise NotSent("the host's address is of the server's own network")
    return sorted(found)


def post(url: str, body: bytes, headers: dict[str, str], settings: ServerSettings) -> None:
    """Send a request to the very address that was checked; raise NotSent for any answer but success.

    Redirects are not followed: where they lead was not checked.
    """
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        plain = socket.create_connection((addresses_of(host, port, settings)[0], port), _TIMEOUT_S)
        context = ssl.create_default_context() if is_tls else None
        connection.sock = plain if context is None else context.wrap_socket(plain, server_hostname=host)
        path = parts.path or "/"
        connection.request("POST", f"{path}?{parts.query}" if parts.query else path, body, headers)
        answer = connection.getresponse()
        answer.read(_MOST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise NotSent(f"no connection: {type(error).__name__}") from None
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise NotSent(f"the answer was {answer.status}")


def link_to(alert: Alert, settings: ServerSettings) -> str:
    """Return where the alert is shown."""
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
    """Return the alert for a comment; every name is escaped."""
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
    """Return what a channel is sent, as it wants it."""
    text, link = sentence(alert, event), link_to(alert, settings)
    # Slack's and Discord's own marks, which a branch's name must not be.
    plain = re.sub(r"[<>&*_`~|@]", " ", text)
    match channel.kind:
        case "slack":
            return {"text": f"{plain}\n<{link}|Look at it>"}
        case "discord":
            return {"content": f"{plain}\n<{link}>", "allowed_mentions": {"parse": []}}
        case "teams":
            body = [{"type": "TextBlock", "text": plain, "wrap": True, "weight": "bolder"}]
            card = {
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": body,
                "actions": [{"type": "Action.OpenUrl", "title": "Look at it", "url": link}],
            }
            content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
            return {"type": "message", "attachments": [content]}
        case "github":
            return {"body": markdown(alert, event, settings)}
        case "gitlab":
            return {"note": markdown(alert, event, settings)}
    return {"event": event, "alert": msgspec.to_builtins(alert), "text": text, "link": link}


def send(message: Message, channel: Channel, alert: Alert, settings: ServerSettings) -> None:
    """Send one message; raise NotSent when it did not get there."""
    try:
        check_target(channel.kind, channel.target, settings)
    except BadOption as error:
        raise NotSent(error.problem) from None
    if channel.kind == "email":
        send_mail(channel, alert, message.event, settings)
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
    post(url, body, headers, settings)


def signature(secret: str, at: str, body: bytes) -> str:
    """Return what proves to a webhook that we sent this body at this moment."""
    return "sha256=" + hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()


def send_mail(channel: Channel, alert: Alert, event: str, settings: ServerSettings) -> None:
    """Send one message by e-mail; raise NotSent when the mail server does not take it."""
    mail = settings.mail
    if mail is None:
        raise NotSent("this server sends no e-mail")
    letter = EmailMessage()
    subject = sentence(alert, event)
    letter["Subject"] = re.sub(r"[\x00-\x1f\x7f]", " ", subject)[:200]
    letter["From"], letter["To"] = mail.sender, channel.target
    letter.set_content(f"{subject}\n\n{link_to(alert, settings)}\n")
    try:
        with smtplib.SMTP(mail.host, mail.port, timeout=_TIMEOUT_S) as server:
            if mail.starttls:
                server.starttls(context=ssl.create_default_context())
            password = os.environ.get("STEPGRADE_SMTP_PASSWORD")
            if mail.user and password:
                server.login(mail.user, password)
            server.send_message(letter)
    except (OSError, smtplib.SMTPException) as error:
        raise NotSent(f"the mail server: {type(error).__name__}") from None
