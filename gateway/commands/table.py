"""Table of all commands, in the order of `/help` and the menus."""

from functools import partial

from gateway.commands import (
    agents,
    compression,
    conversations,
    groups,
    lineage,
    models,
    notes,
    people,
    privacy,
    status,
    tools,
    turns,
)
from gateway.commands.registry import Command, CommandKind, CommandRegistry
from gateway.switches import VOICE
from platforms.base import CommandAction as Action
from platforms.base import CommandOption as Option

CONTROL, READ = CommandKind.CONTROL, CommandKind.READ
CHANGE, MESSAGE = CommandKind.CHANGE, CommandKind.MESSAGE

_admin = partial(Command, is_admin_only=True)

_TITLE = Option("title", "a title for the conversation")
_FACT = Option("fact", "the fact to remember", is_required=True)
_ENTRY = Option("entry", "the entry's short name, or words that no other entry contains", is_required=True)
_NUMBER = Option("number", "the schedule's number from the list", is_number=True, is_required=True)


COMMANDS = (
    Command("start", READ, people.start, "introduce the bot", place="direct"),
    Command(
        "help", READ, people.help_, "list the commands, or explain one", (Option("command", "the name of a command"),)
    ),
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
    Command(
        "sessions",
        READ,
        conversations.list_sessions,
        "list this chat's conversations",
        (Option("page", "the page of the list", is_number=True),),
    ),
    Command(
        "resume",
        CHANGE,
        conversations.resume,
        "go back to an earlier conversation",
        (Option("id", "the conversation's id from /sessions", is_required=True),),
        moderated=".+",
    ),
    Command(
        "history",
        READ,
        conversations.history,
        "show the original messages of this conversation",
        (Option("n", "how many messages to show", is_number=True),),
    ),
    Command(
        "compress",
        CHANGE,
        compression.compress,
        "summarise older messages for the model; also `here N`, `preview`, `undo`",
        (Option("topic", "the topic to keep in full detail", has_suggestions=True),),
        suggest=lambda _runtime: ("preview", "undo", "here 3"),
        moderated=r"undo( #\w+)?",
    ),
    Command(
        "rules",
        CHANGE,
        conversations.rules,
        "show the standing rules; `drop m12` removes the rules in message m12",
        actions=(
            Action("list", "show the standing rules"),
            Action(
                "drop",
                "remove the rules in a message",
                (Option("id", "the message's id, such as m12", is_required=True),),
            ),
        ),
        moderated="drop.*",
    ),
    Command(
        "memory",
        CHANGE,
        notes.memory,
        "show or edit what I remember about this chat, or about you with `me`",
        actions=(
            Action("list", "show what I remember"),
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
        notes.todo,
        "show or clear the agent's to-do list",
        actions=(Action("list", "show the list"), Action("clear", "clear the list")),
        moderated="clear",
    ),
    Command(
        "schedule",
        CONTROL,
        notes.schedule,
        "list, add or change scheduled messages",
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
            Action("run", "send a scheduled message now", (_NUMBER,)),
        ),
        moderated=r"add\b.*",
    ),
    Command(
        "model",
        CHANGE,
        models.model,
        "show the models, or choose one for this conversation",
        (Option("name", "the model to choose", has_suggestions=True),),
        suggest=models.names,
        moderated=".+",
    ),
    Command(
        "agent",
        CHANGE,
        agents.agent,
        "show which agent answers here, or choose one (admins)",
        (Option("name", "the agent to choose", has_suggestions=True),),
        suggest=agents.names,
    ),
    Command(
        "think",
        CHANGE,
        models.think,
        "show or set how hard the model thinks in this conversation",
        (Option("level", "how hard to think", models.LEVELS),),
    ),
    Command(
        "groupcontext",
        CONTROL,
        groups.groupcontext,
        "show or set whether I read and store what is said in this group",
        (Option("state", "on or off", ("on", "off")),),
        place="groups",
        moderated=".+",
    ),
    Command(
        "approve",
        CONTROL,
        tools.approve,
        "approve the agent's request: once, in this conversation, or always in this chat",
        (
            Option("id", "the number of the request, or all"),
            Option("scope", "how long the permission lasts", ("once", "session", "always")),
        ),
    ),
    Command(
        "deny",
        CONTROL,
        tools.deny,
        "deny the agent's request",
        (Option("answer", "the number of the request, or all; then an optional reason for the agent"),),
    ),
    Command(
        "tools",
        READ,
        tools.tools,
        "list the agent's tools and which of them need approval",
        actions=(Action("list", "show the tools"), Action("forget", "revoke all saved permissions")),
    ),
    Command(
        "steps",
        READ,
        tools.steps,
        "list the steps of the last answer; `off`, `short` or `full` sets what this chat sees during an answer",
        (Option("show", "a level, or the page of the list", ("off", "short", "full")),),
        moderated="off|short|full",
    ),
    Command(
        "reactions",
        READ,
        groups.reactions,
        "show whether reactions are on in this chat, or switch them on or off",
        (Option("state", "on or off", ("on", "off")),),
        moderated="on|off",
    ),
    Command(
        "voice",
        READ,
        groups.voice,
        "show or set which answers in this chat are also spoken",
        (Option("mode", "no answers, those to voice messages, or all answers", VOICE.choices),),
        moderated="off|same|always",
    ),
    Command(
        "stop",
        CONTROL,
        turns.stop,
        "stop the current answer; `all` also clears the queue",
        (Option("scope", "all: also clear the queue", ("all",)),),
    ),
    Command(
        "status",
        CONTROL,
        status.status,
        "show the model, conversation, context and connections",
        unstored=status.status_unstored,
        is_private=True,
    ),
    Command("retry", CHANGE, turns.retry, "answer the last message again"),
    Command(
        "undo",
        CHANGE,
        turns.undo,
        "undo the last exchange, or the last n",
        (Option("n", "how many exchanges to undo", is_number=True),),
        moderated=".*",
    ),
    Command(
        "queue",
        MESSAGE,
        turns.queue,
        "send a message after the current answer; without text, show the queue",
        (Option("message", "the message"),),
    ),
    Command(
        "steer",
        MESSAGE,
        turns.steer,
        "add a message to the current answer",
        (Option("message", "the message", is_required=True),),
    ),
    Command("usage", READ, status.usage, "show usage, cost and spending caps for this conversation"),
    _admin(
        "insights",
        READ,
        status.insights,
        "show spending by day, chat, model and purpose",
        (Option("days", "how many days to show", is_number=True), Option("agent", "only this agent")),
    ),
    Command("whoami", READ, people.whoami, "show your id, your role and this chat's name"),
    Command(
        "privacy",
        READ,
        privacy.privacy,
        "show what I store about you; `export` sends it to you, `delete` deletes it",
        (Option("action", "export or delete", ("export", "delete")),),
    ),
    _admin(
        "forget",
        READ,
        privacy.forget,
        "delete a chat, a conversation or a person",
        (Option("id", "a chat's name, a session's id, or person and the person's id", is_required=True),),
        place="direct",
    ),
    _admin(
        "pair",
        CONTROL,
        people.pair,
        "list, approve or revoke access",
        is_private=True,
        actions=(
            Action("list", "show pairing requests and paired people"),
            Action(
                "approve",
                "approve a pairing code",
                (
                    Option("code", "the pairing code", is_required=True),
                    Option("role", "the person's role", ("user", "admin")),
                ),
            ),
            Action(
                "revoke",
                "revoke a person's access",
                (Option("person", "the person's id, such as telegram:42", is_required=True),),
            ),
        ),
    ),
    _admin("mcp", READ, tools.mcp, "show the MCP servers, their tools and errors"),
    _admin(
        "lineage",
        READ,
        lineage.lineage,
        "show the chain of sessions in a chat",
        (Option("place", "a chat's name or a session's id"),),
    ),
    _admin(
        "search",
        READ,
        lineage.search,
        "search the messages of all chats",
        (Option("words", "the words to find", is_required=True),),
    ),
    _admin(
        "session",
        READ,
        lineage.session,
        "open a session, or the session that contains a message",
        (Option("id", "a session's id, or a message's id such as m123", is_required=True),),
    ),
    _admin(
        "why",
        READ,
        lineage.why,
        "show what happened to a message, from arrival to delivery",
        (Option("message", "a message's id such as m123", is_required=True),),
    ),
)

GROUPS = (
    (
        "Conversation",
        "new title sessions resume history compress rules",
        "/new Rome",
        "starts a conversation called “Rome”",
    ),
    (
        "Answers",
        "stop retry undo queue steer steps approve deny",
        "/queue And by train?",
        "asks this after the current answer",
    ),
    (
        "Memory and settings",
        "memory todo schedule model agent think tools groupcontext reactions voice",
        "/memory me add I prefer metric units",
        "makes me remember that you prefer metric units",
    ),
    ("About", "start help status usage whoami privacy", "/usage", "shows what this conversation costs"),
    (
        "For admins",
        "pair insights search lineage session why mcp forget",
        "/search train tickets",
        "searches all chats",
    ),
)

REGISTRY = CommandRegistry(COMMANDS, GROUPS)
