"""An engine that is installed anew does not leave the code from before running."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.engine_users import processes_of, restart_users
from sbctl.runtime.ownership import OwnershipRecord, OwnershipRecords


def test_deployments_that_run_from_a_replaced_home_are_restarted_one_by_one(context: NodeContext, runtime: Any) -> None:
    asked = [
        ("POST", f"/control/v1/deployments/{name}/{action}") for name in ("also", "chat") for action in ("stop", "load")
    ]
    runtime.answers |= {each: (200, [{"result": {"id": "any"}}]) for each in asked}
    home = context.paths.engines / "llama_cpp" / "1.0"
    (home / "bin").mkdir(parents=True)
    program = str(shutil.copy(shutil.which("sleep") or "/bin/sleep", home / "bin" / "python"))
    records = OwnershipRecords(context.paths.engine_records)
    with subprocess.Popen([program, "600"]) as one, subprocess.Popen(["sleep", "600"]) as other:
        try:
            for number, (pid, deployment) in enumerate([(one.pid, "chat"), (other.pid, "code"), (one.pid, "also")]):
                record = OwnershipRecord(
                    token=f"{number:016x}", pid=pid, start_ticks=1, boot_id="b", deployment=deployment, replica=0,
                    generation=1, program=program, address="unix:x",
                )  # fmt: skip
                records.write(record)
            assert processes_of(home) == [one.pid]
            assert restart_users(context, home) == ["also", "chat"]
        finally:
            one.kill()
            other.kill()
    assert [(method, path) for method, path, _ in runtime.requests] == asked
    assert restart_users(context, home) == []
