import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddm.core.augmentation import Augmentation
from feddm.core.examples import Examples, Members, Normalization
from feddm.core.matching import (
    ClassMeans,
    Distance,
    Target,
    class_means,
    completing,
    fresh_targets,
    matching_loss,
    real_means,
    relative_loss,
    sample_near,
    synthesize,
    whole_slots,
)
from feddm.core.models import ConvNet
from feddm.core.seeding import generator
from feddm.core.tensors import norm, zip_map
from toy import TwoParameters, pixels, point

MODEL = TwoParameters()
PARAMS = point(2.0, 3.0)

# Everything below is at a = 2, b = 3, so h = 2 x and the first logit is 6 x.
# Real images 1 and 3: mean h = 4, mean z = 12. Synthetic ones 0 and 2: 2 and 6.
REAL = Examples(pixels(1.0, 3.0), torch.tensor([0, 0]))
SYNTHETIC = pixels(0.0, 2.0)
SLOTS = torch.tensor([0, 0])
BOTH = Members(torch.tensor([0, 1]), SLOTS)


def targets(params: dict[str, torch.Tensor] = PARAMS) -> list[Target]:
    return [Target(params, real_means(MODEL, params, REAL, BOTH))]


def test_real_means_by_hand() -> None:
    means = targets()[0].means
    assert means.embedding.tolist() == [[4.0]]
    assert means.logits.tolist() == [[12.0, 0.0]]


def test_loss_by_hand() -> None:
    synthetic = class_means(MODEL(PARAMS, SYNTHETIC), SLOTS, 1)
    # (4 - 2)^2 + (12 - 6)^2
    assert float(matching_loss(targets()[0].means, synthetic)) == 40.0


