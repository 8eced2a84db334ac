import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from feddm.core.examples import Members
from feddm.core.grouping import Plan, alike, even_shares, grouped


@given(st.integers(0, 200), st.integers(1, 30))
def test_shares_are_even(total: int, parts: int) -> None:
    shares = even_shares(total, parts)
    assert len(shares) == parts
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


class TestAlike:
    def test_four_corners_by_hand(self) -> None:
        # The long side is parted first, and then each half along the short one.
        rows = torch.tensor([[9.0, 1.0], [0.0, 0.0], [9.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
        groups = alike(rows, [1, 1, 1, 1])
        assert sorted(sorted(group.tolist()) for group in groups) == [
            [0, 4],
            [1, 5],
            [2, 6],
            [3, 7],
        ]
        first = torch.cat(groups[:2])
        assert rows[first, 0].unique().numel() == 1

    def test_the_longest_direction_need_not_be_an_axis(self) -> None:
        # Along (1, 1) they differ by far more than along (1, -1).
        along = torch.randperm(20, generator=torch.Generator().manual_seed(0)).float()
        across = torch.tensor([1.0, -1.0]).repeat(10)
        rows = torch.stack([along + across, along - across], 1)
        low, high = sorted((along[group] for group in alike(rows, [1, 1])), key=torch.min)
        assert low.max() < high.min()

    def test_the_first_row_may_be_the_mean(self) -> None:
        rows = torch.tensor([[0.0], [-2.0], [2.0], [-1.0], [1.0]])
        groups = alike(rows, [1, 1])
        assert {1, 3} <= set(groups[0].tolist()) or {1, 3} <= set(groups[1].tolist())
        assert {2, 4} <= set(groups[0].tolist()) or {2, 4} <= set(groups[1].tolist())

    def test_groups_vary_less_than_random_ones(self) -> None:
        rows = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
        groups = alike(rows, [1] * 16)
        within = torch.stack([rows[group].var(0).sum() for group in groups]).mean()
        assert within < 0.5 * rows.var(0).sum()

    def test_rows_that_are_all_alike(self) -> None:
        groups = alike(torch.ones(6, 3), [1, 1, 1])
        assert [len(group) for group in groups] == [2, 2, 2]

    @given(
        st.lists(st.integers(1, 4), min_size=1, max_size=12),
        st.integers(1, 4),
        st.integers(0, 50),
        st.integers(0, 3),
    )
    def test_everyone_is_in_one_group_that_is_large_enough(
        self, shares: list[int], each: int, more: int, seed: int
    ) -> None:
        """With k rows for each share or more, a group has k times its share or more."""
        num = each * sum(shares) + more
        rows = torch.randn(num, 3, generator=torch.Generator().manual_seed(seed))
        groups = alike(rows, shares)
        assert sorted(torch.cat(groups).tolist()) == list(range(num))
        assert all(
            len(group) >= each * share for group, share in zip(groups, shares, strict=True)
        )


class TestGrouped:
    # Class 3 has the examples 10 to 17, class 7 those from 20 to 22; they are alike if their
    # numbers are.
    PLAN = Plan(
        [3, 7],
        Members(torch.tensor([*range(10, 18), 20, 21, 22]), torch.tensor([0] * 8 + [1] * 3)),
        torch.tensor([4, 3]),
    )

    @staticmethod
    def number(index: Tensor) -> Tensor:
        return index[:, None].float()

    def parts(self, plan: Plan) -> list[set[int]]:
        return [
            set(plan.members.index[plan.members.slots == slot].tolist())
            for slot in range(len(plan.classes))
        ]

    def test_by_hand(self) -> None:
        plan = grouped(self.PLAN, 2, self.number)
        assert plan.classes == [3, 3, 7, 7]
        assert plan.images.tolist() == [2, 2, 2, 1]
        three, seven = self.parts(plan)[:2], self.parts(plan)[2:]
        assert sorted(map(min, three)) == [10, 14]
        assert {10, 11, 12, 13} in three
        assert set.union(*seven) == {20, 21, 22}
        assert [len(part) for part in seven] == [2, 1]

    def test_no_more_groups_than_images(self) -> None:
        plan = grouped(self.PLAN, 100, self.number)
        assert plan.classes == [3] * 4 + [7] * 3
        assert plan.images.tolist() == [1] * 7

    def test_one_group_is_the_class(self) -> None:
        plan = grouped(self.PLAN, 1, self.number)
        assert plan.classes == self.PLAN.classes
        assert torch.equal(plan.members.index, self.PLAN.members.index)
        assert torch.equal(plan.members.slots, self.PLAN.members.slots)
        assert torch.equal(plan.images, self.PLAN.images)

    def test_a_class_with_fewer_examples_than_images_stays_whole(self) -> None:
        plan = grouped(Plan([3, 7], self.PLAN.members, torch.tensor([9, 2])), 2, self.number)
        assert plan.classes == [3, 7, 7]
        assert plan.images.tolist() == [9, 1, 1]
