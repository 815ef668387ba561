"""A PostgreSQL of its own in a directory of its own, as the user postgres: on a UNIX socket, or over TCP with TLS and passwords."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sbctl.state.settings import StateSettings

__all__ = ["Cluster", "postgres_cluster"]

_OPTIONS = "-c fsync=off -c max_connections=40"


@dataclass
class Cluster:
    """The role `ops` owns the database `sbctl`; `postgres` may do everything on the socket."""

    directory: Path
    programs: Path
    options: str
    port: int = 5432
    """Also of the socket's name."""

    def address(self, database: str = "sbctl") -> str:
        return f"postgresql:///{database}?host={self.directory}&port={self.port}"

    def settings(self, **fields: Any) -> StateSettings:
        return StateSettings("postgres", self.address(), fields.pop("username", "ops"), **fields)

    def sql(self, text: str, database: str = "sbctl") -> list[Any]:
        with psycopg.connect(self.address(database), user="postgres", autocommit=True) as session:
            cursor = session.execute(text)
            return cursor.fetchall() if cursor.description else []

    def control(self, *arguments: str) -> None:
        """`start`, or how to stop."""
        options = f"{_OPTIONS} {self.options} -k {self.directory}"
        log, data = str(self.directory / "log"), str(self.directory / "data")
        _run([str(self.programs / "pg_ctl"), "-D", data, "-w", "-o", options, "-l", log, *arguments])


def _run(argv: list[str]) -> None:
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    kwargs: dict[str, Any] = (
        {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    )
    environment = {"PATH": os.defpath, "LANG": "C"}
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", env=environment,
        timeout=120, check=False, **kwargs,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextlib.contextmanager
def postgres_cluster(
    options: str = "-c listen_addresses=", files: Mapping[str, str] | None = None, *, port: int = 5432
) -> Iterator[Cluster]:
    """`files` are written into the data directory, readable by the server only. Skips where PostgreSQL's programs are missing."""
    programs = _programs()
    if programs is None:
        pytest.skip("needs PostgreSQL's programs (postgresql)")
    directory = Path(tempfile.mkdtemp(prefix="sbpg", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres", "postgres")
    made = Cluster(directory, programs, f"{options} -p {port}", port)
    try:
        data = directory / "data"
        _run([str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8"])
        for name, text in (files or {}).items():
            (data / name).write_text(text)
            (data / name).chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(data / name, "postgres", "postgres")
        made.control("start")
        try:
            made.sql("CREATE ROLE ops LOGIN NOSUPERUSER", "postgres")
            made.sql("CREATE DATABASE sbctl OWNER ops", "postgres")
            yield made
        finally:
            made.control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
