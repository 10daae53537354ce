"""Other ways to describe sandboxes."""
