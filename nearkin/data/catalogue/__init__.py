"""The catalogue: data sets with a name, opened from their published layouts or downloaded."""

from nearkin.data.catalogue import mnist, nature, objects, products, speech  # noqa: F401  (each enters its data sets)
from nearkin.data.catalogue.entry import Entry, catalogue, catalogue_table, data_directory, list_entries, open_named
from nearkin.data.catalogue.mnist import Opened, open_digits, open_fashion_mnist
from nearkin.storage import cache_directory

__all__ = [
    "Entry",
    "Opened",
    "cache_directory",
    "catalogue",
    "catalogue_table",
    "data_directory",
    "list_entries",
    "open_digits",
    "open_fashion_mnist",
    "open_named",
]
