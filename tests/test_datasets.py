"""The data that ships: its size, its range, its fixed split."""

from __future__ import annotations

import numpy as np

from tinyaot import datasets


def test_digits() -> None:
    images, labels = datasets.digits()
    assert images.shape == (1797, 64) and images.dtype == np.uint8
    assert labels.shape == (1797,) and labels.dtype == np.int64
    assert images.min() == 0 and images.max() == 16 and int(images.sum()) == 561718
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    images[:] = 0  # the caller's own
    assert datasets.digits()[0].any()


def test_digits_split() -> None:
    split = datasets.digits_split()
    assert len(split.train_images) == len(split.train_labels) == 1442
    assert len(split.test_images) == len(split.test_labels) == 355
    together = np.concatenate([split.train_images, split.test_images])
    images, labels = datasets.digits()
    assert sorted(map(bytes, together)) == sorted(map(bytes, images))
    share = np.bincount(split.test_labels) / np.bincount(labels)
    assert (abs(share - 0.2) < 0.006).all()
    np.testing.assert_array_equal(split.test_images, datasets.digits_split().test_images)


def test_text() -> None:
    text = datasets.text()
    assert len(text) == 676833 and text.isascii() and len(set(text)) == 63
    assert text.startswith("In the beginning God created the heaven and the earth.\n")
    assert text.count("\n\n") == 50 + 4 + 150 + 31 + 12 + 24 - 1  # between chapters


def test_data_names_its_source_and_licence() -> None:
    from importlib import resources

    words = resources.files(datasets).joinpath("README.md").read_text()
    for name in ("UCI", "Alpaydin", "Attribution 4.0", "public domain", "bible-kjv-text"):
        assert name in words
