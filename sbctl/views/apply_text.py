"""How an apply ended, for people: every host in one line, then what went wrong and what to do, then one sentence that sums up.

gpu-a  4 done
gpu-b  1 done, 1 failed, 2 skipped

✗ engine.gpu-b/llama_cpp   create failed at "install engine llama_cpp 2026.10.11549"
    artifact.digest_mismatch: the bytes that came are not the ones that were pinned
    → check the mirror, then run apply again
  skipped, since engine.gpu-b/llama_cpp is not done: bundle.gpu-b, deployment.gpu-b/chat

Apply: 5 done, 1 failed, 2 skipped in 12 s, serial 42.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.text import Text

from sbctl.apply.outcome import ApplyResult, ChangeResult, HostResult, next_step_of, nodes_behind
from sbctl.base.display import format_duration_s, plural
from sbctl.base.errors import SbctlError
from sbctl.views.apply_json import apply_body, nothing_to_apply_body
from sbctl.views.apply_lines import count_words
from sbctl.views.console import line_width, print_json
from sbctl.views.console import result as print_text
from sbctl.views.layout import padded, safe, sentence

__all__ = ["apply_text", "print_apply_result", "summary_sentence"]

_QUIET: Final = ("done", "unchanged", "not_started")
_QUIET_HOSTS_MAX: Final = 12
"""More hosts without a problem of their own than this share one line for each status."""
_STATUS_STYLES: Final = {
    "done": "green",
    "unchanged": "dim",
    "partial": "yellow",
    "failed": "bold red",
    "stale": "yellow",
    "leased": "yellow",
    "unreachable": "yellow",
    "unknown": "bold yellow",
    "interrupted": "yellow",
    "not_started": "yellow",
}
_SIGNS: Final = {"failed": "✗", "unknown": "?", "interrupted": "!", "not_started": "·"}
_LISTED_MAX: Final = 6


def print_apply_result(outcome: ApplyResult | None, *, format: str = "text") -> None:  # noqa: A002 - the option's name
    """Print the result on stdout as text, json, github or junit; None: there was nothing to carry out, which a plan has said already in text."""
    if format == "json":
        body = nothing_to_apply_body() if outcome is None else apply_body(outcome)
        print_json(str(body["mode"]), body)
    elif format != "text":
        from sbctl.views.ci_cases import apply_report
        from sbctl.views.ci_formats import print_report

        print_report(apply_report(outcome), format=format)
    elif outcome is not None:
        print_text(apply_text(outcome, width=line_width()))


def apply_text(outcome: ApplyResult, *, width: int = 80) -> Text:
    """The whole summary. Foreign text is safe in it, lines fit `width`."""
    text = Text()
    for line in _host_lines(outcome, width):
        text.append_text(line)
    problems = Text()
    for line in _problem_lines(outcome, width):
        problems.append_text(line)
    if problems:
        text.append("\n" if text else "").append_text(problems)
    if text:
        text.append("\n")
    text.append_text(sentence(summary_sentence(outcome), indent=0, width=width, style="bold"))
    text.rstrip()
    return text


def summary_sentence(outcome: ApplyResult) -> str:
    """`Apply: 5 done, 1 failed, 2 skipped in 12 s, serial 42.` or `Interrupted: 3 of 9 changes done, …`."""
    counts = outcome.counts
    if outcome.status == "interrupted":
        rest = [f"{counts['done']} of {plural(sum(counts.values()), 'change')} done"]
        begun = counts["failed"] + counts["unknown"] + counts["interrupted"]
        rest += [f"{begun} begun but not done"] if begun else []
        rest.append(f"{counts['not_started'] + counts['skipped']} not started")
        return f"Interrupted: {', '.join(rest)}; run {outcome.mode} again to continue."
    word = {"destroy": "Destroy", "rollback": "Rollback"}.get(outcome.mode, "Apply")
    if not outcome.changes:
        return f"{word}: nothing to do."
    took = f"in {format_duration_s(outcome.duration_s)}, serial {outcome.serial}"
    return f"{word}: {count_words(counts)} {took}."


# Hosts


def _host_lines(outcome: ApplyResult, width: int) -> Iterator[Text]:
    quiet = [host for host in outcome.hosts if host.status in _QUIET and not host.degraded]
    loud = [host for host in outcome.hosts if host not in quiet]
    columns = min(max((len(safe(host.host)) for host in outcome.hosts), default=0) + 2, max(12, width // 3))
    grouped = len(quiet) > _QUIET_HOSTS_MAX
    for host in loud if grouped else outcome.hosts:
        yield _host_line(host, outcome, columns, width)
    for status in _QUIET if grouped else ():
        named = [safe(host.host) for host in quiet if host.status == status]
        if named:
            listed = f"{plural(len(named), 'host')} {status.replace('_', ' ')}: {', '.join(named)}"
            yield sentence(listed, indent=0, width=width, style=_STATUS_STYLES[status])


def _host_line(host: HostResult, outcome: ApplyResult, columns: int, width: int) -> Text:
    words = count_words(dict(host.counts))
    if host.status not in ("done", "failed", "partial") or not words:
        status = host.status.replace("_", " ")
        words = f"{status}; {words}" if words and host.status != "not_started" else status
    why = host.error.message if host.error is not None else outcome.unreachable.get(host.host, "")
    line = sentence(
        f"{words}: {safe(why)}" if why else words,
        indent=0,
        width=width,
        first=padded(safe(host.host), columns),
        style=_STATUS_STYLES[host.status],
    )
    for said in host.degraded:
        line.append_text(sentence(f"degraded: {safe(said)}", indent=columns, width=width, style="yellow"))
    return line


# Problems


def _problem_lines(outcome: ApplyResult, width: int) -> Iterator[Text]:
    if outcome.journal_error is not None:
        yield _headline("✗", "state", "could not be written; nothing was started after that", "failed", width)
        yield from _cause(outcome.journal_error, outcome.journal_error.next_step, width)
    said: set[str] = set()
    for change in outcome.changes:
        if change.status in ("failed", "unknown", "interrupted") and not _told_by_owner(change, outcome):
            yield _headline(_SIGNS[change.status], safe(change.address), _what_happened(change), change.status, width)
            if change.cause is not None:
                repeated = change.cause is outcome.journal_error
                yield from () if repeated else _cause(change.cause, next_step_of(change), width)
                yield from () if repeated else _behind_lines(change.cause, width)
    for host in outcome.hosts:
        if host.error is not None:
            yield _headline(_SIGNS["not_started"], safe(host.host), "nothing was started here", host.status, width)
            yield from _cause(host.error, host.error.next_step, width)
            said.add(host.error.message)
    for reason, changes in _left_out(outcome, said).items():
        listed = ", ".join(safe(change.address) for change in changes[:_LISTED_MAX])
        more = f" and {len(changes) - _LISTED_MAX} more" if len(changes) > _LISTED_MAX else ""
        yield sentence(f"{reason}: {listed}{more}", indent=2, width=width, style="dim")


def _told_by_owner(change: ChangeResult, outcome: ApplyResult) -> bool:
    """Members share the fate of their bundle; its line says it for all."""
    return change.member_of is not None and any(
        other.address == change.member_of and other.status == change.status for other in outcome.changes
    )


def _what_happened(change: ChangeResult) -> str:
    verb = {"failed": "failed", "unknown": "has an unknown outcome", "interrupted": "was interrupted"}[change.status]
    step = f' at "{safe(change.step)}"' if change.step else ""
    progress = f", after {change.steps_done} of {change.steps_total} steps" if change.steps_total > 1 else ""
    return f"{change.action} {verb}{step}{progress}"


def _headline(sign: str, subject: str, what: str, status: str, width: int) -> Text:
    return sentence(what, indent=0, width=width, first=f"{sign} {subject}  ", style=_STATUS_STYLES.get(status, ""))


def _cause(error: SbctlError, next_step: str | None, width: int) -> Iterator[Text]:
    place = f" ({safe(error.place)})" if error.place else ""
    yield sentence(f"{safe(error.code)}: {safe(error.message)}{place}", indent=4, width=width)
    if next_step:
        yield sentence(safe(next_step), indent=4, width=width, first="→ ")


def _behind_lines(error: SbctlError, width: int) -> Iterator[Text]:
    """Nodes of a cluster that are not ready with its bundle, each with what to do."""
    for behind in nodes_behind(error)[:_LISTED_MAX]:
        why = f": {safe(behind.detail)}" if behind.detail else ""
        yield sentence(
            f"{safe(behind.state)}{why}", indent=4, width=width, first=f"{safe(behind.node)}  ", style="yellow"
        )
        yield sentence(safe(behind.next_step), indent=6, width=width, first="→ ")


def _left_out(outcome: ApplyResult, said: Iterable[str]) -> dict[str, list[ChangeResult]]:
    """Changes that were not begun, by reason; what a host's own line says already is left out, and so is the interruption."""
    known = {*said, "interrupted"}
    grouped: dict[str, list[ChangeResult]] = {}
    for change in outcome.changes:
        if change.status in ("skipped", "not_started") and change.because not in known:
            word = "skipped, since" if change.status == "skipped" else "not started:"
            grouped.setdefault(f"{word} {safe(change.because)}", []).append(change)
    return grouped
