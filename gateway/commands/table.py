"""Table of all commands, in the order in which help and menus show them."""

from functools import partial

from gateway.commands import compression, conversations, keeping, lineage, models, people, status, tools, turns
from gateway.commands.registry import Command, CommandKind, CommandRegistry
from platforms.base import CommandAction as Action
from platforms.base import CommandOption as Option

CONTROL, READ = CommandKind.CONTROL, CommandKind.READ
CHANGE, MESSAGE = CommandKind.CHANGE, CommandKind.MESSAGE

_admin = partial(Command, is_admin_only=True)

_TITLE = Option("title", "a title for the conversation")
_FACT = Option("fact", "the fact to remember", is_required=True)
_ENTRY = Option("entry", "the short name of the entry, or words that only it has", is_required=True)
_NUMBER = Option("number", "the number of the schedule, from the list", is_number=True, is_required=True)


COMMANDS = (
    Command("start", READ, people.start, "what this is"),
    Command("help", READ, people.help_, "list the commands"),
    Command(
        "new",
        CHANGE,
        conversations.new,
        "start a new conversation; the old one is kept",
        (_TITLE,),
        aliases=("reset",),
        moderated=".*",
    ),
    Command("title", CHANGE, conversations.title, "show or set the conversation's title", (_TITLE,)),
    Command("sessions", READ, conversations.list_sessions, "list this chat's conversations"),
    Command(
        "resume",
        CHANGE,
        conversations.resume,
        "go back to a conversation",
        (Option("id", "the id of the conversation, from /sessions", is_required=True),),
        moderated=".+",
    ),
    Command(
        "history",
        READ,
        conversations.history,
        "what was said, as it was said",
        (Option("n", "how many messages to show", is_number=True),),
    ),
    Command(
        "compress",
        CHANGE,
        compression.compress,
        "shorten what the model sees of this conversation; also `here N`, `preview`, `undo`",
        (Option("topic", "the topic to keep in full detail", has_suggestions=True),),
        suggest=lambda _runtime: ("preview", "undo", "here 3"),
        moderated="undo",
    ),
    Command(
        "rules",
        CHANGE,
        conversations.rules,
        "the standing rules of this conversation; `drop m12` ends those of a message",
        actions=(
            Action("list", "show the standing rules"),
            Action(
                "drop",
                "end the rules of a message",
                (Option("id", "the id of the message, such as m12", is_required=True),),
            ),
        ),
        moderated="drop.*",
    ),
    Command(
        "memory",
        CHANGE,
        keeping.memory,
        "what is remembered for this chat; `me add`, `me remove`: about you",
        actions=(
            Action("list", "show what is remembered"),
            Action("add", "remember a fact about the work", (_FACT,)),
            Action("remove", "forget a fact about the work", (_ENTRY,)),
            Action("me add", "remember a fact about you", (_FACT,)),
            Action("me remove", "forget a fact about you", (_ENTRY,)),
        ),
        moderated=r"(add|remove|me\s+add)\b.*",
    ),
    Command(
        "todo",
        CHANGE,
        keeping.todo,
        "what the agent has to do here",
        actions=(Action("list", "show the list"), Action("clear", "empty the list")),
        moderated="clear",
    ),
    Command(
        "schedule",
        CONTROL,
        keeping.schedule,
        "messages that come back here at a time; ask the agent, or `add` one with a cron expression",
        actions=(
            Action("list", "show the scheduled messages"),
            Action(
                "add",
                "schedule a message",
                (
                    Option("when", "for example 0 8 * * mon-fri, @daily, or 2026-11-24 08:00", is_required=True),
                    Option("text", "the message", is_required=True),
                ),
            ),
            Action("pause", "pause a scheduled message", (_NUMBER,)),
            Action("resume", "resume a paused message", (_NUMBER,)),
            Action("remove", "remove a scheduled message", (_NUMBER,)),
            Action("run", "send a scheduled message now as well", (_NUMBER,)),
        ),
        moderated=r"add\b.*",
    ),
    Command(
        "model",
        CHANGE,
        models.model,
        "which model answers here, and which others there are; with a name: choose one",
        (Option("name", "the model to choose", has_suggestions=True),),
        suggest=models.names,
        moderated=".+",
    ),
    Command(
        "think",
        CHANGE,
        models.think,
        "how much the model thinks here before it answers; with a word: choose it",
        (Option("level", "how much to think", models.LEVELS),),
    ),
    Command(
        "approve",
        CONTROL,
        tools.approve,
        "say yes to what the agent asks about: this time, in this conversation, or always here",
        (
            Option("id", "the number of the question, or all"),
            Option("scope", "how long it is allowed", ("once", "session", "always")),
        ),
    ),
    Command(
        "deny",
        CONTROL,
        tools.deny,
        "say no to what the agent asks about",
        (Option("answer", "the number of the question, or all; then the reason, for the agent"),),
    ),
    Command(
        "tools",
        READ,
        tools.tools,
        "what the agent may use here, and why",
        actions=(Action("list", "show the tools"), Action("forget", "take back what was allowed for longer")),
    ),
    Command(
        "stop",
        CONTROL,
        turns.stop,
        "end the running turn; `all` also drops what waits",
        (Option("scope", "all: also drop the waiting messages", ("all",)),),
    ),
    Command(
        "status",
        CONTROL,
        status.status,
        "model, conversation, context and connections",
        unstored=status.status_unstored,
    ),
    Command("retry", CHANGE, turns.retry, "answer the last message again"),
    Command(
        "undo",
        CHANGE,
        turns.undo,
        "take back the last exchange, or the last n",
        (Option("n", "how many exchanges to take back", is_number=True),),
        moderated=".*",
    ),
    Command(
        "queue",
        MESSAGE,
        turns.queue,
        "let a message wait for the next turn; alone: what waits",
        (Option("message", "the message"),),
    ),
    Command(
        "steer",
        MESSAGE,
        turns.steer,
        "add a message to the running turn",
        (Option("message", "the message", is_required=True),),
    ),
    Command("usage", READ, status.usage, "what this conversation has used and cost, and what may still be spent"),
    _admin(
        "insights",
        READ,
        status.insights,
        "what was spent by day, chat, model and purpose",
        (Option("days", "how many days to show", is_number=True),),
    ),
    Command("whoami", READ, people.whoami, "your id, your role and this chat's name"),
    _admin(
        "pair",
        CONTROL,
        people.pair,
        "see who asks for access, give it or take it away",
        actions=(
            Action("list", "show who has access and who asks for it"),
            Action(
                "approve",
                "give access",
                (
                    Option("code", "the pairing code", is_required=True),
                    Option("role", "the person's role", ("user", "admin")),
                ),
            ),
            Action(
                "revoke",
                "take access away",
                (Option("person", "the person's id, such as telegram:42", is_required=True),),
            ),
        ),
    ),
    _admin("mcp", READ, tools.mcp, "the MCP servers, their tools, and what is wrong with them"),
    _admin(
        "lineage",
        READ,
        lineage.lineage,
        "how the sessions of a chat continue one another",
        (Option("place", "the name of a chat, or the id of a session"),),
    ),
    _admin(
        "search",
        READ,
        lineage.search,
        "find what was said, in any chat",
        (Option("words", "the words to find", is_required=True),),
    ),
    _admin(
        "session",
        READ,
        lineage.session,
        "open a session, or the one in which a message was said",
        (Option("id", "the id of a session, or of a message such as m123", is_required=True),),
    ),
)

REGISTRY = CommandRegistry(COMMANDS)
