"""The daemon: configuration, intake, lanes, commands, delivery, command line. Knows every part."""
