"""The cluster on the control socket of a node's runtime.

GET  /control/v1/cluster           what plans need of the cluster: `ClusterState`
GET  /control/v1/cluster/status    the body of GET /admin/cluster/status
POST /control/v1/cluster/actions   `ClusterAct`, on an authority → {"result": ClusterActed} or {"error": …}
POST /control/v1/cluster/bundle    `ClusterPublish`, on an authority → ndjson as a bundle: a line for every node that got further, then
                                   {"result": ClusterPublished}
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from sbctl.base import strict_json
from sbctl.base.errors import HTTP_STATUS, InputError, SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES, KIB
from sbctl.node.cluster_actions import ClusterAct
from sbctl.node.cluster_messages import ClusterPublish, ClusterPublished, NodeProgress
from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.audit import Note
from sbctl.runtime.cluster.operator_door import OperatorDoor
from sbctl.runtime.cluster.progress import is_done, progress_of, unplaced_of
from sbctl.runtime.cluster.status import plans_document, status_document
from sbctl.runtime.control import followed
from sbctl.runtime.listeners import read_body
from sbctl.runtime.provision import Progress
from sbctl.trust.cluster_bundle import bundle_mark

if TYPE_CHECKING:
    from sbctl.runtime.cluster.node import ClusterNode

__all__ = ["publish", "with_cluster"]

_BODY_MAX_BYTES: Final = 2 * BUNDLE_MAX_BYTES
_ACTION_MAX_BYTES: Final = 16 * KIB
_LOOK_S: Final = 0.25
_JOIN_S: Final = 30.0
"""So long a worker that was never heard is waited for when nothing else is left to do."""
_NEWS_MAX: Final = 64
_BEGUN: Final = NodeProgress(state="behind")

_Asked = TypeVar("_Asked", bound=BaseModel)


def with_cluster(app: web.Application, node: ClusterNode, note: Note) -> web.Application:
    """The control socket's application, with the routes of this module."""
    running: set[asyncio.Task[Any]] = set()

    async def known(_request: web.Request) -> web.Response:
        return web.json_response(plans_document(node.facts()))

    async def status(_request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(status_document, node.facts()))

    async def published(request: web.Request) -> web.StreamResponse:
        async def begun(progress: Progress) -> asyncio.Task[Any]:
            asked = _read(ClusterPublish, await read_body(request, max_bytes=_BODY_MAX_BYTES))
            task: asyncio.Task[Any] = asyncio.create_task(publish(node, asked, progress))
            running.add(task)
            task.add_done_callback(running.discard)
            return task

        return await followed(request, begun)

    door = OperatorDoor(node, note)

    async def acted(request: web.Request) -> web.Response:
        try:
            asked = _read(ClusterAct, await read_body(request, max_bytes=_ACTION_MAX_BYTES))
            ACTING.set(Actor(asked.by or "node interface", "admin", "control"))
            result = await door.ask(asked)
        except SbctlError as error:
            return web.json_response({"error": error.to_wire()}, status=HTTP_STATUS.status(error.code))
        return web.json_response({"result": result.model_dump(mode="json")})

    app.router.add_get("/control/v1/cluster", known)
    app.router.add_post("/control/v1/cluster/actions", acted)
    app.router.add_get("/control/v1/cluster/status", status)
    app.router.add_post("/control/v1/cluster/bundle", published)
    return app


async def publish(node: ClusterNode, asked: ClusterPublish, progress: Progress) -> ClusterPublished:
    """Raises as `Desired.publish`; what nodes make of the bundle is in the answer."""
    verified = await node.desired.publish(asked.envelope, expected_revision=asked.expected_revision)
    mark = bundle_mark(verified.payload)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + asked.wait_s
    joined_by_s: float | None = None
    told: dict[str, NodeProgress] = {}
    while True:
        plan = node.feed.plan
        rows = node.roster.view.rows
        nodes = progress_of(mark, rows, plan, node.config.expected_nodes)
        done = is_done(mark, nodes, rows, plan)
        if done and node.facts().absent:
            # One that an apply just made needs a moment; one that stays away holds up no bundle.
            joined_by_s = joined_by_s or loop.time() + _JOIN_S
            done = loop.time() >= joined_by_s
        ready = sum(one.is_done for one in nodes.values())
        for name, one in _news(told, nodes).items():
            progress(ready, len(nodes), one.note(name))
            told[name] = one
        superseded = node.desired.mark != mark
        if done or superseded or loop.time() >= end_s:
            return ClusterPublished(
                revision=mark.revision,
                content_digest=mark.content_digest,
                in_store=node.desired.in_store,
                ready=done,
                nodes=nodes,
                unplaced=unplaced_of(mark, plan),
            )
        await asyncio.sleep(min(_LOOK_S, max(0.0, end_s - loop.time())))


def _news(told: Mapping[str, NodeProgress], nodes: Mapping[str, NodeProgress]) -> dict[str, NodeProgress]:
    """Nodes that got further, so many that the way there holds them; the others next time. That all begin behind is no news."""
    changed = ((name, one) for name, one in nodes.items() if told.get(name, _BEGUN) != one)
    return dict(itertools.islice(changed, _NEWS_MAX))


def _read(model: type[_Asked], body: bytes) -> _Asked:
    document = strict_json.loads(body, max_bytes=_BODY_MAX_BYTES)
    try:
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError("invalid_body", f"{where}: {first['msg']}") from None
