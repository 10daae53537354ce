"""Sandboxes for agents: create one, run commands in it, stop it, whatever the backend."""
