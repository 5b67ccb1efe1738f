"""`hermes-gateway pair list | approve | revoke`: manage access by pairing code."""

from typing import Annotated

import typer

from gateway.access.pairing import COMMAND_LINE, approve_pairing, load_pairing_rows, pairing_row, revoke_pairing
from gateway.cli.answers import ask_or_read, ask_or_write
from gateway.cli.output import Json, show, table
from hermes_state.admin.pairings import UserRole
from hermes_state.values import SystemClock, UserRef

pair = typer.Typer(no_args_is_help=True, help="Approve or revoke access by pairing code.", rich_markup_mode=None)


@pair.command("list")
def list_people(as_json: Json = False) -> None:
    """List pending requests and paired people."""
    rows = ask_or_read(
        "pair.list",
        {},
        list[dict[str, str]],
        lambda db, *_: load_pairing_rows(db, SystemClock().now()),
        empty=[],
        timeout_seconds=10,
    )
    shown = ("user", "name", "state", "role", "asked")
    cells = [(*(row[name] for name in shown), row["expires"] if row["state"] == "pending" else "-") for row in rows]
    lines = table(("PERSON", "NAME", "STATE", "ROLE", "ASKED", "CODE EXPIRES"), cells)
    show(rows, lines if rows else ["No pending requests and no paired people."], as_json=as_json)


@pair.command()
def approve(
    code: Annotated[str, typer.Argument(help="The person's pairing code, such as K7QM4XPA.")],
    as_admin: Annotated[bool, typer.Option("--admin", help="Make the person an admin instead of a user.")] = False,
    as_json: Json = False,
) -> None:
    """Give access to the person who received this code.

    The person gets a message immediately, or at the next start if the gateway is not running.
    """
    role = UserRole.ADMIN if as_admin else UserRole.USER
    answer = ask_or_write(
        "pair.approve",
        {"code": code, "role": role},
        lambda db, now: pairing_row(approve_pairing(db, code, role, COMMAND_LINE, now)[0]),
    )
    show(answer, [f"{answer['name']} ({answer['user']}) can now use the bot as {answer['role']}."], as_json=as_json)


@pair.command()
def revoke(
    person: Annotated[str, typer.Argument(help="Id from `pair list`, such as telegram:42.")],
    as_json: Json = False,
) -> None:
    """Revoke a paired person's access immediately."""
    answer = ask_or_write(
        "pair.revoke",
        {"user": person},
        lambda db, now: pairing_row(revoke_pairing(db, UserRef(person), COMMAND_LINE, now)),
    )
    show(answer, [f"{answer['name']} ({answer['user']}) no longer has access."], as_json=as_json)
