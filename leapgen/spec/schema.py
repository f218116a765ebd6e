"""The grammar as JSON Schema, for editors; specs/schema.json is this module's text."""

from __future__ import annotations

import json
from typing import Any

from leapgen.spec import grammar as g
from leapgen.spec.check import format_names, format_words

Schema = dict[str, Any]


def text() -> str:
    """The schema as it is committed: same grammar and formats, same bytes."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """JSON Schema (draft 2020-12) of a spec file. Looser than `check`: it knows no formulas."""
    printer = _Printer()
    root = printer.fields(g.SPEC)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "leapgen spec",
        **root,
        "$defs": dict(sorted(printer.definitions.items())),
    }


class _Printer:
    """Grammar kinds to schemas; mappings with a title become definitions, each printed once."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def kind(self, kind: g.Kind) -> Schema:
        match kind:
            case g.Text():
                pattern = {"pattern": f"^{kind.pattern.pattern}$"} if kind.pattern else {}
                return {"type": "string", **pattern}
            case g.Word():
                return {"enum": list(kind.options)}
            case g.FormatName():
                return {"enum": list(format_names())}
            case g.FormatWord():
                return {"enum": list(format_words(kind.choice))}
            case g.Integer():
                return self._integer(kind)
            case g.Positive():
                return {"type": "number", "exclusiveMinimum": 0}
            case g.Flag():
                return {"type": "boolean"}
            case g.FormulaText():
                return {"type": ["string", "number"]}
            case g.ListOf():
                return {"type": "array", "minItems": 1, "items": self.kind(kind.item)}
            case g.MapOf():
                return self._map(kind)
            case g.Fields():
                return self._reference(kind)

    def _integer(self, kind: g.Integer) -> Schema:
        steps = {"multipleOf": kind.step} if kind.step > 1 else {}
        return {"type": "integer", "minimum": kind.low, "maximum": kind.high, **steps}

    def _map(self, kind: g.MapOf) -> Schema:
        return {
            "type": "object",
            "minProperties": 1,
            "propertyNames": self.kind(kind.name),
            "additionalProperties": self.kind(kind.value),
        }

    def _reference(self, kind: g.Fields) -> Schema:
        name = kind.title.split(" ", 1)[1].replace(" ", "-")
        if name not in self.definitions:
            self.definitions[name] = {}  # reserved first: grammars may nest
            self.definitions[name] = self.fields(kind)
        return {"$ref": f"#/$defs/{name}"}

    def fields(self, kind: g.Fields) -> Schema:
        """A mapping with known keys, in place."""
        properties = {
            name: {"description": key.doc, **self.kind(key.kind)} for name, key in kind.keys.items()
        }
        required = [name for name, key in kind.keys.items() if key.required]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": self.kind(kind.others) if kind.others else False,
        }
