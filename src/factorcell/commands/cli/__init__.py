"""What all commands share: the parser, options, the terminal and streams."""
