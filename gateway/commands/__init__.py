"""Commands: what people can ask the gateway itself, the same on every platform."""
