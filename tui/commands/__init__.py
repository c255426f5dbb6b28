"""What can be said on the command line: a module per group of commands, each with `add_to`. Nothing heavy is imported
before a command runs."""
