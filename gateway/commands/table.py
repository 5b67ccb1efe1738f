"""Registry of all commands, in the order in which help and menus show them."""

from gateway.commands import compression, conversations, help, lineage, models, people, status, stop, turns, usage
from gateway.commands.registry import CommandRegistry

_MODULES = (help, conversations, compression, models, stop, status, turns, usage, people, lineage)

REGISTRY = CommandRegistry(command for module in _MODULES for command in module.COMMANDS)
