"""Which model answers: routes, clients, prices and context windows, as the configuration has them."""
