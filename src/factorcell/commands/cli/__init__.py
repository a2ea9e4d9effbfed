"""The parts that all commands use: the parser, options, the terminal and streams."""
