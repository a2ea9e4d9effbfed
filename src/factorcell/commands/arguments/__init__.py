"""Arguments of each command: a module for each group of commands, with one function per command.

The help imports only these modules, so they import nothing heavier than the config.
"""
