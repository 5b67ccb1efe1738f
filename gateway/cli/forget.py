"""`hermes-gateway forget`: delete a chat, a conversation, a person, or old conversations."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.answers import configured_database
from gateway.cli.output import Json, confirm, echo, show
from gateway.config import load_config, process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.engines.opening import open_store
from hermes_state.errors import CommandError
from hermes_state.text import counted
from hermes_state.values import SystemClock

TIMEOUT_SECONDS = 3_600.0


def forget(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[person] ID", help="Such as telegram:42, or a session's id."),
    ] = None,
    is_old: Annotated[bool, typer.Option("--old", help="The conversations that `retention` no longer allows.")] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Delete without a question.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a chat, a conversation or everything about a person, and search the files for deleted words.

    An ID alone means a chat or a conversation. You cannot undo a deletion.
    """
    args = {"words": words or [], "is_old": is_old}
    if is_dry or not is_sure:
        plan = _ask(args)
        show(plan, plan["lines"], as_json=as_json)
        if is_dry:
            return
        if not confirm("Delete this?"):
            echo("Nothing was deleted.")
            raise typer.Exit(1)
    done = _ask({**args, "is_confirmed": True})
    if words := done.pop("words", []):
        found, count = find_words(find_state(process_environment()).home, words)
        searched = f"Searched {counted(count, 'file')} for {counted(len(words), 'word')} of the deleted messages: "
        done["lines"].append(searched + (f"found in {', '.join(found)}." if found else "none is left."))
        done |= {"files": count, "words": len(words), "found_in": found}
    show(done, done["lines"], as_json=as_json)


def find_words(home: Path, words: Sequence[str]) -> tuple[list[str], int]:
    """Return the files in a folder that contain one of the words, and the number of files that were searched.

    Never call this in the daemon: closing a database file would end the locks that SQLite holds in that process.
    """
    found, count = [], 0
    patterns = {form.encode() for word in words for form in (word, word.lower())}
    for path in sorted(home.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        count, tail = count + 1, b""
        with suppress(FileNotFoundError), path.open("rb") as file:  # the gateway may remove a file at any time
            while block := file.read(1 << 20):
                if any(pattern in tail + block for pattern in patterns):
                    found.append(str(path.relative_to(home)))
                    break
                tail = block[-max(map(len, patterns)) :]
    return found, count


def _ask(args: Mapping[str, Any]) -> Any:
    environ = process_environment()
    try:
        return ask(find_state(environ).control_socket, "forget", args, timeout_seconds=TIMEOUT_SECONDS)
    except DaemonNotRunningError:
        path, url = configured_database()
        if url is None and not path.exists():
            raise CommandError("There is no database yet. The first start of the gateway creates it.") from None
    return asyncio.run(_handle_at_rest(args))


async def _handle_at_rest(args: Mapping[str, Any]) -> Any:
    # Imported late, because these modules import the whole agent.
    from gateway.operator.forgetting import Forgetter
    from gateway.turns.attachments import open_attachments

    loaded = load_config(process_environment())
    files = await asyncio.to_thread(open_attachments, loaded)
    async with open_store(loaded.database, loaded.config.store.url, loaded.config.store) as store:
        forgetter = Forgetter(store=store, files=files, clock=SystemClock(), loaded=lambda: loaded)
        return await forgetter.handle(args)
