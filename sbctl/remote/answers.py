"""What a host answered, as the document that its method promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sbctl.base.errors import HostError

__all__ = ["read_answer"]

_Answer = TypeVar("_Answer", bound=BaseModel)


def read_answer(model: type[_Answer], raw: Mapping[str, Any], host: str) -> _Answer:
    """Raises HostError `host.answer_invalid`, which says where it makes no sense."""
    try:
        return model.model_validate_json(json.dumps(dict(raw)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HostError(
            "host.answer_invalid",
            f"what the host tells makes no sense at {where}: {first['msg']}",
            place=host,
            next_step="its runtime may be of another version: run sbctl apply, or use that version here; else look what the machine is: sbctl host shell HOST",
        ) from error
