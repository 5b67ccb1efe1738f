"""How a block of settings is written down: a documented field, and a block that knows no other keys."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict


def setting(
    default: Any = ...,
    *,
    text: str,
    unit: str = "",
    restart: bool = False,
    default_text: str = "",
    default_factory: Callable[[dict[str, Any]], Any] | None = None,
    ge: float | None = None,
    le: float | None = None,
) -> Any:
    """A documented field. `restart`: a changed value waits for the next start.

    Returns Any, as pydantic's `Field` does: the annotation beside it is the type.
    """
    notes: JsonDict = {"unit": unit, "restart": restart, "default_text": default_text}
    if default_factory is not None:
        return Field(default_factory=default_factory, description=text, json_schema_extra=notes, ge=ge, le=le)
    return Field(default, description=text, json_schema_extra=notes, ge=ge, le=le)


class Section(BaseModel):
    """One block of the file; a misspelt key is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
