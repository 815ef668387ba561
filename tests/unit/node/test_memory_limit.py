"""What a control group leaves of a machine's memory, as files of the kernel tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.node.machine import memory_limit


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "1073741824\n"}, 1 << 30),
        ("0::/a/b\n", {"a/memory.max": "500\n", "a/b/memory.max": "max\n"}, 500),
        ("0::/a/b\n", {"memory.max": "900", "a/memory.max": "500", "a/b/memory.max": "700"}, 500),
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("3:cpu:/x\n9:memory:/a\n", {"memory/a/memory.limit_in_bytes": "4096"}, 4096),
        ("9:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/../../etc\n", {"memory.max": "7"}, 7),
        ("", {}, None),
        ("nonsense", {"memory.max": "x"}, None),
    ],
)
def test_the_tightest_group_around_us_counts(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_limit(str(tmp_path / "sys"), str(tmp_path / "proc")) == limit
