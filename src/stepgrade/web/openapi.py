"""The OpenAPI 3.1 description of the HTTP API, generated from the endpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from stepgrade._version import __version__
from stepgrade.web.calls import Endpoint

_PROBLEM = {
    "type": "object",
    "properties": {"problem": {"type": "string"}, "status": {"type": "integer"}},
    "required": ["problem", "status"],
}
_PATTERNS = {"number": {"type": "integer", "minimum": 0}, "project": {"type": "string"}}
_NUMBERS = ("limit", "a", "b", "before")


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the description."""
    shown = [endpoint for endpoint in endpoints if not endpoint.is_page]
    types = [kind for endpoint in shown for kind in (endpoint.body, endpoint.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in shown:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": _PATTERNS.get(name, {"type": "string"})}
            for name in re.findall(r"\{(\w+)\}", endpoint.path)
        ]
        parameters += [
            {"name": name, "in": "query", "schema": {"type": "integer" if name in _NUMBERS else "string"}}
            for name in endpoint.query
        ]
        answer: dict[str, Any] = {"description": endpoint.summary}
        if endpoint.answer is not None:
            content: dict[str, Any] = {"application/json": {"schema": by_type[str(endpoint.answer)]}}
            if "format" in endpoint.query:
                content["text/csv"] = {"schema": {"type": "string"}}
            answer["content"] = content
        problem = {"description": "error", "content": {"application/json": {"schema": _PROBLEM}}}
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": f"{endpoint.handle.__name__}",
            "parameters": parameters,
            "responses": {str(endpoint.status): answer, "default": problem},
        }
        if endpoint.status == 201:
            operation["responses"]["200"] = answer
        if endpoint.needs is not None:
            operation["security"] = [{"token": []}]
        if endpoint.body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": by_type[str(endpoint.body)]}},
            }
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "stepgrade", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
