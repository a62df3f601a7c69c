"""The command line. Commands are thin: each imports its work when it is called, so that `--help` is quick."""

from fedstill.cli.app import main

__all__ = ["main"]
