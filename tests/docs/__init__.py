"""The README and the guides, block by block: what a reader may copy is run."""
