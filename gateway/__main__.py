"""`python -m gateway` runs the `hermes-gateway` command."""

from gateway.cli import main

if __name__ == "__main__":
    main()
