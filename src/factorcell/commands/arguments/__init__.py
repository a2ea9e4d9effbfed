"""What each verb takes, a module for each group of verbs and a function for each verb, in the order of their use.

The help needs these and no more, so nothing heavier than the config is imported here.
"""
