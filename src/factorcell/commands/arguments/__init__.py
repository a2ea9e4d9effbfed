"""Arguments of the commands: a module for each group of commands, with a function for each command.

The help of a command imports only one of these modules, which therefore import nothing heavier than the config.
"""
