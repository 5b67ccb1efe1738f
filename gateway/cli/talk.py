"""`hermes-gateway send | chat`: messages from scripts, and a conversation in the terminal."""

import http.client
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain
from typing import Annotated

import orjson
import typer

from gateway.cli.answers import ask_or_write
from gateway.cli.output import Json, echo, show
from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.socket import ask
from gateway.outbound.scripts import send_to_chat
from hermes_state.errors import CommandError
from hermes_state.text import printable

MAX_BYTES = 1_000_000
"""Maximum length of a text from standard input."""


def send(
    chat: Annotated[str, typer.Argument(help="Name of a chat, such as telegram:42.")],
    text: Annotated[str, typer.Argument(help="Text of the message, or - to read it from standard input.")],
    asks: Annotated[bool, typer.Option("--ask", help="Let the agent answer the text in the chat.")] = False,
    as_json: Json = False,
) -> None:
    """Send a message to a chat as the bot.

    The text is never a command. If the gateway is not running, the message is sent at its next start.
    """
    words = sys.stdin.buffer.read(MAX_BYTES + 1).decode("utf-8", "replace") if text == "-" else text
    if len(words) > MAX_BYTES:
        raise CommandError(f"The text is longer than {MAX_BYTES:,} bytes. Send its most important part.")
    args = {"chat": chat, "text": words, "asks": asks}
    stored = ask_or_write("send", args, lambda db, now: send_to_chat(db, chat, words, asks, now))
    when = "now" if stored is None else "when it starts"
    show({"chat": chat}, [f"The message to {chat} is saved. The gateway delivers it {when}."], as_json=as_json)


def chat(name: Annotated[str, typer.Argument(help="Name of the conversation.")] = "terminal") -> None:
    """Talk to the agent in the terminal, as the owner. Commands such as /new work. Ctrl-D ends the conversation.

    The running gateway must serve the web chat. Every name is a conversation, which continues the next time.
    """
    session = ask(find_state(process_environment()).control_socket, "api.session", {"name": name})
    echo(f"Conversation “{name}” with the model {session['model']}. /help lists the commands. To leave, press Ctrl-D.")
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt):
            return
        if text.strip():
            with suppress(KeyboardInterrupt):  # the answer is still kept in the conversation
                _print_answer(session["host"], session["port"], session["token"], name, text)


def _print_answer(host: str, port: int, token: str, name: str, text: str) -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": text}], "stream": True})
    headers: dict[str, str | bytes] = {
        "Authorization": f"Bearer {token}",
        "X-Conversation": name.encode(),
        "Content-Type": "application/json",
    }
    with closing(http.client.HTTPConnection(host, port)) as connection:
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise CommandError(orjson.loads(answer.read())["error"]["message"])
            pieces = (_text_of(orjson.loads(line[6:])) for line in answer if line.startswith(b"data: {"))
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
            for piece in wrapped(pieces, width):
                sys.stdout.write(piece)
                sys.stdout.flush()
        except OSError as error:
            raise CommandError("The connection to the gateway broke. Its log says why.") from error


def _text_of(event: dict[str, object]) -> str:
    match event:
        case {"error": {"message": str(text)}} | {"choices": [{"delta": {"content": str(text)}}]}:
            return printable(text)
    return ""


def wrapped(pieces: Iterable[str], width: int) -> Iterator[str]:
    """Yield streamed text word by word and a final line break. Long lines are broken between words.

    >>> "".join(wrapped(["one tw", "o three", " four"], 9))
    'one two \\nthree \\nfour\\n'
    """
    word, column = "", 0
    for piece in chain(pieces, ("\n",)):
        *words, word = re.split(r"(?<=\s)", word + piece)
        for one in words:
            if column and column + len(one) > width:
                yield "\n"
                column = 0
            yield one
            column = 0 if one.endswith("\n") else column + len(one)
