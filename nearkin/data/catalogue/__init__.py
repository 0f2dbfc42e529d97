"""The catalogue: data sets with a name, opened from their published layouts or downloaded."""

from nearkin.data.catalogue import (  # noqa: F401  (each enters its data sets)
    audiomnist,
    cars,
    cifar,
    cub,
    digits,
    fashion,
    flowers,
    inshop,
    mini_imagenet,
    mnist,
    nabirds,
    omniglot,
    pacs,
    products,
    voxceleb,
    zooscan,
)
from nearkin.data.catalogue.digits import open_digits
from nearkin.data.catalogue.entry import Entry, catalogue
from nearkin.data.catalogue.fashion import Opened, open_fashion_mnist
from nearkin.data.catalogue.opening import catalogue_table, list_entries, open_named
from nearkin.data.catalogue.places import cache_directory, data_directory

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
