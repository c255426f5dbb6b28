"""The commands: a module per verb, with its options first and then what it does."""
