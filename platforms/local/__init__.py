"""Local web chat: a page on this machine, so that the gateway is useful with nothing configured."""
