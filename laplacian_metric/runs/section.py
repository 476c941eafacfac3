"""What all parts of a cell have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    """A part of a cell; it knows its keys, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # Options that are not written where they have their default: what was made before they came stays the same.
    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_later(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        defaults = {
            key: type(self).model_fields[key].get_default(call_default_factory=True) for key in self.later
        }
        return {key: value for key, value in found.items() if key not in defaults or value != defaults[key]}
