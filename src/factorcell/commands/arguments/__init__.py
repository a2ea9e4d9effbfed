"""Arguments of the commands: each module is for a group of commands and has a function for each of them.

The help of a command must appear quickly: it imports one of these modules, and they import nothing heavier than the
config.
"""
