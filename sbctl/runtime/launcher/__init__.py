"""The engine launcher: root's small server that starts engines for the runtime as systemd units of their own.

    runtime (user sbctl) ── /run/sbctl/launcher.sock, one JSON line each way ──► launcher (root) ── systemd-run, systemctl ──► sbctl-engine-*

Rules. Only the runtime's user and root are heard. A request is typed and small, and everything in it is checked here again, whatever the
runtime checked: the program is one of ours or one that root listed, the arguments are of a table, the environment is built from empty. An
engine runs as the user sbctl-engine with no right, no device, no network and no file that it does not need. The launcher keeps nothing:
killed, it finds the engines again by the names of their units. It ends when there is nothing to do; its socket brings it back.

When nobody who attends to the engines has been there for a minute, it stops them.
"""
