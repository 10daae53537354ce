"""Measures the package beside the floor of each backend, in one process and in turns.

``python -m bench`` prints a table in Markdown. Absolute figures say little on a machine that does other work too: what
counts is the ratio, taken inside a block in which all sides had the same machine, and the median over the blocks.
"""
