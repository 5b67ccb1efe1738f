"""`hermes-gateway`, or `python -m hermes_gateway`: run the command with the packages in this folder."""

import sys
from pathlib import Path


def main() -> None:
    """Import from this folder first, and run the command. Worker processes receive the same `sys.path`."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from gateway.cli import main as run

    run()


if __name__ == "__main__":
    main()