def test_loss_sums_over_classes() -> None:
    # A second class with real mean 1 and a synthetic image 2: (2 - 4)^2 + (6 - 12)^2 = 40 too.
    real = Examples(pixels(1.0, 3.0, 1.0), torch.tensor([0, 0, 1]))
    means = real_means(
        MODEL, PARAMS, real, Members(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
    )
    outputs = MODEL(PARAMS, pixels(0.0, 2.0, 2.0))
    assert float(matching_loss(means, class_means(outputs, torch.tensor([0, 0, 1]), 2))) == 80.0


class TestCompleting:
    """Targets of new images that match together with earlier ones."""

    def completed(self, earlier: list[float], new: int) -> ClassMeans:
        slots = torch.zeros(len(earlier), dtype=torch.int64)
        found = completing(MODEL, targets(), pixels(*earlier), slots, torch.tensor([new]))
        return next(found).means

    def test_by_hand(self) -> None:
        # The earlier image 5 has h = 10 and z = 30. Two new ones with the means h = 1 and z = 3
        # have, together with it, (2 * 1 + 10) / 3 = 4 and (2 * 3 + 30) / 3 = 12.
        means = self.completed([5.0], new=2)
        assert means.embedding.tolist() == [[1.0]]
        assert means.logits.tolist() == [[3.0, 0.0]]

    def test_earlier_images_that_match_change_nothing(self) -> None:
        means = self.completed([1.0, 3.0], new=1)
        assert (means.embedding.tolist(), means.logits.tolist()) == ([[4.0]], [[12.0, 0.0]])

    def test_a_class_without_earlier_images_keeps_its_target(self) -> None:
        real = Examples(pixels(1.0, 3.0, 4.0), torch.tensor([0, 0, 1]))
        members = Members(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
        both = Target(PARAMS, real_means(MODEL, PARAMS, real, members))
        found = completing(MODEL, [both], pixels(5.0), torch.tensor([0]), torch.tensor([2, 3]))
        assert next(found).means.embedding.tolist() == [[1.0], [8.0]]

    @given(st.lists(st.floats(-3, 3), min_size=1, max_size=70), st.integers(1, 9))
    def test_all_images_together_match(self, earlier: list[float], new: int) -> None:
        goal = float(self.completed(earlier, new).embedding)
        images = pixels(*earlier, *[goal / 2] * new)  # h = 2 x
        slots = torch.zeros(len(images), dtype=torch.int64)
        together = class_means(MODEL(PARAMS, images), slots, 1)
        assert float(together.embedding) == pytest.approx(4.0, abs=1e-3)

    def test_earlier_images_are_changed_like_the_others(self) -> None:
        doubled = targets()[0]._replace(transform=lambda images: 2 * images)
        slots, new = torch.tensor([0]), torch.tensor([1])
        found = next(completing(MODEL, [doubled], pixels(5.0), slots, new))
        assert found.means.embedding.tolist() == [[4.0 + (4.0 - 20.0)]]


class TestRelative:
    """Distances relative to the real means."""

    def test_by_hand(self) -> None:
        synthetic = class_means(MODEL(PARAMS, SYNTHETIC), SLOTS, 1)
        # 40, as above, over 4^2 + 12^2
        assert float(relative_loss(targets()[0].means, synthetic)) == 0.25

    def test_every_class_has_its_own_scale(self) -> None:
        real = ClassMeans(torch.tensor([[1.0], [10.0]]), torch.zeros(2, 2))
        ours = ClassMeans(torch.tensor([[0.0], [0.0]]), torch.zeros(2, 2))
        assert float(matching_loss(real, ours)) == 101.0
        assert float(relative_loss(real, ours)) == 2.0

    def test_step_by_hand(self) -> None:
        # The gradient of 40 is -40 for each image (below), so -40 / 160 here.
        moved, losses = synthesize(
            MODEL, SYNTHETIC, SLOTS, targets(), lr=1.0, steps=1, distance=relative_loss
        )
        assert moved.flatten().tolist() == [0.25, 2.25]
        assert losses == [0.25]

    @given(st.floats(0.1, 10.0))
    def test_steps_do_not_grow_with_the_outputs(self, factor: float) -> None:
        """At a = 2 k and b = 3, embedding and logits are k times as large."""

        def step(k: float, distance: Distance) -> torch.Tensor:
            seen = targets(point(2.0 * k, 3.0))
            return synthesize(
                MODEL, SYNTHETIC, SLOTS, seen, lr=0.01, steps=1, distance=distance
            )[0]

        torch.testing.assert_close(step(factor, relative_loss), step(1.0, relative_loss))
        moved = step(factor, matching_loss) - SYNTHETIC
        torch.testing.assert_close(moved, (step(1.0, matching_loss) - SYNTHETIC) * factor**2)

    def test_a_class_with_zero_means_is_left_out(self) -> None:
        real = ClassMeans(torch.tensor([[0.0], [10.0]]), torch.zeros(2, 2))
        ours = ClassMeans(torch.tensor([[0.1], [5.0]]), torch.zeros(2, 2))
        assert float(relative_loss(real, ours)) == 0.25

    def test_a_network_with_zero_outputs_changes_nothing(self) -> None:
        moved, losses = synthesize(
            MODEL,
            SYNTHETIC,
            SLOTS,
            targets(point(0.0, 3.0)),
            lr=1.0,
            steps=1,
            distance=relative_loss,
        )
        assert torch.equal(moved, SYNTHETIC)
        assert losses == [0.0]


def test_gradient_by_hand() -> None:
    # d/dx_i [(4 - 2 m)^2 + (12 - 6 m)^2] with m = mean(x) = 1 and dm/dx_i = 1/2:
    # (-2 * 2 * 2 - 2 * 6 * 6) / 2 = -40 for both images; a step of .01 moves them by .4.
    images, losses = synthesize(MODEL, SYNTHETIC, SLOTS, targets(), lr=0.01, steps=1)
    assert losses == [40.0]
    assert images.flatten().tolist() == pytest.approx([0.4, 2.4])


def test_momentum_by_hand() -> None:
    # After the first step m = 1.4; the gradient is -(2 (4 - 2.8) + 6 (12 - 8.4)) = -24 and the
    # velocity .5 * -40 - 24 = -44.
    images, losses = synthesize(
        MODEL, SYNTHETIC, SLOTS, targets() * 2, lr=0.01, momentum=0.5, steps=2
    )
    assert losses == pytest.approx([40.0, 1.2**2 + 3.6**2])
    assert images.flatten().tolist() == pytest.approx([0.84, 2.84])


def test_no_step_leaves_the_images_and_draws_no_network() -> None:
    images, losses = synthesize(MODEL, SYNTHETIC, SLOTS, iter(()), lr=1.0, steps=0)
    assert torch.equal(images, SYNTHETIC)
    assert losses == []


def test_synthesize_leaves_its_arguments_unchanged() -> None:
    start = SYNTHETIC.clone()
    synthesize(MODEL, start, SLOTS, targets(), lr=1.0, steps=1)
    assert torch.equal(start, SYNTHETIC)


def test_matching_converges_to_the_real_mean() -> None:
    images, losses = synthesize(
        MODEL, SYNTHETIC, SLOTS, itertools.cycle(targets()), lr=0.01, steps=50
    )
    assert float(images.mean()) == pytest.approx(2.0, abs=1e-4)
    assert losses[-1] < 1e-6


def test_means_do_not_depend_on_chunks() -> None:
    model = ConvNet((1, 8, 8), 4, width=4, depth=2)
    params = model.init(generator(0, "test"))
    pictures = torch.randint(0, 256, (300, 1, 8, 8), dtype=torch.uint8)
    data = Examples(
        pictures, torch.zeros(300, dtype=torch.int64), Normalization((0.3,), (0.4,))
    )
    parts = [torch.arange(0, 250), torch.tensor([299]), torch.arange(250, 299)]
    slots = torch.tensor([0] * 250 + [1] + [2] * 49)
    means = real_means(model, params, data, Members(torch.cat(parts), slots))
    for slot, index in enumerate(parts):
        outputs = model(params, data[index].x)
        for mean, output in zip(means, outputs, strict=True):
            torch.testing.assert_close(mean[slot], output.mean(0), rtol=1e-4, atol=1e-5)


class TestSampleNear:
    def test_by_hand_inside_and_outside_of_the_ball(self) -> None:
        rng = generator(3, "test")
        u, v = (float(torch.randn((), generator=rng)) for _ in range(2))  # a, then b
        length = math.hypot(u, v)
        free = sample_near(PARAMS, length * 2, generator(3, "test"))
        assert float(free["a"]) == pytest.approx(2 + u)
        assert float(free["b"]) == pytest.approx(3 + v)
        clipped = sample_near(PARAMS, length / 2, generator(3, "test"))
        assert float(clipped["a"]) == pytest.approx(2 + u / 2)
        assert float(clipped["b"]) == pytest.approx(3 + v / 2)

    def test_radius_zero_is_the_center(self) -> None:
        assert sample_near(PARAMS, 0.0, generator(0, "test")) == PARAMS

    @given(st.integers(0, 2**31), st.floats(0.01, 10))
    def test_never_leaves_the_ball(self, seed: int, radius: float) -> None:
        sampled = sample_near(PARAMS, radius, generator(seed, "test"))
        assert norm(zip_map(torch.sub, sampled, PARAMS)) <= radius * (1 + 1e-5) + 1e-6

    def test_in_many_dimensions_clipping_always_applies(self) -> None:
        params = {"b": torch.zeros(300, 10), "a": torch.zeros(7000)}
        for seed in range(5):
            sampled = sample_near(params, 5.0, generator(seed, "test"))
            assert norm(sampled) == pytest.approx(5.0, rel=1e-5)
            # One Gaussian over all parameters: squared norms are proportional to sizes.
            share = float(sampled["b"].square().sum()) / 25
            assert share == pytest.approx(0.3, abs=0.03)
            assert abs(float(sampled["a"].mean())) < 5 * 5 / 100 / math.sqrt(7000)

    def test_order_of_names_does_not_matter(self) -> None:
        swapped = {"b": PARAMS["b"], "a": PARAMS["a"]}
        first = sample_near(PARAMS, 1.0, generator(0, "t"))
        second = sample_near(swapped, 1.0, generator(0, "t"))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_fresh_targets_are_new_networks_with_their_own_means() -> None:
    drawn = list(
        itertools.islice(
            fresh_targets(MODEL, PARAMS, 1.0, REAL, BOTH, None, generator(0, "test")),
            3,
        )
    )
    assert len({float(target.params["a"]) for target in drawn}) == 3
    for target in drawn:
        expected = 2 * float(target.params["a"])  # the mean of 1 and 3 is 2
        assert float(target.means.embedding) == pytest.approx(expected)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_loss_is_zero_only_for_equal_means(values: list[float]) -> None:
    outputs = MODEL(PARAMS, pixels(*values))
    means = class_means(outputs, torch.zeros(len(values), dtype=torch.int64), 1)
    assert float(matching_loss(means, means)) == 0.0
    shifted = ClassMeans(means.embedding + 1, means.logits)
    assert float(matching_loss(means, shifted)) == pytest.approx(1.0)


class TestAugmentation:
    """Synthetic images are transformed like the real ones."""

    MODEL = ConvNet((3, 8, 8), 2, width=4, depth=2)

    def drawn(self) -> tuple[Examples, Members, list[Target]]:
        rng = generator(0, "test")
        data = Examples(torch.randn(12, 3, 8, 8, generator=rng), torch.arange(12) % 2)
        _, members = data.by_class(1)
        endless = fresh_targets(
            self.MODEL,
            self.MODEL.init(rng),
            1.0,
            data,
            members,
            None,
            generator(1, "test"),
            Augmentation(),
        )
        return data, members, list(itertools.islice(endless, 6))

    def test_the_real_images_themselves_match(self) -> None:
        data, members, targets = self.drawn()
        real = data.x[members.index]
        images, losses = synthesize(self.MODEL, real, members.slots, targets, lr=1.0, steps=6)
        assert max(losses) < 1e-9
        torch.testing.assert_close(images, real, rtol=0, atol=1e-3)

    def test_each_network_has_its_own_transform(self) -> None:
        data, members, targets = self.drawn()
        assert len({float(target.transform(data.x).sum()) for target in targets}) > 3
        for target in targets:
            outputs = self.MODEL(target.params, target.transform(data.x[members.index]))
            expected = class_means(outputs, members.slots, 2)
            torch.testing.assert_close(target.means.logits, expected.logits)


class TestGroups:
    """A step processes a few classes at a time, which only saves memory."""

    MODEL = ConvNet((1, 8, 8), 7, width=4, depth=2)

    def test_pool_and_fresh_networks_give_the_same_loss_and_gradient(self) -> None:
        # Two networks with their real batches, drawn step by step or kept in a pool.
        rng = generator(0, "test")
        data = Examples(torch.randn(60, 1, 8, 8, generator=rng), torch.arange(60) % 3)
        _, members = data.by_class(1)
        params = self.MODEL.init(rng)
        start = torch.randn(30, 1, 8, 8, generator=rng)
        slots = torch.arange(3).repeat_interleave(10)

        def targets() -> Iterator[Target]:
            return fresh_targets(
                self.MODEL, params, 1.0, data, members, 8, generator(1, "test")
            )

        fresh = synthesize(self.MODEL, start, slots, targets(), lr=1.0, steps=2)
        pool = list(itertools.islice(targets(), 2))
        pooled = synthesize(self.MODEL, start, slots, itertools.cycle(pool), lr=1.0, steps=2)
        assert fresh[1] == pooled[1]
        assert torch.equal(fresh[0], pooled[0])

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=7))
    @settings(deadline=None, max_examples=20)
    def test_groups_of_classes_give_the_gradient_of_all_at_once(
        self, counts: list[int]
    ) -> None:
        rng = generator(len(counts), "test")
        params = self.MODEL.init(rng)
        slots = torch.repeat_interleave(torch.tensor(counts))
        images = torch.randn(len(slots), 1, 8, 8, generator=rng)
        means = ClassMeans(
            torch.randn(len(counts), 16, generator=rng),
            torch.randn(len(counts), 7, generator=rng),
        )
        leaf = images.clone().requires_grad_()
        whole = matching_loss(means, class_means(self.MODEL(params, leaf), slots, len(counts)))
        (gradient,) = torch.autograd.grad(whole, leaf)
        moved, losses = synthesize(
            self.MODEL, images, slots, [Target(params, means)], lr=1.0, steps=1
        )
        torch.testing.assert_close(images - moved, gradient, rtol=1e-3, atol=1e-5)
        assert losses == pytest.approx([float(whole.detach())], rel=1e-4)

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 20))
    def test_groups_cover_all_slots_once(self, counts: list[int], most: int) -> None:
        slots = torch.repeat_interleave(torch.tensor(counts))
        groups = list(whole_slots(slots, most))
        covered = [slot for first, last, _ in groups for slot in range(first, last)]
        assert covered == list(range(len(counts)))
        for first, last, part in groups:
            assert slots[part].unique().tolist() == list(range(first, last))
        sizes = [last - first for first, last, _ in groups]
        assert max(sizes) - min(sizes) <= 1
        if len(set(counts)) == 1 and len(counts) * counts[0] % most == 0:
            assert all(len(slots[part]) <= most + counts[0] for _, _, part in groups)
        assert sum(len(slots[part]) for _, _, part in groups) == len(slots)
