import itertools

import torch

from feddm.core.seeding import derived_seed, generator, numpy_generator


def test_every_argument_matters() -> None:
    seeds = {
        derived_seed(*arguments)
        for arguments in itertools.product((0, 1, 12), ("a", "b"), (0, 1, 2), (0, 1, 2))
    }
    assert len(seeds) == 3 * 2 * 3 * 3


def test_fields_do_not_run_into_each_other() -> None:
    assert derived_seed(1, "a", 12, 3) != derived_seed(1, "a", 1, 23)


def test_the_same_arguments_give_the_same_numbers() -> None:
    first, second = (torch.rand(3, generator=generator(5, "x", 2, 7)) for _ in range(2))
    assert torch.equal(first, second)
    assert numpy_generator(5, "x").random() == numpy_generator(5, "x").random()


def test_known_value_keeps_old_runs_reproducible() -> None:
    # sha256 of "0", "model", "0", "0" with unit separators between, first 8 bytes, 63 bits.
    assert derived_seed(0, "model") == 6046193470151701561
