"""Table of all commands, in the order in which help and menus show them."""

from functools import partial

from gateway.commands import (
    compression,
    conversations,
    lineage,
    models,
    people,
    status,
    stop,
    turns,
)
from gateway.commands.registry import Command, CommandKind, CommandRegistry, transaction
from gateway.commands.tools import mcp, memory, schedule, todo, tools

CONTROL, READ = CommandKind.CONTROL, CommandKind.READ
CHANGE, MESSAGE = CommandKind.CHANGE, CommandKind.MESSAGE

_admin = partial(Command, is_admin_only=True)

_APPROVE = "say yes to what the agent asks about: this time, in this conversation, or always here"
_COMPRESS = "shorten what the model sees of this conversation; also `here N`, `preview`, `undo`"
_MODEL = "which model answers here, and which others there are; with a name: choose one"
_MEMORY = "what is remembered for this chat; `me add`, `me remove`: about you"
_NEW = "start a new conversation; the old one is kept"
_RULES = "the standing rules of this conversation; `drop m12` ends those of a message"
_SCHEDULE = "messages that come back here at a time; ask the agent, or `add` one with a cron expression"
_THINK = "how much the model thinks here before it answers; with a word: choose it"
_USAGE = "what this conversation has used and cost, and what may still be spent"

COMMANDS = (
    Command("start", READ, people.start, "what this is"),
    Command("help", READ, people.help_, "list the commands"),
    Command("new [title]", CHANGE, conversations.new, _NEW, aliases=("reset",), moderated=".*"),
    Command("title [title]", CHANGE, conversations.title, "show or set the conversation's title"),
    Command("sessions", READ, conversations.list_sessions, "list this chat's conversations"),
    Command("resume <id>", CHANGE, conversations.resume, "go back to a conversation", moderated=".+"),
    Command("history [n]", READ, conversations.history, "what was said, as it was said"),
    Command("compress [topic]", CHANGE, compression.compress, _COMPRESS, moderated="undo"),
    Command("rules [drop id]", CHANGE, conversations.rules, _RULES, moderated="drop.*"),
    Command("memory [add|remove]", CHANGE, memory.memory, _MEMORY, moderated=r"(add|remove|me\s+add)\b.*"),
    Command("todo [clear]", CHANGE, transaction(todo.todo), "what the agent has to do here", moderated="clear"),
    Command(
        "schedule [list|add|pause|resume|remove|run]",
        CONTROL,
        transaction(schedule.schedule),
        _SCHEDULE,
        moderated=r"add\b.*",
    ),
    Command("model [name]", CHANGE, models.model, _MODEL, moderated=".+"),
    Command("think [low|medium|high|off]", CHANGE, models.think, _THINK),
    Command("approve [id] [once|session|always]", CONTROL, tools.approve, _APPROVE),
    Command("deny [id] [reason]", CONTROL, tools.deny, "say no to what the agent asks about"),
    Command("tools [forget]", READ, tools.tools, "what the agent may use here, and why"),
    Command("stop [all]", CONTROL, stop.stop, "end the running turn; `all` also drops what waits"),
    Command(
        "status",
        CONTROL,
        status.status,
        "model, conversation, context and connections",
        unstored=status.status_unstored,
    ),
    Command("retry", CHANGE, turns.retry, "answer the last message again"),
    Command("undo [n]", CHANGE, turns.undo, "take back the last exchange, or the last n", moderated=".*"),
    Command("queue [message]", MESSAGE, turns.queue, "let a message wait for the next turn; alone: what waits"),
    Command("steer <message>", MESSAGE, turns.steer, "add a message to the running turn"),
    Command("usage", READ, status.usage, _USAGE),
    _admin("insights [days]", READ, status.insights, "what was spent by day, chat, model and purpose"),
    Command("whoami", READ, people.whoami, "your id, your role and this chat's name"),
    _admin("pair list|approve|revoke", CONTROL, people.pair, "see who asks for access, give it or take it away"),
    _admin("mcp", READ, mcp.mcp, "the MCP servers, their tools, and what is wrong with them"),
    _admin("lineage [chat|session]", READ, lineage.lineage, "how the sessions of a chat continue one another"),
    _admin("search <words>", READ, lineage.search, "find what was said, in any chat"),
    _admin("session <id>", READ, lineage.session, "open a session, or the one in which a message was said"),
)

REGISTRY = CommandRegistry(COMMANDS)
