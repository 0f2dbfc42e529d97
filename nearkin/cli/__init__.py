"""The `nearkin` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; our errors become one sentence and exit code 2, never a traceback."""
    from nearkin.allocator import tune_allocator, tune_threads

    tune_allocator()  # before anything is imported that starts threads
    tune_threads()
    from nearkin.cli.app import app
    from nearkin.errors import NearkinError

    try:
        app()
    except NearkinError as error:
        print(f"nearkin: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("nearkin: interrupted.", file=sys.stderr)
        sys.exit(130)
