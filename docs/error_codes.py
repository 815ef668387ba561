"""Every error code of the product, read from its source: the code, who raises it, what it says, what to do next."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from sbctl.base import errors
from sbctl.base.errors import HTTP_STATUS, ExitCode, SbctlError
from sbctl.node.messages import Method
from sbctl.node.records import EventKind
from sbctl.runtime.peer.codes import REFUSALS

HTTP_SENTENCES: Final = {
    "address_refused": "the admin API is not open to the caller's address: proxy.admin.allow_ips lists those that it is open to",
    "artifact_in_use": "the weights are needed; `reason` says by whom: resident, configured, leased, locked",
    "authority_unavailable": "the authority cannot issue an identity now; its log says why",
    "crash_loop": "the engine ended too often; reset the deployment once the cause is mended",
    "csrf_missing": "a change with a session's cookie alone: send its token as X-CSRF-Token",
    "deployment_busy": "it has requests, and only what is idle is evicted",
    "deployment_authority_read_only": "this node is no authority of its cluster",
    "deployment_bundle_missing": "no bundle was published in this cluster yet",
    "deployment_healthy": "every replica is ready, so there is nothing to reset",
    "drain_timeout": "requests still ran when the time to drain was over, and are not cut off for a change; nothing changed",
    "draining": "the model is being replaced or stopped",
    "enrollment_denied": "the join token is not valid, or not for what was asked; the authority's audit file has the reason",
    "engine_missing": "the engine that the bundle names is not installed here",
    "engine_incompatible": "a deployment asks for an engine that this runtime does not start, or for a model that its engine does not serve",
    "prepare_infrastructure_failed": "weights or an engine could not be fetched just now; nothing changed, try again",
    "store_failed": "the runtime's database refused the write; nothing changed",
    "unknown_catalog_model": "no catalog that this host knows has the model; one of an operator's catalog comes with sbctl apply",
    "unknown_catalog_variant": "the model has no such variant",
    "forbidden": "the account may read, and change nothing",
    "https_required": "the origin is served over https alone; a key that came in the clear should be replaced",
    "invalid_desired": "the desired state cannot be read",
    "invalid_request": "the request is not one that is passed on; the sentence names the field",
    "method_not_allowed": "the route has no such method",
    "no_cache_budget": "the cache has no budget to bring it within: proxy.model_host.cache.budget_gib",
    "overloaded": "too many connections; health still answers",
    "prepare_failed": "the candidate could not be prepared; nothing changed",
    "reload_in_progress": "the file is being taken up at this moment; ask again when it is",
    "renewal_denied": "the identity that was shown gets no other; the sentence says why, and the server's audit file too",
    "revision_conflict": "the revision was accepted with other content, or somebody wrote the deployments in between",
    "runtime_commit_failed": "the accepted state could not be stored",
    "stale_revision": "a higher revision was accepted already",
}

__all__ = ["NOT_CODES", "ErrorCode", "dotted_strings", "error_codes", "http_codes"]

ROOT: Final = Path(__file__).resolve().parent.parent
_DOTTED: Final = re.compile(r"[a-z]+\.[a-z0-9]+(?:_[a-z0-9]+)*")
_HTTP: Final = re.compile(r"[a-z]+(?:_[a-z0-9]+)+|stopped|unauthorized|overloaded|draining")
_FAMILIES: Final = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, SbctlError)
}
_DERIVED: Final = {
    "FactsError": "HostError",
    "AdmissionError": "EngineError",
    "Blocked": "RefusedError",
    "Refusal": "RefusedError",
    "_Refused": "ConfigError",
    "Diagnostic": "ConfigError",
}
_BY_PREFIX: Final = {
    "config": "ConfigError",
    "catalog": "ConfigError",
    "lock": "ConfigError",
    "yaml": "ConfigError",
    "tls": "ConfigError",
    "ssh": "UnreachableError",
}
_FINDING: Final = {"_find": "yaml", "_find_at": "yaml", "ScalarRefusedError": "yaml"}

NOT_CODES: Final = re.compile(
    r"(?:artifact|blob|bundle|certificate|engine|host|pack|runtime|deployment|logs|events)\."
    r"(?:pull|import|remove|apply|clear|action|install|mark|unmark|activate|show|verify|export|serve|fetch|request|read|certificate)"
    r"|(?!runtime\.refused$)(?:runtime|bundle|replica|engine|host|certificate)\."
    r"(?:started|stopped|activated|accepted|refused|cleared|changed|adopted|crashed|drained|resumed|installed|public_changed)"
    r"|artifact\.(?:list|prune)|enrollment\.(?:request|install|remove|ask)|runtime\.certificate"
    r"|weights\.(?:quarantined|collected)|certificate\.(?:public_changed|renewal_failed)"
    r"|config\.(?:reload|taken|refused)|bundle\.accept|deployments\.replace|deployment\.(?:stopped|released)|audit\.(?:verify|trimmed|lost)|cache\.collect|runtime\.keys"
    r"|models\.(?:list|show|pull|remove|prune|lock|ps|load|stop|drain|reset)"
    r"|(?:attention|general|shortconv|ssm|wkv)\.[a-z_]+|output\.weight|response\.[a-z]+|admin\.port"
    r"|(?:memory|cgroup|cpu|cpuacct)\.[a-z_]+|system\.slice|yaml\.cmake"
    r"|proxy\.cluster"
    r"|(?:key|state|host|cluster|cluster\.token)\."
    r"(?:list|show|history|init|status|rotate|revoke|drain|resume|forget|exec|facts|trust|enroll)"
    r"|artifact\.(?:catalog_digest|license|revision|source)|action\.type|llama\.cpp|sbctl\..*"
    r"|tokenizer\.model|nats\.(?:conf|pid)|fuse\.[a-z]+|[a-z]+\.(?:json|db|md|lock|log|txt|py|sock|yml|key|pub|pem|procs|pkl)"
)
"""Dotted texts that are methods, events, commands, paths of leaves or file names."""

SENTENCES: Final = {
    "catalog.rule": "an entry of the catalog breaks a rule; the sentence says which",
    "config.bad_variable": "a ${…} cannot be expanded; the sentence says why",
    "config.conflict": "two fields contradict each other; the sentence says which",
    "config.include_cycle": "an included file includes itself, directly or by way of others",
    "config.include_outside": "an included file is outside the directory of sb.yml, or its path is not relative",
    "enrollment.not_started": "the enrollment server does not start on its host; the sentence has what its unit says",
    "lock.bad_key": "the key of the line is cut, damaged, or of another algorithm than the line says",
    "lock.fingerprint_mismatch": "the fingerprint of the line is not that of its key",
    "lock.text_refused": "the line has characters that no key line has",
    "config.no_effect": "a field has no effect where it stands (a note, no error)",
    "config.not_a_map": "the file is empty, or not a map of blocks",
    "config.unset_variable": "${…} is not set and has no default",
    "engine.unsafe_argument": "an argument of the engine is not on the list, or its value is refused",
    "host.marker_damaged": "the marker file on the host cannot be read",
    "json.invalid": "the text is not strict JSON; the sentence says where",
    "node.ended": "the node interface ended during a call; the sentence has its last words",
    "pack.invalid": "the pack's manifest cannot be read, makes no sense, or is not in its one form",
    "plan.prevent_destroy": "… would be removed, but prevent_destroy protects it",
    "yaml.encoding": "the file is not UTF-8 text",
    "yaml.number_refused": "a number has no one meaning (octal, underscore, infinity, beyond 2^53); put it in quotes or write it out",
    "config.bad_value": "a value does not fit its field; the sentence says what was expected",
    "host.unknown_error": "the host reported an error without a message",
    "plan.blocked": "a change of the plan cannot be carried out; the reason is the resource's own",
    "plan.waits_for_blocked": "a change waits for another that is blocked",
    "runtime.refused": "the runtime refused what was asked, in its own words",
    "state.write_failed": "the outcome of a step could not be recorded; the state says which step is open",
    "ssh.host_key_unknown": "the host shows a key that nobody pinned; it is shown as a fingerprint",
    "ssh.host_key_changed": "the host shows another key than the pinned one",
    "host.facts_failed": "the facts of this machine could not be read",
    "host.observe_failed": "the host answered, and could not be read",
    "host.unreachable": "the host gave no answer (in `--format junit` and `github`); the sentence says what was tried",
    "config.state": "fleet.state contradicts itself or lacks something; the sentence says what",
    "state.cannot_move": "`state mv` does not rename that; the sentence says why",
    "tls.ends_soon": "the certificate that clients see ends soon",
}
"""Where the source puts the sentence together at run time."""


@dataclass(frozen=True)
class ErrorCode:
    """`family` names the class in sbctl.base.errors; `sentence` has `…` where a value stands."""

    code: str
    family: str
    sentence: str
    next_step: str

    @property
    def exit_code(self) -> ExitCode:
        return _FAMILIES[self.family].exit_code


@dataclass(frozen=True)
class _Source:
    """What one reading of all of it gives, which takes seconds."""

    raised: tuple[tuple[str, str, str, str], ...]
    dotted: dict[str, str]
    """Every text with the form of a code → the file it stands in."""


@cache
def _source() -> _Source:
    raised: list[tuple[str, str, str, str]] = []
    dotted: dict[str, str] = {}
    for path in (path for package in ("sbctl", "providers") for path in sorted((ROOT / package).rglob("*.py"))):
        module = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(module))
        if path.parent.name != "placement" or path.name == "operator_actions.py":
            raised.extend(_raised(module, nodes))  # what keeps a replica from a node is no error
        if path.name != "blast_radius.py":
            texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
            dotted |= {text: path.relative_to(ROOT).as_posix() for text in texts if _DOTTED.fullmatch(text)}
    return _Source(tuple(raised), dotted)


def _text(node: ast.expr | None) -> str:
    """The static text of an expression, `…` for what is put in at run time; empty when there is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.Subscript):
        return _text(node.value)
    if isinstance(node, ast.BinOp):
        return f"{_text(node.left) or '…'}{_text(node.right) or '…'}"
    if isinstance(node, ast.IfExp):
        return _text(node.body) or _text(node.orelse)
    if isinstance(node, ast.Tuple) and node.elts:
        return _text(node.elts[0])
    return ""


