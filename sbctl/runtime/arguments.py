"""Command lines of `sbctl-runtime`: argparse, with wrong usage as an error of ours. By itself it exits with 2, which means "there are changes" here."""

from __future__ import annotations

import argparse
from typing import NoReturn

from sbctl.base.errors import UsageError

__all__ = ["Arguments"]


class Arguments(argparse.ArgumentParser):
    """Raises UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message, next_step=f"{self.prog} --help")
