"""Every limit with its unit, in one place. A limit is a promise about memory and time, so changing one is a change of contract."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Input documents
CONFIG_MAX_BYTES: Final = 1 * MIB
CONFIG_MAX_DEPTH: Final = 64
INCLUDE_MAX_FILES: Final = 1000
INCLUDE_MAX_BYTES: Final = 8 * MIB
"""Of sb.yml and all that it includes."""
INCLUDE_MAX_DEPTH: Final = 8
HOST_LOCK_MAX_BYTES: Final = 8 * MIB
KNOWN_HOSTS_MAX_BYTES: Final = 16 * MIB
CATALOG_MAX_BYTES: Final = 4 * MIB
CATALOG_MAX_MODELS: Final = 1024
CATALOG_MAX_VARIANTS: Final = 128
CATALOG_MAX_ENGINES: Final = 16
ID_MAX_CHARS: Final = 128
PATH_MAX_CHARS: Final = 4096
BUNDLE_MAX_BYTES: Final = 4 * MIB
"""Of what is signed. A deployment of usual size takes a KiB and a half."""
BUNDLE_ENVELOPE_MAX_BYTES: Final = BUNDLE_MAX_BYTES // 3 * 4 + 64 * KIB
"""Of the largest bundle in base64, with its signatures: what carries a bundle takes as much."""
BUNDLE_DEPLOYMENTS_MAX: Final = 2048
STATE_DOCUMENT_MAX_BYTES: Final = 64 * MIB
STATE_SNAPSHOTS_KEPT: Final = 200
"""Serials whose snapshot and journal stay; a line of history stays for every serial."""
SHARED_HISTORY_LINES: Final = 500
"""Newest lines of history in a shared document."""
SHARED_SNAPSHOTS: Final = 8
"""Newest serials that a shared document keeps whole: the current one, and what a rollback goes to."""
SHARED_WRITE_EVERY_S: Final = 20.0
PLAN_MAX_BYTES: Final = 64 * MIB
PACK_MANIFEST_MAX_BYTES: Final = 16 * MIB
JSON_MAX_DEPTH: Final = 64
JSON_INT_MAX: Final = 2**53 - 1

# Trust
CLOCK_SKEW_LEEWAY_S: Final = 60
KEY_FILE_MAX_BYTES: Final = 8 * KIB

# Enrollment
JOIN_TOKEN_MAX_CHARS: Final = 512
JOIN_TOKEN_TTL_DEFAULT_S: Final = 900
JOIN_TOKEN_TTL_MAX_S: Final = 7 * 86400
JOIN_TOKENS_MAX: Final = 100_000
ENROLLED_HOURS_MAX: Final = 825 * 24
"""Life of what an enrollment server issues."""
ENROLL_BODY_MAX_BYTES: Final = 128 * KIB
ENROLL_ANSWER_MAX_BYTES: Final = 256 * KIB
ENROLL_CONNECT_DEADLINE_S: Final = 10.0
ENROLL_DEADLINE_S: Final = 60.0
"""Of one answer, from the first byte of the request to the last of the answer."""
ENROLL_REQUESTS_PER_MINUTE: Final = 60
"""Of one source; an IPv6 source is a /64."""
ENROLL_REQUESTS_PER_MINUTE_ALL: Final = 1200

# Node interface
FRAME_MAX_BYTES: Final = 8 * MIB
NODE_CALL_DEADLINE_S: Final = 600.0
SNAPSHOT_DEADLINE_S: Final = 45.0
"""So long a host may take to say how it is. One that is at work, with engines that start, takes many times the second that it else takes; one that is
gone is noticed by its connection, not by this."""
STARTING_WAIT_S: Final = 10.0
"""So long a command that holds the lock waits for a runtime that was started and is not healthy yet."""
SETTLE_DEADLINE_S: Final = 300.0
"""So long a command that holds the lock waits for a runtime that is still at work for one that is gone."""
LEAVE_DEADLINE_S: Final = 540.0
"""So long what a worker runs may take to be ready elsewhere before it is taken out of its cluster."""
SSH_CONNECT_DEADLINE_S: Final = 10.0
SSH_KEEPALIVE_S: Final = 15
SSH_UNANSWERED_S: Final = 45
"""After so long without an acknowledgement of what was sent, keepalives too, the network is taken for cut."""
REMOTE_OUTPUT_MAX_BYTES: Final = 1 * MIB
CONNECT_MAX_PARALLEL: Final = 16
SSH_HANDSHAKES_MAX: Final = 10
"""SSH connections that may be starting at once: an sshd, a shared jump most of all, drops starts beyond its MaxStartups (10)."""
SSH_CONFIG_MAX_BYTES: Final = 256 * KIB

# Runtime HTTP
HTTP_HEADER_MAX_BYTES: Final = 16 * KIB
HTTP_HEADER_DEADLINE_S: Final = 5.0
ADMIN_BODY_MAX_BYTES: Final = 512 * KIB
DATA_BODY_MAX_BYTES: Final = 16 * MIB
DATA_BODIES_MAX_BYTES: Final = 256 * MIB
"""Of all request bodies that one gateway holds at a time."""
HTTP_IDLE_S: Final = 75.0

# Engines
ENGINE_READY_DEADLINE_S: Final = 300.0
ENGINE_STOP_GRACE_S: Final = 10.0
ENGINE_STDERR_RING_BYTES: Final = 64 * KIB
ENGINE_PROBE_INTERVAL_S: Final = 0.1
RESTART_BACKOFF_FIRST_S: Final = 1.0
RESTART_BACKOFF_CAP_S: Final = 60.0
CRASH_LOOP_ATTEMPTS: Final = 5

# Downloads
DOWNLOAD_STALL_S: Final = 60.0
DOWNLOAD_MAX_REDIRECTS: Final = 5
DOWNLOAD_ATTEMPTS: Final = 4
DOWNLOAD_SLOW_BYTES_PER_S: Final = 16 * KIB
"""A source that gives less over a stall time is left while another one can be tried."""
DOWNLOAD_PIECE_BYTES: Final = 8 * MIB
"""What one connection of several asks for at a time."""
DOWNLOAD_MAX_CONNECTIONS: Final = 8
"""To one server, for one file."""
CLAIM_HEARTBEAT_S: Final = 10.0
CLAIM_STALE_S: Final = 90.0
"""A download whose process cannot be asked and that shows no life for so long is taken over."""
INDEX_PAGE_MAX_BYTES: Final = 32 * MIB

# Weight files
GGUF_HEADER_MAX_BYTES: Final = 64 * MIB
"""Read of a file to know its header."""
GGUF_KEYS_MAX: Final = 65_536
GGUF_TENSORS_MAX: Final = 131_072
GGUF_STRINGS_MAX: Final = 2_097_152
"""Texts in arrays of one header: tokens and merges of a vocabulary."""
SAFETENSORS_HEADER_MAX_BYTES: Final = 16 * MIB
SAFETENSORS_TENSORS_MAX: Final = 65_536
MODEL_JSON_MAX_BYTES: Final = 16 * MIB
"""Of a JSON file beside weights."""
