"""The recorded truth of one fleet: SQLite beside sb.yml, a kernel lock, a fence, snapshots by serial."""
