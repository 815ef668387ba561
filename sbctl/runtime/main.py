"""`sbctl-runtime`: the program on a node. It only finds the subcommand; each is a module of its own, imported when asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sbctl import __version__
from sbctl.base.errors import ExitCode, SbctlError

__all__ = ["main"]


def _serve(argv: list[str]) -> int:
    from sbctl.runtime.daemon import run_serve

    return run_serve(argv)


def _supervise(argv: list[str]) -> int:
    from sbctl.runtime.supervise import run_supervise

    return run_supervise(argv)


def _store(argv: list[str]) -> int:
    from sbctl.runtime.store_exec import run_store

    return run_store(argv)


def _store_keeper(argv: list[str]) -> int:
    from sbctl.runtime.store_keeper import run_store_keeper

    return run_store_keeper(argv)


def _node(argv: list[str]) -> int:
    from sbctl.base.process import begin_short_process

    begin_short_process()
    from sbctl.runtime.nodeops.stdio import run_stdio

    return run_stdio(argv)


def _guard(argv: list[str]) -> int:
    from sbctl.runtime.nodeops.activation_end import run_guard

    return run_guard(argv)


def _launcher(argv: list[str]) -> int:
    from sbctl.runtime.launcher.program import run_launcher

    return run_launcher(argv)


def _authority(argv: list[str]) -> int:
    from sbctl.runtime.enrollment_program import run_authority

    return run_authority(argv)


def _identity(argv: list[str]) -> int:
    from sbctl.base.process import begin_short_process

    begin_short_process()
    from sbctl.runtime.identity_program import run_identity

    return run_identity(argv)


def _renew(argv: list[str]) -> int:
    from sbctl.base.process import begin_short_process

    begin_short_process()
    from sbctl.runtime.identity_program import run_renew

    return run_renew(argv)


def _public_tls(argv: list[str]) -> int:
    from sbctl.base.process import begin_short_process

    begin_short_process()
    from sbctl.runtime.nodeops.tls_handover import run_public_tls

    return run_public_tls(argv)


def _check(_argv: list[str]) -> int:
    """Import all that a host will need, so that a damaged or incomplete installation shows before anything depends on it."""
    import sbctl.runtime.daemon
    import sbctl.runtime.enrollment_program
    import sbctl.runtime.identity_program
    import sbctl.runtime.launcher.program
    import sbctl.runtime.nodeops.activation_end
    import sbctl.runtime.nodeops.stdio
    import sbctl.runtime.store_exec
    import sbctl.runtime.supervise  # noqa: F401 - importing is the check

    sys.stdout.write(f"sbctl-runtime {__version__}\n")
    return int(ExitCode.DONE)


_COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "serve": (_serve, "run the engines of the accepted bundle and answer their API"),
    "node": (_node, "answer the typed node interface on stdin and stdout (--stdio)"),
    "check": (_check, "say the version if everything that serving needs can be imported"),
    "guard": (_guard, "end an interrupted activation: the new runtime healthy, or the old one back"),
    "launcher": (_launcher, "start engines for the runtime, as root, on the socket that systemd hands over"),
    "authority": (_authority, "let hosts in by join token: the enrollment server of an authority directory"),
    "identity": (_identity, "take an enrolled directory into use as this node's identity"),
    "renew": (_renew, "ask for the next identity of a host that enrolled, when it is due"),
    "public-tls": (_public_tls, "take the API's certificate, as somebody else keeps it on this host, into use"),
    "supervise": (_supervise, "keep `serve`, or with --store the store, running where no systemd does"),
    "store": (_store, "become the store's server, as a child of its supervisor"),
    "store-keeper": (
        _store_keeper,
        "stay beside the store's server, which is started anew when it is stuck and has room again",
    ),
}


def _explain(argv: Sequence[str]) -> NoReturn:
    """Help, the version, or what is wrong with a command line that begins with no subcommand."""
    import argparse

    class _Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            # argparse exits with 2; in our table 2 means "there are changes".
            self.print_usage(sys.stderr)
            self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")

    parser = _Parser(prog="sbctl-runtime", description=__doc__, add_help=True)
    parser.add_argument("-V", "--version", action="version", version=f"sbctl-runtime {__version__}")
    commands = ", ".join(f"{name}: {text}" for name, (_, text) in _COMMANDS.items())
    parser.add_argument("command", choices=tuple(_COMMANDS), help=commands)
    parser.parse_args(argv)
    parser.error("a subcommand comes first")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status. Errors of ours become one line on stderr and their exit code."""
    given = sys.argv[1:] if argv is None else argv
    if not given or given[0] not in _COMMANDS:
        _explain(given)
    command, *arguments = given
    run, _ = _COMMANDS[command]
    try:
        return run(arguments)
    except SbctlError as error:
        step = f"; {error.next_step}" if error.next_step else ""
        sys.stderr.write(f"sbctl-runtime {command}: {error}{step}\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
