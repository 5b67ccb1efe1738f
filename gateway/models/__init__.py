"""Models of the configuration: which one answers, clients, prices and context windows."""
