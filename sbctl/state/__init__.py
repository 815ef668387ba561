"""The recorded truth of one fleet: SQLite, snapshots by serial, apply journal, lock."""
