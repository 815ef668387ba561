"""The entry point: one call, one exit code.

Every command returns an `ExitCode`; every error becomes a rendered SbctlError and its family's code. Wrong usage is 64, never 2: a typo
must not read as "there are changes". A closed stdout ends quietly.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

from sbctl.base.errors import ExitCode

__all__ = ["main"]

_GROUPS = frozenset({"bundle", "catalog", "cluster", "host", "key", "models", "pack", "state"})


def _guard_installation() -> None:
    """`providers` is a plain name; a stranger's package of that name must not be taken for ours."""
    import providers
    from sbctl import __version__

    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    theirs = os.path.dirname(os.path.realpath(providers.__file__ or ""))
    if os.path.dirname(theirs) != os.path.dirname(ours) or getattr(providers, "SBCTL_API", None) != __version__:
        from sbctl.base.errors import RefusedError

        raise RefusedError(
            "installation.shadowed",
            "another Python package named `providers` stands where sbctl's own belongs",
            place=theirs,
            next_step="install sbctl-fleet in an environment of its own (uv tool install, pipx, or a virtualenv)",
        )


def _run(arguments: Sequence[str]) -> int:
    from sbctl.base.process import begin_short_process

    begin_short_process()
    from typer._click.exceptions import NoArgsIsHelpError
    from typer._click.exceptions import UsageError as TyperUsageError

    from sbctl.base.errors import SbctlError
    from sbctl.cli.app import app

    try:
        _guard_installation()
        result = app(args=list(arguments), prog_name="sbctl", standalone_mode=False)
        return int(result) if isinstance(result, int) else int(ExitCode.DONE)
    except NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
        return int(ExitCode.USAGE)
    except TyperUsageError as error:
        from sbctl.views.failure import print_usage_error

        path = error.ctx.command_path if error.ctx else "sbctl"
        print_usage_error(error.format_message(), path, format=_format_of(arguments))
        return int(ExitCode.USAGE)
    except SbctlError as error:
        from sbctl.views.failure import print_failure

        print_failure(error, format=_format_of(arguments), command=_command_of(arguments))
        return int(error.exit_code)


def _format_of(arguments: Sequence[str]) -> str:
    """What stdout was asked to hold, also where the command line was too wrong to be read."""
    found = [after for before, after in itertools.pairwise(arguments) if before == "--format"]
    found += [word.removeprefix("--format=") for word in arguments if word.startswith("--format=")]
    return found[-1] if found else "text"


def _command_of(arguments: Sequence[str]) -> str:
    """The command as JSON results name it: `plan`, `state.list`, `cluster.token.create`."""
    words = list(
        itertools.takewhile(lambda word: word[:1].isalpha() and word.replace("-", "").isalpha(), arguments[:3])
    )
    depth = 3 if words[:2] == ["cluster", "token"] else 2 if words[:1] and words[0] in _GROUPS else 1
    return ".".join(words[:depth])


def _hold_standard_streams() -> None:
    """The number of a stream that was closed goes to the next file that is opened: the state, say. So nothing takes it."""
    while (held := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(held)
    # What was closed when Python started is None, whatever the types say.
    streams: dict[str, object] = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    for number, (name, stream) in enumerate(streams.items()):
        if stream is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _say_version() -> int:
    """Without what other commands need, so that it is quick."""
    from sbctl import __version__

    try:
        sys.stdout.write(f"sbctl {__version__}\n")
        sys.stdout.flush()
    except OSError:
        _drop_output()
        return int(ExitCode.FAILED)
    return int(ExitCode.DONE)


def _drop_output() -> None:
    """What stdout still holds goes nowhere: the interpreter's last flush would fail again, with an exit code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; prints what went wrong on stderr."""
    _hold_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["version"], ["--version"]):
        return _say_version()
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 141
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except OSError as error:
        from sbctl.base.errors import SbctlError
        from sbctl.base.fs import disk_error
        from sbctl.views.failure import print_failure

        failed = disk_error(error, str(error.filename or "-"))
        try:
            print_failure(failed, format=_format_of(given), command=_command_of(given))
            sys.stdout.flush()
        except (OSError, SbctlError):
            _drop_output()
        return int(failed.exit_code)
    except Exception as error:  # noqa: BLE001 - the last resort: a bug is said to be one, without locals or values
        from sbctl.views.failure import print_bug

        print_bug(error)
        return int(ExitCode.FAILED)
    return code


if __name__ == "__main__":
    sys.exit(main())
