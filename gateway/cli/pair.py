"""`hermes-gateway pair list | approve | revoke`: who was let in by code."""

from typing import Annotated, Any

import typer

from gateway.cli.output import Json, print_json, print_table, shown_time
from gateway.config import process_environment
from gateway.config.home import find_state
from gateway.control import NobodyAnswers, ask
from hermes_state.overview import open_resting
from hermes_state.pairings import Pairing, list_pairings
from hermes_state.values import SystemClock

app = typer.Typer(no_args_is_help=True, help="Let people in by code, and see them out.", rich_markup_mode=None)


@app.command("list")
def list_people(as_json: Json = False) -> None:
    """Show who waits for approval and who was let in."""
    rows = _pairings()
    if as_json:
        print_json(rows)
    elif not rows:
        typer.echo("Nobody waits and nobody was let in by code.")
    else:
        print_table(("PERSON", "NAME", "STATE", "ROLE", "ASKED", "CODE EXPIRES"), [_cells(row) for row in rows])


@app.command()
def approve(
    code: Annotated[str, typer.Argument(help="The code that the person was shown, such as K7QM4XPA.")],
    as_admin: Annotated[bool, typer.Option("--admin", help="Give the role admin instead of user.")] = False,
    as_json: Json = False,
) -> None:
    """Let in the person who was shown this code. Needs the running gateway."""
    answer = _ask("pair.approve", {"code": code, "role": "admin" if as_admin else "user"})
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"{answer['name']} ({answer['user']}) may write now, as {answer['role']}.")


@app.command()
def revoke(
    person: Annotated[str, typer.Argument(help="The id that `pair list` shows, such as telegram:42.")],
    as_json: Json = False,
) -> None:
    """Take back the access of a paired person, at once. Needs the running gateway."""
    answer = _ask("pair.revoke", {"user": person})
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"{answer['name']} ({answer['user']}) has no access any more.")


def _pairings() -> list[dict[str, Any]]:
    state = find_state(process_environment())
    try:
        rows: list[dict[str, Any]] = ask(state.control_socket, "pair.list")
    except NobodyAnswers:
        with open_resting(state.database) as db:
            return [] if db is None else [_row(pairing) for pairing in list_pairings(db, SystemClock().now())]
    return rows


def _row(pairing: Pairing) -> dict[str, Any]:
    """As the daemon answers it."""
    return {
        "user": pairing.user_ref,
        "name": pairing.display_name,
        "state": pairing.state.value,
        "role": pairing.role.value,
        "asked": shown_time(pairing.created_at),
        "expires": shown_time(pairing.expires_at),
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    expires = row["expires"] if row["state"] == "pending" else "-"
    return row["user"], row["name"], row["state"], row["role"], row["asked"], expires


def _ask(request: str, args: dict[str, Any]) -> Any:
    return ask(find_state(process_environment()).control_socket, request, args)
