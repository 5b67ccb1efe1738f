"""`hermes-gateway client add | list | revoke`: tokens for programs that use the API."""

import hashlib
import secrets
from typing import Annotated

import typer

from gateway.access.clients import add_client, client_ref
from gateway.access.pairing import COMMAND_LINE, load_pairing_rows, pairing_row, revoke_pairing
from gateway.cli.answers import ask_or_read, ask_or_write
from gateway.cli.output import Json, show, table
from hermes_state.admin.pairings import UserRole
from hermes_state.values import SystemClock

client = typer.Typer(no_args_is_help=True, help="Add or revoke tokens for programs.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Name of the program, such as editor.")]


@client.command()
def add(
    name: Name,
    as_admin: Annotated[bool, typer.Option("--admin", help="Give the program the role admin instead of user.")] = False,
    as_json: Json = False,
) -> None:
    """Make a token for a program. The token is shown only once."""
    token, role = f"hgw_{secrets.token_urlsafe(32)}", UserRole.ADMIN if as_admin else UserRole.USER
    digest = hashlib.sha256(token.encode()).hexdigest()
    args = {"name": name, "role": role, "token_hash": digest}
    ask_or_write("client.add", args, lambda db, now: add_client(db, name, role, digest, now))
    show({"name": name, "role": role, "token": token}, [f"Token of {name}, shown only now:", token], as_json=as_json)


@client.command("list")
def list_clients(as_json: Json = False) -> None:
    """List the programs that have a token."""
    now = SystemClock().now()
    people = ask_or_read(
        "pair.list", {}, list[dict[str, str]], lambda db, *_: load_pairing_rows(db, now), empty=[], timeout_seconds=10
    )
    start = client_ref("")
    rows = [{**row, "name": row["user"].removeprefix(start)} for row in people if row["user"].startswith(start)]
    lines = table(("NAME", "ROLE", "ADDED"), [(row["name"], row["role"], row["asked"]) for row in rows])
    show(rows, lines if rows else ["No program has a token."], as_json=as_json)


@client.command()
def revoke(name: Name, as_json: Json = False) -> None:
    """Revoke the token of a program immediately. Its conversations stay."""
    person = client_ref(name)
    answer = ask_or_write(
        "pair.revoke", {"user": person}, lambda db, now: pairing_row(revoke_pairing(db, person, COMMAND_LINE, now))
    )
    show(answer, [f"{name} no longer has access."], as_json=as_json)
