"""Planning a large fleet that is as desired, beside `terraform plan` of as many `terraform_data` blocks. Prints CPU seconds and ratios.

    .venv/bin/python benchmarks/bench_plan.py [--quick]

Ours: `build_plan`, the JSON document and the text, reading sb.yml and the hosts apart (both are I/O bound and have benchmarks of their
own); once with planners that only compare fingerprints, once with the real providers on hosts copied from one that a simulated apply has
converged. The process begins as our command does. Theirs: the whole command, since it cannot be taken apart; its state file is written by
hand, because creating it is quadratic.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from providers.registry import PROVIDERS  # noqa: E402
from sbctl.base.digests import fingerprint  # noqa: E402
from sbctl.base.ids import Address  # noqa: E402
from sbctl.base.process import begin_short_process  # noqa: E402
from sbctl.node.snapshot import NodeSnapshot  # noqa: E402
from sbctl.plan.build import build_plan  # noqa: E402
from sbctl.plan.document import document_of  # noqa: E402
from sbctl.plan.inputs import PlanInputs, Planners  # noqa: E402
from sbctl.views.plan_text import plan_text  # noqa: E402
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs  # noqa: E402
from tests.simulators.provider_world import ProviderWorld  # noqa: E402

PER_HOST = 10
TEMPLATE = "template-host"
SB_YML = f"""\
fleet: {{hosts: {{{TEMPLATE}: {{address: local}}}}}}
proxy:
  model_host:
    engines: {{llama_cpp: {{launch: wheel}}}}
    deployments:
      chat: {{model: smollm2-135m-instruct, variant: q4_1, pull: on_boot, warm: true}}
      draft: {{model: smollm2-135m-instruct, variant: q4_1, pull: on_demand, max_concurrency: 2}}
origins:
""" + "".join(
    f"  {name}: {{action: {{type: ai_proxy, providers: [{{name: local, provider_type: managed_model, deployment: {to}, models: [{to}]}}]}}}}\n"
    for name, to in (("a.internal", "chat"), ("b.internal", "draft"), ("c.internal", "chat"))
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 resources only")
    begin_short_process()
    sizes = (1_000,) if parser.parse_args().quick else (1_000, 10_000)
    measured: dict[str, dict[int, float]] = {}
    for name, fleet, planners in (
        ("sbctl, light planners", _light_fleet, FAKE_PLANNERS),
        ("sbctl, real providers", _Real(), PROVIDERS),
    ):
        measured[name] = {size: _plan_cpu_s(fleet(size // PER_HOST), planners, size) for size in sizes}
    program = shutil.which("terraform")
    if program is None:
        print("terraform is not on PATH: the comparison is left out")
    else:
        measured["terraform, whole command"] = {size: _terraform_cpu_s(program, size) for size in sizes}
    _report(measured, sizes)


def _report(measured: Mapping[str, Mapping[int, float]], sizes: tuple[int, ...]) -> None:
    print(f"{'no-op plan, CPU s':28}" + "".join(f"{size:>12,}" for size in sizes) + "   slope")
    for name, by_size in measured.items():
        slope = ""
        if len(sizes) > 1:
            first, last = sizes[0], sizes[-1]
            slope = f"{math.log(by_size[last] / by_size[first]) / math.log(last / first):8.2f}"
        print(f"{name:28}" + "".join(f"{by_size[size]:12.2f}" for size in sizes) + slope)
    theirs = measured.get("terraform, whole command")
    for name, by_size in measured.items():
        if theirs is not None and by_size is not theirs:
            print(f"{name} / terraform".ljust(40) + "  ".join(f"{by_size[size] / theirs[size]:.3f}" for size in sizes))


def _plan_cpu_s(given: PlanInputs, planners: Planners, size: int) -> float:
    """Best of three. Fails when the fleet is not of this size or not as desired, so that nothing else is measured."""
    best = math.inf
    for _ in range(3):
        gc.collect()
        started = time.process_time()
        plan = build_plan(given, planners)
        text = plan_text(document_of(plan)).plain
        best = min(best, time.process_time() - started)
        if plan.actionable or len(plan.changes) != size:
            raise SystemExit(f"the fleet is not as desired: {len(plan.changes)} resources\n{text[:2000]}")
    return best


def _light_fleet(hosts: int) -> PlanInputs:
    """Ten resources a host: seven of a whole one, and three more engines."""
    resources = []
    for index in range(hosts):
        host = f"host{index:05}"
        listed = host_resources(host)
        engine = next(one for one in listed if one.address.kind == "engine")
        more = [replace(engine, address=Address("engine", host, f"extra{number}")) for number in range(3)]
        resources += [*listed, *more]
    return inputs(resources, resources)


class _Real:
    """Hosts copied from one that a simulated apply made."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            world = ProviderWorld(Path(directory), TEMPLATE)
            world.configure(SB_YML)
            world.apply()
            self._inputs = world.inputs()

    def __call__(self, hosts: int) -> PlanInputs:
        names = [f"host{index:05}" for index in range(hosts)]
        template = self._inputs
        snapshot = template.snapshots[TEMPLATE]
        assert snapshot is not None
        raw = snapshot.model_dump(mode="json")
        return replace(
            template,
            desired=[_moved(one, name) for name in names for one in template.desired],
            recorded={
                moved.address: moved
                for name in names
                for moved in (_moved(one, name) for one in template.recorded.values())
            },
            snapshots={name: NodeSnapshot.model_validate(_renamed(raw, name)) for name in names},
            hosts=dict.fromkeys(names, template.hosts[TEMPLATE]),
        )


