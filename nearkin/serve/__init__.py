"""The gallery over HTTP, and its web page."""
