"""The `dpbayes` command. Heavy imports stay inside the commands, so that help and spec errors answer at once."""

from dpbayes.cli.main import app, main

__all__ = ["app", "main"]
