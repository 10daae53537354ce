"""Private plumbing between the public API and the Go library.

``lib`` finds and loads the library, ``loop`` joins it to event loops, ``codec`` and ``errors`` translate, and ``native``
is the base class of the providers that are built into it. Importing this package loads nothing.
"""
