"""The `nearkin` command."""

from nearkin.cli.app import main

__all__ = ["main"]