def _moved(one: Any, host: str) -> Any:
    """The same resource, desired or recorded, on another host."""
    spec = _renamed(one.spec, host)
    changes = {
        "address": replace(one.address, scope=host),
        "host": host,
        "spec": spec,
        "fingerprint": fingerprint(spec) if spec != one.spec else one.fingerprint,
        "after": frozenset(replace(edge, scope=host) for edge in one.after),
        "member_of": None if one.member_of is None else replace(one.member_of, scope=host),
    }
    if hasattr(one, "record"):
        changes["record"] = _renamed(one.record, host)
    return replace(one, **changes)


def _renamed(value: Any, host: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _renamed(inner, host) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(inner, host) for inner in value]
    return host if value == TEMPLATE else value


def _terraform_cpu_s(program: str, blocks: int) -> float:
    """User and system CPU of one `terraform plan` that finds nothing to change."""
    with tempfile.TemporaryDirectory() as directory:
        write_terraform(Path(directory), blocks)
        environ = {"PATH": os.environ["PATH"], "HOME": directory, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}

        def run(*arguments: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(
                [program, *arguments], cwd=directory, env=environ, capture_output=True, text=True, check=False
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if done.returncode != 0:
                raise SystemExit(
                    f"terraform {arguments[0]} did not find what it should: {(done.stdout + done.stderr)[-2000:]}"
                )
            return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

        run("init", "-input=false", "-no-color")
        return run("plan", "-input=false", "-no-color", "-detailed-exitcode")


def write_terraform(directory: Path, blocks: int) -> None:
    names = [f"r{index:05}" for index in range(blocks)]
    block: Callable[[str], str] = lambda name: f'resource "terraform_data" "{name}" {{\n  input = "{name}"\n}}\n'  # noqa: E731
    (directory / "main.tf").write_text("".join(map(block, names)))
    state = {
        "version": 4,
        "terraform_version": "1.0.0",
        "serial": 1,
        "lineage": str(uuid.UUID(int=1)),
        "outputs": {},
        "resources": [
            {
                "mode": "managed",
                "type": "terraform_data",
                "name": name,
                "provider": 'provider["terraform.io/builtin/terraform"]',
                "instances": [
                    {
                        "schema_version": 0,
                        "attributes": {
                            "id": str(uuid.UUID(int=index)),
                            "input": {"value": name, "type": "string"},
                            "output": {"value": name, "type": "string"},
                            "triggers_replace": None,
                        },
                        "sensitive_attributes": [],
                    }
                ],
            }
            for index, name in enumerate(names)
        ],
        "check_results": None,
    }
    (directory / "terraform.tfstate").write_text(json.dumps(state))


if __name__ == "__main__":
    main()
