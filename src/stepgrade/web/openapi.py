"""The description of the interface for programs (OpenAPI 3.1), made from the endpoints themselves."""

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
    shown = [one for one in endpoints if not one.is_page]
    types = [kind for one in shown for kind in (one.body, one.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in shown:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": _PATTERNS.get(name, {"type": "string"})}
            for name in re.findall(r"\{(\w+)\}", one.path)
        ]
        parameters += [
            {"name": name, "in": "query", "schema": {"type": "integer" if name in _NUMBERS else "string"}}
            for name in one.query
        ]
        answer: dict[str, Any] = {"description": one.summary}
        if one.answer is not None:
            content: dict[str, Any] = {"application/json": {"schema": by_type[str(one.answer)]}}
            if "format" in one.query:
                content["text/csv"] = {"schema": {"type": "string"}}
            answer["content"] = content
        problem = {"description": "why not", "content": {"application/json": {"schema": _PROBLEM}}}
        operation: dict[str, Any] = {
            "summary": one.summary,
            "operationId": f"{one.handle.__name__}",
            "parameters": parameters,
            "responses": {str(one.status): answer, "default": problem},
        }
        if one.status == 201:
            operation["responses"]["200"] = answer
        if one.needs is not None:
            operation["security"] = [{"token": []}]
        if one.body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": by_type[str(one.body)]}},
            }
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "stepgrade", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
