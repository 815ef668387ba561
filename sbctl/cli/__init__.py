"""The command line: arguments in, one composed call, a view out, one exit code. The one owner of `typer`."""
