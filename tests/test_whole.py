"""The whole on real data, if FEDDM_DATA names a folder that has them."""

import os
from pathlib import Path

import pytest

import feddm
from feddm.data.datasets import locate

ROOT = Path(os.environ.get("FEDDM_DATA", "nowhere"))


@pytest.mark.slow
@pytest.mark.skipif(locate("mnist", ROOT) is None, reason="FEDDM_DATA has no MNIST")
def test_one_quick_round_on_mnist() -> None:
    result = feddm.run(dataset="mnist", rounds=1, data_dir=ROOT)
    (record,) = result.records
    assert record.accuracy > 0.945
    pairs = sum(int(client.metrics["classes"]) for client in record.clients)
    # Pixels and labels are bytes; each client says in two floats where the levels lie.
    assert record.floats_up == 10 * 2
    assert record.bytes_up == pairs * 10 * (28 * 28 + 1) + 10 * 2 * 4
    # Width 32: 1x32x9 + 32, twice 32x32x9 + 32, three norms of 64, 512x10 + 10 parameters.
    assert record.floats_down == 10 * (320 + 2 * 9248 + 3 * 64 + 5130)
