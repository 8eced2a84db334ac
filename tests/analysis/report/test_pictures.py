import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fabricated import config, images
from feddm.analysis.report.pictures import (
    TILES_IN_A_ROW,
    Split,
    fitting,
    neighbours,
    png,
    sheet,
    tiled,
)
from feddm.core.examples import Examples, Normalization
from feddm.data.catalog import describe
from feddm.data.datasets import Dataset
from feddm.errors import DataError
from feddm.runtime.synthetic_file import SyntheticSet


@pytest.mark.parametrize("channels", [1, 3])
def test_another_program_reads_the_same_pixels(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    with Image.open(io.BytesIO(png(pixels))) as image:
        image.load()
        np.testing.assert_array_equal(np.asarray(image).reshape(5, 7, channels), pixels)


def test_tiles_are_placed_row_by_row() -> None:
    values = np.arange(TILES_IN_A_ROW + 2, dtype=np.uint8)
    sheet_ = tiled(np.broadcast_to(values[:, None, None, None], (len(values), 1, 2, 3)))
    assert sheet_.shape == (4, 3 * TILES_IN_A_ROW, 1)
    assert sheet_[1, 3 * 5 + 2, 0] == 5
    assert sheet_[3, 3 + 1, 0] == TILES_IN_A_ROW + 1
    assert not sheet_[2:, 6:].any()


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_as_many_of_each_as_fit(sizes: list[int], most: int) -> None:
    # Two classes per client.
    clients = np.repeat(np.arange(len(sizes)) // 2, sizes)
    labels = np.repeat(np.arange(len(sizes)) % 2, sizes)
    kept = fitting(clients, labels, most)
    assert len(kept) <= most
    assert (np.diff(kept) > 0).all()
    if len(sizes) <= most:
        counts = [
            ((clients[kept] == n // 2) & (labels[kept] == n % 2)).sum()
            for n in range(len(sizes))
        ]
        each = max(counts)
        assert counts == [min(each, size) for size in sizes]
        more = sum(min(each + 1, size) for size in sizes)
        assert more > most or more == len(kept)
    else:
        # One image per class for as many whole clients as fit, or part of the first client.
        whole = most // 2 * 2
        assert len(kept) == (whole or most)


def test_a_sheet_is_sorted_by_client_and_class() -> None:
    # In the file, client 1 comes first, and its class 2 before its class 0.
    x = torch.tensor([10, 20, 30, 40]).view(4, 1, 1, 1).expand(4, 1, 2, 2) / 255
    examples = Examples(x, torch.tensor([2, 0, 1, 1]))
    plain = Normalization((0.0,), (1.0,))
    made = SyntheticSet(examples, torch.tensor([1, 1, 0, 0]).int(), ("a", "b", "c"), plain)
    all_ = sheet("feddm", 3, 20, made, room=1000)
    assert (all_.clients, all_.labels) == ((0, 0, 1, 1), (1, 1, 0, 2))
    with Image.open(io.BytesIO(all_.png)) as image:
        assert np.asarray(image)[0, ::2].tolist() == [30, 40, 20, 10]
    some = sheet("feddm", 3, 20, made, room=3 * 4)
    assert (some.clients, some.labels, some.total) == ((0, 1, 1), (1, 0, 2), 4)


def test_images_that_cannot_be_shown() -> None:
    with pytest.raises(DataError, match="cannot show images of shape"):
        sheet("feddm", 0, 1, images(1, "01", 1, shape=(2, 4, 4)), 1000)
    with pytest.raises(DataError, match="cannot show images of shape"):
        sheet("feddm", 0, 1, images(0), 1000)


def test_a_neighbour_is_the_nearest_of_the_same_client_and_class() -> None:
    def pixels(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1)

    #                   client 0: 10, 90 of class 0, 51 of class 1;  client 1: 50 of class 0
    train = Examples(pixels(10, 90, 51, 50), torch.tensor([0, 0, 1, 0]))
    dataset = Dataset(describe("digits"), train, train)
    split = Split(dataset, [np.array([0, 1, 2]), np.array([3])])
    plain = Normalization((0.0,), (1.0,))
    made = SyntheticSet(
        Examples(pixels(48, 60, 0, 50) / 255, torch.tensor([0, 0, 0, 1])),
        torch.tensor([0, 0, 1, 1]),
        ("a", "b"),
        plain,
    )
    near = neighbours(made, np.arange(4), split)
    # Client 1 has no example of class 1.
    assert near.flatten().tolist() == [10, 90, 50, 0]


def test_changed_data_is_an_error() -> None:
    configuration = config()
    split = Split.of(configuration, None)
    assert len(split.shards) == 10
    assert sum(map(len, split.shards)) == len(split.dataset.train)
    with pytest.raises(DataError, match="data set digits has changed"):
        Split.of(configuration, "another digest")
