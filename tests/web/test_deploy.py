"""The examples for deployment say what the server understands."""

from __future__ import annotations

import re

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
