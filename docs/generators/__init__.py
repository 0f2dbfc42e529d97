"""The tables that the hook of the docs fills in: each part has its own in `TABLES`, a maker for each mark."""
