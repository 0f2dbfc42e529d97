"""The claims of each seed document, one file each, in the order of `docs/book`."""
