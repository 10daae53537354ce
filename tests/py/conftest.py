"""What all tests of the Python package share."""

from __future__ import annotations

import signal

# A run that was started in the background may have these ignored, and so would the programs that tests start.
# Tests send them and expect what a user at a terminal would see.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
