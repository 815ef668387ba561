"""Which host keys a host must show: pinned in sb.yml as `host_key`, else in `sb.hosts.lock`. Two places that disagree are an error."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from sbctl.base.errors import ConfigError, InputError, SourceSpan
from sbctl.base.host_keys import fingerprint_of_pin
from sbctl.config.diagnose import Report
from sbctl.config.document import Document, Path
from sbctl.config.fleet import FleetModel
from sbctl.config.host_lock import LOCK_NAME, HostLock, read_host_lock

__all__ = ["PinBook", "host_lock_path", "open_pin_book"]


def host_lock_path(config_path: str, fleet: FleetModel) -> FilePath:
    """`fleet.ssh.host_keys`, else `sb.hosts.lock`; relative to the directory of sb.yml."""
    return FilePath(config_path).parent / FilePath(fleet.ssh.host_keys or LOCK_NAME).expanduser()


def open_pin_book(report: Report, document: Document, fleet: FleetModel, *, required: bool) -> PinBook:
    """With what the lock has; findings in it go to the report. `required`: a host without any pin is an error."""
    path = host_lock_path(document.path, fleet)
    span = document.value_span(("fleet", "ssh", "host_keys"))
    try:
        lock = read_host_lock(path)
        # A jump that no host needs just now is named all the same.
        return PinBook(report, document, lock, required, set(fleet.ssh.jumps or ()))
    except ConfigError as error:
        report.diagnostics.extend(error.diagnostics)
    except InputError as error:
        report.add(error.code, f"the pinned host keys cannot be read: {error.message}", span, notes=(str(path),))
    # What is wrong with the file is said; that its hosts have no pins follows from it.
    return PinBook(report, document, HostLock(path), required=False)


@dataclass
class PinBook:
    """Pins for one run over one file."""

    report: Report
    document: Document
    lock: HostLock
    required: bool
    named: set[str] = field(default_factory=set)
    """Hosts and jumps that sb.yml names."""

    def pins(self, name: str, path: Path, written: tuple[str, ...]) -> tuple[str, ...]:
        """For the host or jump `name` that stands at `path`, with `written` in its `host_key`. Findings go to the report."""
        self.named.add(name)
        locked = self.lock.pins(name)
        if written and locked:
            self._compare(name, path, written, locked)
        if not written and not locked and self.required:
            listed = str(path[-1])
            self.report.add(
                "config.missing_host_key",
                f'"{listed}" has no pinned host key, so nobody could tell it from another machine',
                self.document.key_span(path),
                notes=(
                    f"sbctl host trust {shlex.quote(listed)} (or --all) shows the key, asks, and pins it in {self.lock.path.name}",
                ),
            )
        return written or locked

    def _compare(self, name: str, path: Path, written: tuple[str, ...], locked: tuple[str, ...]) -> None:
        ours = {fingerprint_of_pin(pin) for pin in written}
        theirs = {fingerprint_of_pin(pin) for pin in locked}
        if not ours & theirs:
            self.report.add(
                "config.host_key_conflict",
                f'sb.yml pins another key of "{name}" than {self.lock.path.name}',
                self.document.value_span((*path, "host_key")),
                notes=(
                    f"here: {', '.join(sorted(filter(None, ours))) or 'a key that cannot be read'}",
                    f"{self.lock.place(name)}: {', '.join(sorted(filter(None, theirs)))}",
                    "keep the one that the host's console shows (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), remove the other",
                ),
            )

    def note_unused(self) -> None:
        """Lines of the lock for what sb.yml does not name. They may be of a host that is still to be destroyed, so they stay."""
        for name, keys in self.lock.keys.items():
            if name not in self.named:
                span = SourceSpan(str(self.lock.path), keys[0].line, 1, len(name), keys[0].text)
                self.report.note(
                    "config.unused_pin",
                    f'{self.lock.path.name} pins "{name}", which sb.yml does not name; once it is gone: sbctl host trust --prune',
                    span,
                )