def _name(call: ast.Call) -> str:
    return (
        call.func.id
        if isinstance(call.func, ast.Name)
        else call.func.attr
        if isinstance(call.func, ast.Attribute)
        else ""
    )


def _assigned(nodes: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """Local names that are given one expression each."""
    return {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _constants(module: ast.Module) -> dict[str, ast.expr]:
    """Names of a module that stand for one expression: sentences that several refusals share."""
    return {
        node.target.id: node.value
        for node in module.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }


def _of_call(call: ast.Call, local: dict[str, ast.expr]) -> Iterator[tuple[str, str, str, str]]:
    name = _name(call)
    keywords = {one.arg: one.value for one in call.keywords}
    texts = [_text(local.get(argument.id) if isinstance(argument, ast.Name) else argument) for argument in call.args]
    for at, argument in enumerate(call.args):
        codes = [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]
        for node in codes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            code = (
                f"{_FINDING[name]}.{node.value}"
                if name in _FINDING and re.fullmatch(r"[a-z_]+", node.value)
                else node.value
            )
            family = _DERIVED.get(name, name if name in _FAMILIES else "")
            if (_DOTTED.fullmatch(code) and not NOT_CODES.fullmatch(code)) or (
                family and at == 0 and _HTTP.fullmatch(code)
            ):
                after = texts[at + 1 : at + 3]
                given = keywords.get("next_step") or keywords.get("notes")
                given = local.get(given.id) if isinstance(given, ast.Name) else given
                step = _text(given) or (after[1] if name == "Blocked" and len(after) > 1 else "")
                yield code, family, _text(keywords.get("message")) or (after[0] if after else ""), step


def _of_tuple(node: ast.Tuple) -> Iterator[tuple[str, str, str, str]]:
    texts = [_text(part) for part in node.elts]
    if len(texts) > 1 and _DOTTED.fullmatch(texts[0]) and " " in texts[1] and not NOT_CODES.fullmatch(texts[0]):
        yield texts[0], "", texts[1], texts[2] if len(texts) > 2 else ""


def _raised(module: ast.Module, nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str, str, str]]:
    """`nodes`: all of the module's."""
    seen: set[int] = set()
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    constants = _constants(module)
    for scope in (*reversed(functions), module):
        within = nodes if scope is module else list(ast.walk(scope))
        local = constants if scope is module else constants | _assigned(within)
        for node in within:
            if isinstance(node, ast.Call) and id(node) not in seen:
                seen.add(id(node))
                yield from _of_call(node, local)
    for node in nodes:
        if isinstance(node, ast.Tuple):
            yield from _of_tuple(node)


def error_codes() -> dict[str, ErrorCode]:
    """Code → what is known of it, sorted. Of several raisers the first that says most is shown."""
    known: dict[str, ErrorCode] = {}
    for code, family, sentence, step in [
        *_source().raised,
        *((code, "", text, "") for code, text in SENTENCES.items()),
    ]:
        if "." not in code:
            continue
        fallback = _BY_PREFIX.get(code.partition(".")[0], "SbctlError")
        before = known.get(code, ErrorCode(code, "", "", ""))
        known[code] = ErrorCode(
            code, before.family or family, SENTENCES.get(code) or before.sentence or sentence, before.next_step or step
        )
        if not known[code].family and fallback:
            known[code] = ErrorCode(code, family or "", known[code].sentence, known[code].next_step)
    return {
        code: ErrorCode(
            code, one.family or _BY_PREFIX.get(code.partition(".")[0], "SbctlError"), one.sentence, one.next_step
        )
        for code, one in sorted(known.items())
    }


def http_codes() -> dict[str, tuple[int, str]]:
    """Reason codes of the runtime's HTTP answers → status and sentence."""
    known: dict[str, tuple[int, str]] = {code: (status, "") for code, status in HTTP_STATUS.by_code.items()}
    for code, family, sentence, _step in _source().raised:
        if ("." not in code or code in HTTP_STATUS.by_code) and family and code not in REFUSALS:
            known[code] = (HTTP_STATUS.status(code), known.get(code, (0, ""))[1] or sentence)
    return {code: (status, HTTP_SENTENCES.get(code) or text) for code, (status, text) in sorted(known.items())}


def dotted_strings() -> dict[str, str]:
    """Every text of the source that looks like a code → the file it stands in. Methods of nodes and kinds of events are none."""
    others = {*Method, *EventKind}
    return {
        text: file for text, file in _source().dotted.items() if text not in others and not NOT_CODES.fullmatch(text)
    }
