"""The examples for deployment say what the server understands."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepgrade.cli.parser import Parser
from stepgrade.cli.serve import add_options
from tests.conftest import ROOT

FOREIGN = {
    "--no-cache-dir", "--system", "--uid", "--home-dir", "--create-home", "--from-literal", "--from-file", "--provider",
    "--oidc-issuer-url", "--set-xauthrequest", "--reverse-proxy",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").iterdir()), ids=lambda path: path.name)
def test_every_flag_is_one_of_the_server(path: object) -> None:
    parser = Parser(prog="serve", description="")
    add_options(parser)
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]  # a Path; ids= wants an object
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= {*parser.flags(), *FOREIGN}


def test_proxies_take_away_what_browsers_claim() -> None:
    nginx = (ROOT / "deploy" / "nginx-oauth2-proxy.conf").read_text(encoding="utf-8")
    for place in nginx.split("location ")[1:]:
        if "127.0.0.1:8765" in place:
            for header in ("User", "Email", "Groups"):
                assert f"X-Forwarded-{header}" in place, place.splitlines()[0]
    caddy = (ROOT / "deploy" / "Caddyfile").read_text(encoding="utf-8")
    assert caddy.count("request_header -X-Forwarded-") == 3


# Each example goes through the tool that would read it, where there is one: Debian's nginx, caddy and systemd;
# hadolint and the schemas of Kubernetes come with `make check-deploy`.


def tool(name: str) -> str:
    """Return where a program is, beside Python or on the path; skip without it."""
    beside = Path(sys.executable).parent / name
    sbin = Path("/usr/sbin") / name
    found = next((str(path) for path in (beside, sbin) if path.exists()), shutil.which(name))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: str | Path) -> str:
    """Run a tool and return what it says; fail where it says no."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_hadolint_has_nothing_against_the_container_file() -> None:
    ran(tool("hadolint"), ROOT / "deploy" / "Containerfile")


def test_the_manifest_is_of_the_schemas_of_kubernetes() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    text = (ROOT / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8")
    newest = ".".join(schemas.latest_version().split(".")[:2])
    kinds = []
    for document in yaml.safe_load_all(text):
        schemas.validate(document, newest, strict=True)
        kinds.append(document["kind"])
    assert kinds == ["Deployment", "Service", "NetworkPolicy"]


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "stepgrade.service").read_text(encoding="utf-8")
    unit = tmp_path / "stepgrade.service"
    unit.write_text(text.replace("/opt/stepgrade/bin/stepgrade", sys.executable))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False, timeout=600
    )
    # What is wrong with the machine's own units is not ours.
    assert [line for line in done.stderr.splitlines() if "stepgrade" in line] == []


def test_nginx_understands_the_example(tmp_path: Path) -> None:
    nginx, openssl = tool("nginx"), tool("openssl")
    key, certificate = tmp_path / "stepgrade.key", tmp_path / "stepgrade.pem"
    ran(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=stepgrade.example.org", "-days", "1",
        "-keyout", key, "-out", certificate)  # fmt: skip
    assert ssl.create_default_context(cafile=str(certificate))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = (ROOT / "deploy" / "nginx-oauth2-proxy.conf").read_text(encoding="utf-8")
    text = text.replace("/etc/ssl/", f"{tmp_path}/").replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    (tmp_path / "site.conf").write_text(text)
    whole = f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off; include {tmp_path}/site.conf; }}"
    (tmp_path / "nginx.conf").write_text(whole)
    ran(nginx, "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf")


def test_caddy_takes_names_away_before_they_are_known() -> None:
    """Caddy orders its directives itself: what a browser claims goes first, then comes who it is."""
    told = ran(tool("caddy"), "adapt", "--config", ROOT / "deploy" / "Caddyfile", "--adapter", "caddyfile")
    steps = [*handlers(json.loads(told))]
    deleted = [place for place, step in enumerate(steps) if step.get("request", {}).get("delete")]
    asks = next(place for place, step in enumerate(steps) if "handle_response" in step)
    sends = len(steps) - 1
    assert len(deleted) == 3
    assert steps[sends]["handler"] == "reverse_proxy"
    assert max(deleted) < asks < sends


def handlers(part: Any) -> Iterator[dict[str, Any]]:
    """Yield what Caddy does with a request, in order."""
    if isinstance(part, dict):
        if "handler" in part and part["handler"] != "subroute":
            yield part
        for inner in part.values():
            yield from handlers(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from handlers(inner)
