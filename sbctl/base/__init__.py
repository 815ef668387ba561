"""The floor everybody stands on: errors, ids, time, files, digests, strict JSON, safe display. Imports nothing of ours."""
