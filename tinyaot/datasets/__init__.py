"""Two small real data sets that ship with the package (see README.md beside this file).

Both come as NumPy data or text, so that a training script shows how tensors are made of them.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """Training and test part of a labelled data set."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


@cache
def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with resources.files(__name__).joinpath("digits.npz").open("rb") as file, np.load(file) as data:
        return data["images"], data["labels"].astype(np.int64), data["test"]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 handwritten digits: images uint8[1797,64] (8x8 pixels, row by row, 0 is white and 16
    is ink) and labels int64[1797], 0 to 9. The arrays are the caller's own."""
    images, labels, _ = _digits()
    return images.copy(), labels.copy()


def digits_split() -> Split:
    """The digits in two fixed parts: 355 images for the test, a fifth of every class drawn once at
    random, and the other 1,442 for training."""
    images, labels, test = _digits()
    return Split(images[~test], labels[~test], images[test], labels[test])


@cache
def text() -> str:
    """677 kB of public-domain English prose and verse in ASCII, 63 different characters: one verse
    a line, a blank line between chapters."""
    compressed = resources.files(__name__).joinpath("text.txt.gz").read_bytes()
    return gzip.decompress(compressed).decode("ascii")
