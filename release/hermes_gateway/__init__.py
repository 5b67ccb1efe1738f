"""The installed program. A folder of its own keeps its packages apart from those of hermes-agent."""
