"""Sandbox providers: the protocol they follow, the registry that finds them, and the built-in ones."""
