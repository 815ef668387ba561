"""Secrets: where they are (in sb.yml) and what they are (only in memory, only when a step needs them).

`env:NAME`, `file:PATH` (relative to sb.yml's directory), `exec:COMMAND` (split into words, no shell) and `secret:NAME` are resolved on the
operator's machine. `node-file:PATH` names a file on the host and is never read here. A value written in sb.yml itself is `inline:<pointer>`.
No message repeats a value, nor what a command printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sbctl.base.errors import InputError
from sbctl.base.fs import read_bounded
from sbctl.base.secret import Secret
from sbctl.config.compiled import CompiledConfig, SecretRef

__all__ = ["REFERENCE_PREFIXES", "SecretResolver", "SecretSources", "secret_ref"]

REFERENCE_PREFIXES: Final = ("env:", "file:", "exec:", "node-file:", "secret:")
_MAX_BYTES: Final = 64 * 1024
_EXEC_DEADLINE_S: Final = 30.0
_READABLE: Final = "use env:NAME, file:PATH or exec:COMMAND"
_BY_HAND: Final = "run the command by hand in the directory of sb.yml, without input, and see what it prints"


class SecretSources:
    """Reads values of `env:`, `file:` and `exec:` references."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ

    def read(self, reference: str) -> Secret:
        """Raises InputError `secret.*` naming the reference."""
        source, _, rest = reference.partition(":")
        if source == "env":
            value = self._environ.get(rest, "").encode("utf-8", "surrogateescape")
            if not value:
                raise InputError(
                    "secret.unset",
                    f"the environment variable {rest} is not set",
                    place=reference,
                    next_step=f"set it for this command: export {rest}=…",
                )
            return Secret(value)
        if source == "file":
            return self._nonempty(reference, self._read_file(reference, rest))
        if source == "exec":
            return self._nonempty(reference, self._run(reference, rest))
        if source == "node-file":
            raise InputError(
                "secret.on_node",
                "this secret stays on its host and cannot be read here",
                place=reference,
                next_step=_READABLE,
            )
        raise InputError(
            "secret.bad_reference", "this is not a reference to a secret", place=source[:16], next_step=_READABLE
        )

    def _nonempty(self, reference: str, data: bytes) -> Secret:
        value = data.removesuffix(b"\n").removesuffix(b"\r")
        if not value:
            raise InputError(
                "secret.empty",
                "the secret is empty",
                place=reference,
                next_step="write its value where the reference points",
            )
        return Secret(value)

    def _read_file(self, reference: str, rest: str) -> bytes:
        try:
            return read_bounded(self._directory / Path(rest).expanduser(), max_bytes=_MAX_BYTES)
        except InputError as error:
            raise InputError(
                "secret.unreadable",
                f"the secret cannot be read: {error.message}",
                place=reference,
                next_step="bring the file back, or correct its path, which counts from the directory of sb.yml",
            ) from None

    def _run(self, reference: str, command: str) -> bytes:
        import subprocess

        try:
            done = subprocess.run(
                self._argv(reference, command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_EXEC_DEADLINE_S,
                env=dict(self._environ),
                cwd=self._directory,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _failed(reference, f"the command gave no answer in {_EXEC_DEADLINE_S:.0f} s") from None
        except OSError as error:
            raise _failed(reference, f"the command could not be started: {error.strerror}") from None
        if done.returncode != 0:
            raise _failed(reference, f"the command ended with {done.returncode}")
        if len(done.stdout) > _MAX_BYTES:
            raise InputError(
                "secret.too_large", f"the secret is larger than {_MAX_BYTES} bytes", place=reference, next_step=_BY_HAND
            )
        return done.stdout

    def _argv(self, reference: str, command: str) -> list[str]:
        """Its program as it is found by the operator's PATH; no shell reads it."""
        import shlex
        import shutil

        try:
            words = shlex.split(command)
        except ValueError:
            raise InputError(
                "secret.bad_reference", "the command has an open quote", place=reference, next_step="close it in sb.yml"
            ) from None
        program = words[0] if words else None
        if program is not None and "/" not in program:
            program = shutil.which(program, path=self._environ.get("PATH", os.defpath))
        if program is None:
            raise InputError(
                "secret.command_failed",
                "the command was not found",
                place=reference,
                next_step="install it, or name its path",
            )
        return [program, *words[1:]]


def _failed(reference: str, sentence: str) -> InputError:
    return InputError("secret.command_failed", sentence, place=reference, next_step=_BY_HAND)


def secret_ref(name: str, reference: str, sources: SecretSources, keyed: Callable[[bytes], str] | None) -> SecretRef:
    """A reference with its keyed fingerprint, where it can be known while planning: a command is not run for that, a host's file not read."""
    fingerprint = None
    if keyed is not None and reference.startswith(("env:", "file:")):
        try:
            fingerprint = keyed(sources.read(reference).reveal())
        except InputError:
            fingerprint = None
    return SecretRef(name, reference, fingerprint)


class SecretResolver:
    """Values for a compiled configuration, at apply."""

    def __init__(self, config: CompiledConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._sources = SecretSources(Path(config.path).absolute().parent, environ)

    def resolve(self, reference: str) -> Secret:
        """Raises InputError `secret.*` naming the reference, never the value."""
        if reference.startswith("secret:"):
            name = reference.removeprefix("secret:")
            known = self._config.secrets.get(name)
            if known is None:
                raise InputError(
                    "secret.unknown",
                    f'sb.yml has no secret "{name}"',
                    place=reference,
                    next_step="add it to secrets in sb.yml, or correct the reference",
                )
            return self._sources.read(known.reference)
        if reference.startswith("inline:"):
            value = self._config.inline_secrets.get(reference)
            if value is None:
                raise InputError(
                    "secret.unknown",
                    "sb.yml no longer has this value",
                    place=reference,
                    next_step="plan again from the sb.yml that holds it",
                )
            return value
        return self._sources.read(reference)
