"""What can be said on the command line: a module per verb, its options first, then what it does."""
