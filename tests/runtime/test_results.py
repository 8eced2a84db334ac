import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddm.runtime.client import Dropout
from feddm.runtime.federation import ClientRecord, RoundRecord, SiteRecord
from feddm.runtime.results import from_line, to_line

CLIENT = ClientRecord(
    client=4, seconds=0.25, floats_up=640, bytes_up=2570, metrics={"images": 10, "loss": 0.5}
)
RECORD = RoundRecord(
    round=3,
    accuracy=0.875,
    loss=0.3,
    floats_up=640,
    floats_down=1122,
    bytes_up=2570,
    bytes_down=4488,
    client_seconds=0.25,
    server_seconds=1.5,
    clients=(CLIENT,),
)

counts = st.integers(0, 2**60)
finite = st.floats(allow_nan=False, allow_infinity=False)
client_records = st.builds(
    ClientRecord,
    client=counts,
    seconds=finite,
    floats_up=counts,
    bytes_up=counts,
    metrics=st.dictionaries(st.text(max_size=5), finite, max_size=3),
)
round_records = st.builds(
    RoundRecord,
    round=counts,
    accuracy=finite,
    loss=finite,
    floats_up=counts,
    floats_down=counts,
    bytes_up=counts,
    bytes_down=counts,
    client_seconds=finite,
    server_seconds=finite,
    clients=st.lists(client_records, max_size=3).map(tuple),
    dropouts=st.lists(st.builds(Dropout, counts, st.text()), max_size=2).map(tuple),
    sites=st.lists(st.builds(SiteRecord, counts, finite, finite, finite), max_size=2).map(
        tuple
    ),
)


def test_a_line_has_the_names_and_numbers_of_the_record() -> None:
    assert json.loads(to_line(RECORD)) == {
        "round": 3,
        "accuracy": 0.875,
        "loss": 0.3,
        "floats_up": 640,
        "floats_down": 1122,
        "bytes_up": 2570,
        "bytes_down": 4488,
        "client_seconds": 0.25,
        "server_seconds": 1.5,
        "clients": [
            {
                "client": 4,
                "seconds": 0.25,
                "floats_up": 640,
                "bytes_up": 2570,
                "metrics": {"images": 10, "loss": 0.5},
            }
        ],
    }


@given(round_records)
def test_round_trip(record: RoundRecord) -> None:
    line = to_line(record)
    assert len(line.splitlines()) == 1
    assert from_line(line) == record
    assert from_line(line + "\n") == record


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_are_null_in_json_and_nan_again(value: float) -> None:
    client = replace(CLIENT, seconds=value, metrics={"images": 10, "last_loss": value})
    line = to_line(replace(RECORD, loss=value, clients=(client,)))
    fields = json.loads(line, parse_constant=pytest.fail)
    assert fields["loss"] is None
    assert fields["clients"][0]["metrics"] == {"images": 10, "last_loss": None}

    back = from_line(line)
    assert math.isnan(back.loss)
    assert math.isnan(back.clients[0].seconds)
    assert math.isnan(back.clients[0].metrics["last_loss"])
    assert back.clients[0].metrics["images"] == 10
    assert back.accuracy == 0.875
    assert to_line(back) == line


def without(key: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(to_line(RECORD))
    del fields[key]
    return fields


@pytest.mark.parametrize(
    "line",
    [
        "",
        "accuracy 0.9",
        to_line(RECORD)[:-20],
        "null",
        "5",
        "[]",
        "{}",
        json.dumps(without("loss")),
        json.dumps(without("clients")),
        json.dumps(without("clients") | {"clients": None}),
        json.dumps(without("clients") | {"clients": [{"client": 4}]}),
        json.dumps(without("clients") | {"clients": [5]}),
        json.dumps(without("round") | {"round": "3"}),
        json.dumps(without("round") | {"round": None}),
        json.dumps(json.loads(to_line(RECORD)) | {"surprise": 1}),
    ],
)
def test_invalid_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError):
        from_line(line)
