"""Every route of the admin API, as data: what it is for, who may use it, what it answers. The router, the rights, the API description and the
pages are made from this table, so a route that is not in it does not exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["ACTIONS", "PREFIX", "ROUTES", "Route", "route_of"]

Role = Literal["anyone", "read_only", "admin"]
Method = Literal["GET", "POST", "PUT", "DELETE"]

PREFIX: Final = "/admin/model-host"
ACTIONS: Final = ("load", "stop", "drain", "evict", "pull", "reset")


@dataclass(frozen=True, slots=True)
class Route:
    """`handler` is a method of the admin plane; `answers` a schema of `api_schemas`, by status; `asks` the schema of its body,
    `query` what may stand behind its path, of `api_schemas.QUERY`."""

    method: Method
    path: str
    handler: str
    role: Role
    summary: str
    answers: tuple[tuple[int, str], ...]
    asks: str | None = None
    query: tuple[str, ...] = ()


def _probe(path: str, summary: str) -> Route:
    return Route("GET", path, "probe", "anyone", summary, ((200, "Health"), (503, "Health")))


def _action(name: str, summary: str) -> Route:
    return Route("POST", f"{PREFIX}/{name}", "act", "admin", summary, ((202, "Queued"),), "Asked")


def _cluster_action(path: str, handler: str, summary: str) -> Route:
    said = f"{summary}. Body: `{{}}` or `{{reason}}`; asked again it is the same. At an authority; 403 elsewhere, 503 without the store"
    answers = ((200, "ClusterActed"), (202, "ClusterActed"))
    return Route("POST", f"/admin/cluster/{path}", handler, "admin", said, answers, "ClusterReason")


ROUTES: Final = (
    _probe("/health", "200 when every deployment with `warm: true` is ready, else 503"),
    _probe("/readyz", "the same"),
    _probe("/healthz", "200 while the process answers"),
    _probe("/livez", "the same"),
    Route(
        "POST",
        "/admin/login",
        "login",
        "anyone",
        "`{username, password}`, or HTTP Basic with `{}`: a session of eight hours in a cookie, and its `csrf_token`, which changes send as `X-CSRF-Token`",
        ((200, "Session"),),
        "Login",
    ),
    Route("POST", "/admin/logout", "logout", "anyone", "end the session; 200 whoever asks", ((200, "SessionOver"),)),
    Route(
        "GET", "/admin/session", "session", "anyone", "who asks: name, role, CSRF token; never 401", ((200, "Session"),)
    ),
    Route("GET", "/metrics", "metrics", "read_only", "Prometheus text", ((200, "text/plain"),)),
    Route(
        "GET",
        f"{PREFIX}/status",
        "status",
        "read_only",
        "one row a replica: state, requests that run and wait, engine, memory, restarts, the last error and job; read from memory",
        ((200, "Status"),),
    ),
    Route(
        "GET",
        f"{PREFIX}/deployments",
        "deployments",
        "read_only",
        "the accepted revision, its digest and what it asks for",
        ((200, "Deployments"),),
    ),
    Route(
        "PUT",
        f"{PREFIX}/deployments",
        "replace_deployments",
        "admin",
        "the complete map of deployments, by compare-and-set; 202 with `Prefer: respond-async`; 403 `authority_read_only` where another authority owns them",
        ((200, "Replaced"), (202, "QueuedChange")),
        "Replacement",
    ),
    Route(
        "POST",
        "/admin/reload",
        "reload",
        "admin",
        "read the file of a runtime that was started by hand again, as SIGHUP does; 202 with `Prefer: respond-async`; 403 `authority_read_only` where no file rules",
        ((200, "Reloaded"), (202, "QueuedChange")),
    ),
    Route(
        "GET",
        f"{PREFIX}/catalog",
        "catalog",
        "read_only",
        "models that a PUT may name: the built-in catalog and, where `sb.yml` brought it, the operator's own over it",
        ((200, "Catalog"),),
    ),
    Route(
        "GET",
        f"{PREFIX}/value",
        "value",
        "read_only",
        "answers and tokens by deployment since the runtime began, of its own engines and of providers that stood in; amounts of money are null",
        ((200, "Value"),),
    ),
    Route(
        "GET",
        f"{PREFIX}/files",
        "files",
        "read_only",
        "artifacts in the cache: size, state, last use, whether an engine runs on it, is it configured or pinned",
        ((200, "Files"),),
    ),
    Route(
        "DELETE",
        f"{PREFIX}/artifacts/{{digest}}",
        "remove_artifact",
        "admin",
        "remove weights that no deployment needs, by their digest; 409 with a `reason`: resident, configured, leased, locked",
        ((200, "RemovedArtifact"), (409, "InUse")),
    ),
    Route(
        "POST",
        f"{PREFIX}/gc",
        "collect",
        "admin",
        "bring the cache within its budget, longest unused first; 409 `no_cache_budget` without one",
        ((200, "Collected"), (409, "InUse")),
    ),
    Route(
        "GET",
        f"{PREFIX}/jobs",
        "list_jobs",
        "read_only",
        "what was asked for and how it ended, newest first",
        ((200, "Jobs"),),
    ),
    Route("GET", f"{PREFIX}/jobs/{{job}}", "show_job", "read_only", "one of them", ((200, "Job"),)),
    Route(
        "GET",
        f"{PREFIX}/jobs/{{job}}/stream",
        "stream_job",
        "read_only",
        "its progress as server-sent events to its end; `Last-Event-ID` goes on behind a step",
        ((200, "text/event-stream"),),
    ),
    Route(
        "GET",
        "/admin/events",
        "list_events",
        "read_only",
        "what happened on this host, oldest first: the newest 100, or `limit`; with `after` what came behind that number, the `cursor` of an answer; of one `deployment`",
        ((200, "Events"),),
        query=("after", "limit", "deployment"),
    ),
    Route(
        "GET",
        "/admin/events/stream",
        "stream_events",
        "read_only",
        "the same as server-sent events, as they come; `Last-Event-ID` goes on behind one. Ends after an hour, and with the runtime",
        ((200, "text/event-stream"),),
        query=("deployment",),
    ),
    _action("load", "start every replica"),
    _action(
        "stop",
        "stop it until a load, a reset or the next bundle; requests that run have the shutdown deadline. `drift` shows it",
    ),
    _action("drain", "the same, and requests that run are let finish, for a day at most"),
    _action("evict", "free its memory if it is idle; the next request starts it again"),
    _action("pull", "its weights verified in the cache, nothing started"),
    _action(
        "reset",
        "end a crash loop; the next request or load starts it again. The job fails while every replica is ready",
    ),
    Route(
        "GET",
        "/admin/cluster/status",
        "cluster_status",
        "read_only",
        "the cluster as this gateway or authority knows it: nodes, deployments, store, who places; 404 on a host of no cluster, 503 on a worker alone",
        ((200, "ClusterStatus"),),
    ),
    Route(
        "GET",
        "/admin/cluster/deployments",
        "cluster_deployments",
        "read_only",
        "the active bundle and who signed it; 404 `deployment_bundle_missing` before there is one",
        ((200, "ClusterBundle"),),
    ),
    Route(
        "POST",
        "/admin/cluster/deployments",
        "publish_deployments",
        "admin",
        "publish a bundle that is signed already: the body is its envelope. At an authority; 403 elsewhere, 409 `stale_revision` or `revision_conflict`",
        ((202, "ClusterPublished"),),
        "SignedEnvelope",
    ),
    Route(
        "GET",
        "/admin/cluster/placement/{deployment}",
        "cluster_placement",
        "read_only",
        "where the lease-holder placed one deployment, how far its rollout is, and why other nodes got nothing",
        ((200, "ClusterPlacement"),),
    ),
    Route(
        "GET",
        "/admin/cluster/actions",
        "cluster_actions",
        "read_only",
        "what operators asked beside the bundle, and is in force: evacuations, confirmed losses, rollouts to be tried again. At an authority",
        ((200, "ClusterActions"),),
    ),
    _cluster_action(
        "nodes/{node}/evacuate",
        "evacuate_node",
        "the node gets nothing new, and what it runs is placed elsewhere; it serves until that is ready. Holds until `restore`",
    ),
    _cluster_action("nodes/{node}/restore", "restore_node", "take an evacuation back"),
    _cluster_action(
        "nodes/{node}/confirm-lost",
        "confirm_lost_node",
        "the node is gone for good: what it ran is placed elsewhere now, whatever holds that back; 409 `node_is_heard` while it is heard. "
        "Over when the node is heard again",
    ),
    _cluster_action(
        "deployments/{deployment}/retry",
        "retry_deployment",
        "a rollout that failed, or was not ready in time, is begun once more; 409 `nothing_to_retry` for any other",
    ),
    Route(
        "GET",
        "/admin/cluster/vram",
        "cluster_vram",
        "read_only",
        "memory of devices, of each worker that counts and in all",
        ((200, "ClusterVram"),),
    ),
    Route(
        "GET",
        "/admin/cluster/artifacts",
        "cluster_artifacts",
        "read_only",
        "weights by worker and by model; `partial` when a worker is left out",
        ((200, "ClusterArtifacts"),),
    ),
    Route(
        "GET",
        "/admin/cluster/metrics",
        "cluster_metrics",
        "read_only",
        "sums of what workers told last, by names of /metrics",
        ((200, "ClusterMetrics"),),
    ),
)

_BY_KEY: Final = {(route.method, route.path): route for route in ROUTES}


def route_of(method: str, path: str) -> Route | None:
    """By the route's own path, not by a request's. HEAD is GET."""
    return _BY_KEY.get(("GET" if method == "HEAD" else method, path))  # type: ignore[arg-type]
