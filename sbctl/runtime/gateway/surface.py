"""The paths of the OpenAI API that are offered, what each asks of a model, and how its answers come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["MODELS_PATHS", "PROBE_PATHS", "SURFACE", "Kind", "Operation", "capabilities"]

Kind = Literal[
    "chat", "completion", "responses", "embeddings", "rerank", "speech", "transcription", "translation", "image"
]

PROBE_PATHS: Final = ("/health", "/healthz", "/readyz", "/livez")
MODELS_PATHS: Final = ("/v1/models", "/models")


@dataclass(frozen=True, slots=True)
class Operation:
    """One POST route. `mode` is what the model must be for (`DeploymentMember.mode`).

    `answers`: events (the engine is always asked for a stream), json (one document), bytes (relayed as they come).
    """

    kind: Kind
    path: str
    mode: str
    answers: Literal["events", "json", "bytes"]
    is_form: bool = False
    """The body is multipart/form-data, not JSON."""

    @property
    def content_type(self) -> str:
        """Of the body."""
        return "multipart/form-data" if self.is_form else "application/json"


_OPERATIONS: Final = (
    Operation("chat", "/v1/chat/completions", "chat", "events"),
    Operation("completion", "/v1/completions", "chat", "events"),
    Operation("responses", "/v1/responses", "chat", "events"),
    Operation("embeddings", "/v1/embeddings", "embedding", "json"),
    Operation("rerank", "/v1/rerank", "rerank", "json"),
    Operation("speech", "/v1/audio/speech", "text_to_speech", "bytes"),
    Operation("transcription", "/v1/audio/transcriptions", "speech_to_text", "bytes", is_form=True),
    Operation("translation", "/v1/audio/translations", "speech_to_text", "bytes", is_form=True),
    Operation("image", "/v1/images/generations", "image", "json"),
)
SURFACE: Final = {operation.path: operation for operation in _OPERATIONS}


def capabilities(mode: str) -> list[str]:
    """What a model of a mode can be asked for."""
    return [
        operation.path.removeprefix("/v1/").replace("/", ".") for operation in _OPERATIONS if operation.mode == mode
    ]
