"""Table of all commands, in the order in which help and menus show them."""

from gateway.commands import compression, conversations, help, lineage, models, people, status, stop, turns, usage
from gateway.commands.registry import Command, CommandKind, CommandRegistry

CONTROL, READ = CommandKind.CONTROL, CommandKind.READ
CHANGE, MESSAGE = CommandKind.CHANGE, CommandKind.MESSAGE

COMMANDS = (
    Command("start", READ, help.start, "what this is"),
    Command("help", READ, help.help_, "list the commands"),
    Command(
        "new",
        CHANGE,
        conversations.new,
        "start a new conversation; the old one is kept",
        argument="[title]",
        aliases=("reset",),
    ),
    Command("title", CHANGE, conversations.title, "show or set the conversation's title", argument="[title]"),
    Command("sessions", READ, conversations.list_sessions, "list this chat's conversations"),
    Command("resume", CHANGE, conversations.resume, "go back to a conversation", argument="<id>"),
    Command("history", READ, conversations.history, "what was said, as it was said", argument="[n]"),
    Command(
        "compress",
        CHANGE,
        compression.compress,
        "shorten what the model sees of this conversation; also `here N`, `preview`, `undo`",
        argument="[topic]",
    ),
    Command(
        "model",
        CHANGE,
        models.model,
        "which model answers here, and which others there are; with a name: choose one",
        argument="[name]",
    ),
    Command("stop", CONTROL, stop.stop, "end the running turn; `all` also drops what waits", argument="[all]"),
    Command(
        "status",
        CONTROL,
        status.status,
        "model, conversation, context and connections",
        unstored=status.status_unstored,
    ),
    Command("retry", CHANGE, turns.retry, "answer the last message again"),
    Command("undo", CHANGE, turns.undo, "take back the last exchange, or the last n", argument="[n]"),
    Command(
        "queue", MESSAGE, turns.queue, "let a message wait for the next turn; alone: what waits", argument="[message]"
    ),
    Command("steer", MESSAGE, turns.steer, "add a message to the running turn", argument="<message>"),
    Command("usage", READ, usage.usage, "what this conversation has used and cost, and what may still be spent"),
    Command(
        "insights",
        READ,
        usage.insights,
        "what was spent by day, chat, model and purpose",
        argument="[days]",
        is_admin_only=True,
    ),
    Command("whoami", READ, people.whoami, "your id, your role and this chat's name"),
    Command(
        "pair",
        CONTROL,
        people.pair,
        "see who asks for access, give it or take it away",
        argument="list|approve|revoke",
        is_admin_only=True,
    ),
    Command(
        "lineage",
        READ,
        lineage.lineage,
        "how the sessions of a chat continue one another",
        argument="[chat|session]",
        is_admin_only=True,
    ),
    Command("search", READ, lineage.search, "find what was said, in any chat", argument="<words>", is_admin_only=True),
    Command(
        "session",
        READ,
        lineage.session,
        "open a session, or the one in which a message was said",
        argument="<id>",
        is_admin_only=True,
    ),
)

REGISTRY = CommandRegistry(COMMANDS)
