"""The parts that all commands use: the parser, options and the terminal."""
