import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddm.core.examples import Examples, Members, Normalization
from feddm.core.tensors import CPU

HALF = Normalization(mean=(0.5, 0.25), std=(0.5, 0.25))


def test_normalization_by_hand() -> None:
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 2, 1, 2)
    # (0 - .5) / .5 and (1 - .5) / .5; (0 - .25) / .25 and (1 - .25) / .25
    assert HALF.inputs(pixels).flatten().tolist() == pytest.approx([-1, 1, -1, 3])


def test_every_pixel_value_round_trips() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 2, 1, 1)
    assert torch.equal(HALF.pixels(HALF.inputs(pixels)), pixels)


def test_pixels_out_of_range_are_clamped() -> None:
    inputs = torch.tensor([-9.0, 9.0]).view(1, 1, 1, 2).repeat(1, 2, 1, 1)
    assert HALF.pixels(inputs).flatten().tolist() == [0, 255, 0, 255]


def test_selecting_examples() -> None:
    x = torch.arange(8, dtype=torch.uint8).view(4, 2, 1, 1)
    data = Examples(x, torch.tensor([5, 6, 7, 8]), HALF, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    index = torch.tensor([2, 0])
    batch = data[index]
    assert torch.equal(batch.x, HALF.inputs(x[index]))
    assert batch.y.tolist() == [7, 5]
    assert batch.weight is not None
    assert batch.weight.tolist() == [3, 1]
    part = data.subset(index)
    assert part.x.dtype == torch.uint8
    assert len(part) == 2
    assert torch.equal(part[torch.tensor([0, 1])].x, batch.x)


def test_inputs_are_not_normalized_again() -> None:
    data = Examples(torch.randn(3, 1, 2, 2), torch.tensor([0, 1, 0]))
    assert torch.equal(data[torch.tensor([1])].x, data.x[1:2])
    assert data[torch.tensor([1])].weight is None


def test_tensors_already_on_the_device_are_not_copied() -> None:
    data = Examples(torch.zeros(2, 2, 1, 1), torch.tensor([0, 1]), HALF, torch.ones(2))
    same = data.to(CPU)
    assert same.x is data.x
    assert same.y is data.y
    assert same.weight is data.weight
    assert same.normalization == HALF
    assert Examples(data.x, data.y).to(CPU).weight is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 5))
def test_every_example_of_a_large_class_has_its_slot(labels: list[int], size: int) -> None:
    data = Examples(torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels))
    classes, members = data.by_class(size)
    assert classes == [c for c in range(10) if labels.count(c) >= size]
    # Ordered by class, in their original order within each.
    found = list(zip(members.slots.tolist(), members.index.tolist(), strict=True))
    assert found == [
        (slot, place)
        for slot, label in enumerate(classes)
        for place in range(len(labels))
        if labels[place] == label
    ]
    assert members.counts.tolist() == [labels.count(c) for c in classes]


def test_classes_below_the_size_are_left_out() -> None:
    labels = torch.tensor([3] * 10 + [1] * 9 + [0] * 11)
    classes, members = Examples(torch.zeros(30, 1, 1, 1), labels).by_class(10)
    assert classes == [0, 3]
    assert members.index.tolist() == [*range(19, 30), *range(10)]
    assert members.slots.tolist() == [0] * 11 + [1] * 10
    assert members.counts.tolist() == [11, 10]


def test_no_class_is_large_enough() -> None:
    classes, members = Examples(torch.zeros(2, 1, 1, 1), torch.tensor([0, 5])).by_class(2)
    assert classes == []
    assert len(members.index) == len(members.slots) == 0


class TestSample:
    MEMBERS = Members(torch.tensor([*range(10, 20), 3, 5]), torch.tensor([0] * 10 + [1] * 2))

    def test_without_replacement_and_ordered_by_class(self) -> None:
        for seed in range(20):
            drawn = self.MEMBERS.sample(4, torch.Generator().manual_seed(seed))
            assert drawn.slots.tolist() == [0, 0, 0, 0, 1, 1]
            assert len(set(drawn.index[:4].tolist())) == 4
            assert set(drawn.index[:4].tolist()) <= set(range(10, 20))
            assert sorted(drawn.index[4:].tolist()) == [3, 5]

    def test_all_of_them(self) -> None:
        assert self.MEMBERS.sample(None, torch.Generator()) is self.MEMBERS

    def test_more_than_available_gives_all(self) -> None:
        drawn = self.MEMBERS.sample(100, torch.Generator().manual_seed(0))
        assert torch.equal(drawn.slots, self.MEMBERS.slots)
        assert sorted(drawn.index.tolist()) == sorted(self.MEMBERS.index.tolist())

    def test_the_sample_depends_on_the_generator(self) -> None:
        first, again, other = (
            self.MEMBERS.sample(4, torch.Generator().manual_seed(seed)).index.tolist()
            for seed in (1, 1, 2)
        )
        assert first == again != other

    def test_no_examples(self) -> None:
        nobody = torch.empty(0, dtype=torch.int64)
        drawn = Members(nobody, nobody).sample(3, torch.Generator())
        assert len(drawn.index) == len(drawn.slots) == 0

    def test_every_example_is_equally_likely(self) -> None:
        rng = torch.Generator().manual_seed(0)
        drawn = torch.cat([self.MEMBERS.sample(4, rng).index for _ in range(2000)])
        counts = torch.bincount(drawn, minlength=20)[10:20]
        # Each is drawn 800 times on average, with a standard deviation of 22.
        assert int((counts - 800).abs().max()) < 110
