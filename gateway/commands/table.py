"""All commands, in the order in which help shows them."""

from gateway.commands import compression, conversations, lineage, models, people, turns
from gateway.commands import usage as costs
from gateway.commands.registry import CommandRegistry

REGISTRY = CommandRegistry(
    (
        *people.COMMANDS[:2],
        *conversations.COMMANDS,
        *compression.COMMANDS,
        *models.COMMANDS,
        *turns.COMMANDS,
        *costs.COMMANDS,
        *people.COMMANDS[2:],
        *lineage.COMMANDS,
    )
)
