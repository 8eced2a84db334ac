import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddm.core.tensors import from_bytes, norm, num_bytes, num_floats, to_bytes, zip_map


def test_norm_is_that_of_the_concatenated_vector() -> None:
    tensors = {"b": torch.randn(3, 4), "a": torch.randn(5)}
    whole = torch.cat([tensor.flatten() for tensor in tensors.values()])
    assert norm(tensors) == pytest.approx(float(whole.norm()))


def test_norm_does_not_depend_on_the_order_of_names() -> None:
    tensors = {name: torch.randn(7) for name in "dbca"}
    assert norm(tensors) == norm(dict(sorted(tensors.items())))


def test_zip_map_matches_by_name_not_by_position() -> None:
    first = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    second = {"b": torch.tensor(20.0), "a": torch.tensor(10.0)}
    assert zip_map(torch.add, first, second) == {
        "a": torch.tensor(11.0),
        "b": torch.tensor(22.0),
    }


def test_counts() -> None:
    records = {
        "examples": {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.uint8)},
        "half": {"z": torch.zeros(5, dtype=torch.float16)},
    }
    assert num_floats(records) == 6 + 5
    assert num_bytes(records) == 6 * 4 + 2 + 5 * 2


@given(
    st.dictionaries(
        st.text("abc:. ", min_size=1, max_size=4),
        st.dictionaries(
            st.text("ab/.", min_size=1, max_size=4),
            st.lists(st.floats(width=32), max_size=3),
            min_size=1,
            max_size=3,
        ),
        max_size=3,
    )
)
def test_bytes_round_trip(values: dict[str, dict[str, list[float]]]) -> None:
    records = {r: {n: torch.tensor(v) for n, v in ts.items()} for r, ts in values.items()}
    back = from_bytes(to_bytes(records))
    assert set(back) == set(records)
    for record, tensors in records.items():
        assert set(back[record]) == set(tensors)
        for name, tensor in tensors.items():
            torch.testing.assert_close(
                back[record][name], tensor, rtol=0, atol=0, equal_nan=True
            )


def test_a_record_name_with_a_slash_is_rejected() -> None:
    with pytest.raises(ValueError, match="must not contain a slash"):
        to_bytes({"a/b": {"c": torch.zeros(1)}})


def test_tensors_that_share_storage_are_all_written() -> None:
    whole = torch.arange(6.0)
    back = from_bytes(to_bytes({"r": {"head": whole[:2], "every_second": whole[::2]}}))
    assert back["r"]["head"].tolist() == [0, 1]
    assert back["r"]["every_second"].tolist() == [0, 2, 4]
