"""What travels: nothing is lost on the way, and nothing that a stranger sends does harm."""

import contextlib
import json
import math
import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.tensors import Records, to_bytes
from feddm.errors import ConfigError, EngineError, FedDMError, UploadError
from feddm.flower import wire
from feddm.flower.node import Job
from feddm.runtime.client import Reply
from feddm.runtime.federation import SiteRecord

FEDERATION = "f" * 32
CONFIG = resolve()
JOB = Job(FEDERATION, CONFIG, compiled=True, round=3, memory=2)
WEIGHTS: Records = {"params": {"w": torch.tensor([1.0, 2.0])}}

# Names as people give them; those of records have no slash.
NAMES = st.text("abc_/.0 é", min_size=1, max_size=5)
KINDS = st.sampled_from([np.float32, np.float16, np.float64, np.uint8, np.int32, np.int64])
TENSORS = npst.arrays(KINDS, npst.array_shapes(min_dims=0, min_side=0, max_side=3)).map(
    torch.from_numpy
)
RECORDS = st.dictionaries(
    NAMES.filter(lambda name: "/" not in name),
    st.dictionaries(NAMES, TENSORS, min_size=1, max_size=3),
    max_size=3,
)


def sent(content: RecordDict) -> RecordDict:
    """Returns a message as it arrives."""
    return recorddict_from_proto(recorddict_to_proto(content))


def saved(array: Any, **options: Any) -> bytes:
    file = BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def with_array(data: bytes, name: str = "w") -> RecordDict:
    """Returns an answer of client 1 in which one array is this."""
    content = wire.to_reply(Reply(1, {}, {}, 0.5), False)
    array = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=data)
    content["params"] = ArrayRecord({name: array})
    return content


class TestArrays:
    @given(RECORDS)
    def test_records_arrive_as_they_were(self, records: Records) -> None:
        arrived = wire.from_arrays(sent(RecordDict(dict(wire.to_arrays(records)))))
        assert to_bytes(arrived) == to_bytes(records)
        for name, tensors in records.items():
            for key, tensor in tensors.items():
                assert arrived[name][key].shape == tensor.shape

    def test_the_order_in_memory_does_not_matter(self) -> None:
        turned = torch.arange(6.0).view(2, 3).T
        arrived = wire.from_arrays(RecordDict(dict(wire.to_arrays({"a": {"w": turned}}))))
        assert arrived["a"]["w"].equal(turned)
        arrived = wire.from_arrays(with_array(saved(np.asfortranarray(turned.numpy()))))
        assert arrived["params"]["w"].equal(turned)
        assert arrived["params"]["w"].is_contiguous()

    def test_they_can_be_changed(self) -> None:
        arrived = wire.from_arrays(RecordDict(dict(wire.to_arrays(WEIGHTS))))
        arrived["params"]["w"] += 1
        assert WEIGHTS["params"]["w"].tolist() == [1.0, 2.0]

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros(2, ">f4"),
            np.zeros(2, np.uint16),
            np.zeros(2, np.complex64),
            np.zeros(2, bool),
            np.array(["a"]),
            np.array([b"a"]),
            np.zeros(2, "V8"),
            np.zeros(2, [("a", "f4")]),
            np.zeros(2, "datetime64[s]"),
        ],
        ids=lambda array: str(array.dtype),
    )
    def test_other_types_are_refused(self, array: Any) -> None:
        with pytest.raises(UploadError, match=r"params w is of type .*, not one of float32"):
            wire.from_arrays(with_array(saved(array)))

    def test_nothing_is_unpickled(self) -> None:
        exploded: list[int] = []

        class Bomb:
            def __reduce__(self) -> tuple[Any, ...]:
                return (exploded.append, (1,))

        for data in (pickle.dumps(Bomb()), saved(np.array([Bomb()]), allow_pickle=True)):
            with pytest.raises(UploadError, match="params w cannot be read"):
                wire.from_arrays(with_array(data))
        assert not exploded

    @given(st.data())
    def test_damaged_arrays_are_refused(self, data: st.DataObject) -> None:
        whole = saved(np.arange(4, dtype=np.float32))
        end = data.draw(st.integers(0, len(whole) - 1))
        with pytest.raises(UploadError, match="params w cannot be read"):
            wire.from_arrays(with_array(whole[:end]))

    @given(st.binary(max_size=200), st.integers(0, 140))
    def test_junk_does_no_other_harm(self, junk: bytes, place: int) -> None:
        whole = saved(np.arange(4, dtype=np.float32))
        for data in (junk, b"PK\x03\x04" + junk, whole[:place] + junk + whole[place:]):
            try:
                wire.from_arrays(with_array(data))
            except UploadError as error:
                assert str(error).isprintable()

    @pytest.mark.parametrize(
        "header",
        [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,)}",
            "{'descr': [('a', '<f4'), 5], 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f4'}",
            "(" * 5000,
            "-" * 9000 + "1",
            "'",
            "",
        ],
        ids=lambda header: header[:70],
    )
    def test_headers_promise_nothing(self, header: str) -> None:
        text = header.encode() + b"\n"
        data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16)
        with pytest.raises(UploadError, match="params w cannot be read"):
            wire.from_arrays(with_array(data))

    def test_names_do_no_harm_on_a_screen(self) -> None:
        with pytest.raises(UploadError) as caught:
            wire.from_arrays(with_array(b"", name="\x1b[2J\n" + "w" * 1000))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) == 300


class TestJobs:
    @given(RECORDS)
    def test_a_job_arrives_as_it_was(self, download: Records) -> None:
        download = {name: part for name, part in download.items() if name != wire.ABOUT}
        job = Job(FEDERATION, CONFIG, True, 3, 2, download)
        arrived = wire.from_job(sent(wire.to_job(job)))
        assert to_bytes(arrived.download) == to_bytes(download)
        assert (arrived.federation, arrived.config) == (FEDERATION, CONFIG)
        assert (arrived.compiled, arrived.round, arrived.memory) == (True, 3, 2)

    def test_a_download_may_be_made_ready_once_for_all(self) -> None:
        content = wire.to_job(JOB, wire.to_arrays(WEIGHTS))
        assert to_bytes(wire.from_job(content).download) == to_bytes(WEIGHTS)

    def test_what_is_the_servers_own_stays_there(self) -> None:
        settings = {
            "data.name": "lesions",
            "data.dir": "/server/dir",
            "data.own.classes": ["ill", "well"],
            "data.own.test": "/server/test.npz",
            "privacy.epsilon": 4.0,
            "privacy.ledger": "/server/ledger",
        }
        config = resolve(settings=settings)
        content = wire.to_job(Job(FEDERATION, config))
        assert "/server/" not in str(content[wire.ABOUT])
        arrived = wire.from_job(content).config
        assert arrived.privacy is not None
        assert (arrived.data.dir, arrived.privacy.ledger) == ("", "")
        assert arrived.data.own.test == ""
        # All else is the same.
        for key in ("data.dir", "data.own.test", "privacy.ledger"):
            settings[key] = ""
        assert arrived == resolve(settings=settings)

    @pytest.mark.parametrize(
        ("key", "value", "says"),
        [
            ("protocol", 2, "this node has protocol 1 of feddm, and the server 2"),
            ("protocol", None, "this node has protocol 1 of feddm, and the server None"),
            ("version", "0.0.1", "of feddm, and the server 0.0.1"),
            ("round", -1, "round must be a whole number from 0, got -1"),
            ("round", True, "round must be a whole number from 0, got True"),
            ("round", 2**31, "round must be a whole number from 0, got 2147483648"),
            ("round", 1.0, "round must be"),
            ("round", None, "round must be a whole number from 0, got None"),
            ("memory", "1", "memory must be a whole number from 0, got '1'"),
            ("memory", [1], "memory must be"),
            ("federation", 5, "federation must be a text"),
            ("federation", b"x", "federation must be a text"),
            ("compiled", "no", "compiled true or false"),
            ("compiled", 1, "compiled true or false"),
            ("config", None, "config must be an object of JSON"),
            ("config", "", "config must be an object of JSON"),
            ("config", "null", "config must be an object of JSON"),
            ("config", "[]", "config must be an object of JSON"),
            ("config", "5", "config must be an object of JSON"),
            ("config", "{", "config must be an object of JSON"),
            ("config", "[" * 100_000, "config must be an object of JSON"),
            ("config", '{"rounds": 0}', "rounds must be a whole number of at least 1, got 0"),
            ("config", '{"round": 1}', "unknown key round (did you mean rounds?)"),
            ("config", b"{}", "config must be an object of JSON"),
        ],
    )
    def test_what_cannot_be_understood_is_told(self, key: str, value: Any, says: str) -> None:
        content = wire.to_job(JOB)
        about = content.config_records[wire.ABOUT]
        if value is None:
            del about[key]
        else:
            about[key] = value
        with pytest.raises(ConfigError) as caught:
            wire.from_job(content)
        assert says in str(caught.value)

    def test_other_messages_are_told(self) -> None:
        with pytest.raises(ConfigError, match="the message is not one of feddm"):
            wire.from_job(RecordDict())
        with pytest.raises(ConfigError, match="the message is not one of feddm"):
            wire.from_job(RecordDict({wire.ABOUT: MetricRecord()}))
        content = wire.to_job(JOB)
        content["params"] = with_array(b"junk")["params"]
        with pytest.raises(ConfigError, match="params w cannot be read"):
            wire.from_job(content)


# Whatever the records of Flower can hold.
SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(), st.binary()
)
LISTS = st.one_of(
    *(st.lists(kind, max_size=3) for kind in (st.integers(-9, 9), st.floats(), st.text()))
)
ABOUTS = st.dictionaries(
    st.sampled_from(["client", "seconds", "remembers", "error", "x"]) | st.text(),
    SCALARS | LISTS,
)
METRICS = st.dictionaries(
    st.sampled_from(["accuracy", "balanced_accuracy", "loss"]) | st.text(),
    st.integers(-(2**63), 2**63 - 1) | st.floats() | st.lists(st.floats(), max_size=3),
)
ARRAYS = st.dictionaries(st.text(), st.binary(max_size=50), max_size=2)


def junk(
    about: dict[str, Any], metrics: dict[str, Any], arrays: dict[str, bytes]
) -> RecordDict:
    made = {
        name: Array(dtype="?", shape=(-1,), stype="?", data=data)
        for name, data in arrays.items()
    }
    return RecordDict(
        {
            wire.ABOUT: ConfigRecord(about),
            wire.METRICS: MetricRecord(metrics),
            "params": ArrayRecord(made),
        }
    )


def only_our_errors(read: Callable[..., object], *arguments: object) -> None:
    try:
        read(*arguments)
    except FedDMError as error:
        assert len(str(error)) < 1000
        assert str(error).isprintable()


class TestStrangers:
    """A message may be anything; the server goes on."""

    @given(ABOUTS, METRICS, ARRAYS)
    def test_no_answer_ends_the_server(self, about: Any, metrics: Any, arrays: Any) -> None:
        for said in (about, about | {"client": 1, "seconds": 1.0}):
            content = junk(said, metrics, arrays)
            only_our_errors(wire.from_reply, content, 1)
            only_our_errors(wire.from_site, content, 1)
            only_our_errors(wire.from_hello, content)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda below: (
                st.lists(below, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        [*CONFIG.model_dump(), "name", "mechanism", "own", "epsilon"]
                    ),
                    below,
                    max_size=4,
                )
            ),
        )
    )
    def test_no_configuration_ends_a_node(self, values: Any) -> None:
        content = wire.to_job(JOB)
        content.config_records[wire.ABOUT]["config"] = json.dumps(values)
        with contextlib.suppress(ConfigError):
            assert isinstance(wire.from_job(content).config, Config)

    @pytest.mark.parametrize("kind", [ArrayRecord, MetricRecord])
    def test_records_of_another_kind(self, kind: Callable[[], Any]) -> None:
        content = RecordDict({wire.ABOUT: kind(), wire.METRICS: ConfigRecord()})
        for read in (
            lambda: wire.from_reply(content, 1),
            lambda: wire.from_site(content, 1),
            lambda: wire.from_hello(content),
        ):
            with pytest.raises(UploadError, match="the message is not one of feddm"):
                read()


class TestReplies:
    @given(
        RECORDS.map(lambda records: {f"{name}s": part for name, part in records.items()}),
        st.dictionaries(NAMES, st.floats(allow_nan=False)),
        st.booleans(),
    )
    def test_a_reply_arrives_as_it_was(
        self, upload: Records, metrics: dict[str, float], remembers: bool
    ) -> None:
        reply = Reply(4, upload, metrics, 2.5)
        arrived, remembered = wire.from_reply(sent(wire.to_reply(reply, remembers)), 4)
        assert to_bytes(arrived.upload) == to_bytes(upload)
        assert (arrived.client, arrived.metrics, arrived.seconds) == (4, metrics, 2.5)
        assert remembered is remembers

    def test_metrics_may_be_infinite(self) -> None:
        content = sent(wire.to_reply(Reply(0, {}, {"epsilon": math.inf}, 0.0), False))
        assert wire.from_reply(content, 0)[0].metrics == {"epsilon": math.inf}

    @pytest.mark.parametrize("client", [0, 2, True, 1.0, "1", None, [1], -1])
    def test_a_client_speaks_for_itself_alone(self, client: Any) -> None:
        content = wire.to_reply(Reply(1, WEIGHTS, {}, 0.5), False)
        about = content.config_records[wire.ABOUT]
        assert wire.from_reply(content, 1)[0].client == 1
        if client is None:
            del about["client"]
        else:
            about["client"] = client
        with pytest.raises(UploadError, match=r"answer is of client|client must be a whole"):
            wire.from_reply(content, 1)

    @pytest.mark.parametrize("seconds", [True, "1", [1.0], -1.0, math.nan, math.inf, None])
    def test_seconds_are_a_number(self, seconds: Any) -> None:
        content = wire.to_reply(Reply(1, WEIGHTS, {}, 0.5), False)
        about = content.config_records[wire.ABOUT]
        if seconds is None:
            del about["seconds"]
        else:
            about["seconds"] = seconds
        with pytest.raises(UploadError, match="seconds must be a number"):
            wire.from_reply(content, 1)

    @pytest.mark.parametrize("value", [[1.0, 2.0], [], 10**400])
    def test_a_metric_is_a_number(self, value: Any) -> None:
        content = wire.to_reply(Reply(1, WEIGHTS, {"loss": 1.0}, 0.5), False)
        content.metric_records[wire.METRICS]["loss"] = value
        with pytest.raises(UploadError, match="loss must be a number, got"):
            wire.from_reply(content, 1)

    @pytest.mark.parametrize(
        "metrics",
        [
            {str(number): 0.0 for number in range(wire.MOST + 1)},
            {"n" * (wire.LONGEST + 1): 0.0},
            {"loss\x1b[2J": 0.0},
        ],
    )
    def test_metrics_are_few_and_can_be_shown(self, metrics: dict[str, float]) -> None:
        with pytest.raises(UploadError) as caught:
            wire.from_reply(wire.to_reply(Reply(1, {}, metrics, 0.5), False), 1)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) <= 300


class TestSites:
    SITE = SiteRecord(3, 0.75, 0.5, 1.25)

    def test_it_arrives_as_it_was(self) -> None:
        assert wire.from_site(sent(wire.to_site(self.SITE)), 3) == self.SITE

    @pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy"])
    @pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
    def test_an_accuracy_is_a_share(self, name: str, value: float) -> None:
        content = wire.to_site(self.SITE)
        content.metric_records[wire.METRICS][name] = value
        with pytest.raises(UploadError, match="an accuracy is from 0 to 1"):
            wire.from_site(content, 3)

    def test_a_model_may_be_as_bad_as_can_be(self) -> None:
        content = wire.to_site(SiteRecord(3, 0.0, 0.0, math.nan))
        assert math.isnan(wire.from_site(content, 3).loss)

    def test_nothing_may_be_missing(self) -> None:
        content = wire.to_site(self.SITE)
        del content.metric_records[wire.METRICS]["loss"]
        with pytest.raises(UploadError, match="loss must be a number, got None"):
            wire.from_site(content, 3)


class TestHello:
    def test_it_says_who_a_node_is(self) -> None:
        assert wire.from_hello(sent(wire.to_hello(7))) == 7

    @pytest.mark.parametrize("client", [-1, 2**31, True, 1.5, "1", [1], b"1"])
    def test_a_client_is_a_number(self, client: Any) -> None:
        content = RecordDict({wire.ABOUT: ConfigRecord({"client": client})})
        with pytest.raises(UploadError, match="client must be a whole number from 0, got"):
            wire.from_hello(content)


class TestErrors:
    def test_a_reason_arrives(self) -> None:
        content = sent(wire.to_error("client 3 has no data"))
        for read in (
            lambda: wire.from_reply(content, 3),
            lambda: wire.from_site(content, 3),
            lambda: wire.from_hello(content),
        ):
            with pytest.raises(EngineError, match=r"^client 3 has no data$"):
                read()

    @pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\nb\r", "a\x00\u202eb", "a\udc80b"])
    def test_a_reason_does_no_harm_on_a_screen(self, text: str) -> None:
        # Neither one that we send, such as the name of a file, nor one that a stranger does.
        told = wire.to_error(text)
        assert str(sent(told).config_records[wire.ABOUT]["error"]).isprintable()
        with pytest.raises(EngineError) as caught:
            wire.from_hello(RecordDict({wire.ABOUT: ConfigRecord({"error": text})}))
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith("a")

    @pytest.mark.parametrize(
        ("client", "who"), [(3, 3), (None, None), (True, None), ("3", None), ([3], None)]
    )
    def test_who_refuses_may_be_said(self, client: Any, who: int | None) -> None:
        content = wire.to_error("no")
        if client is not None:
            content.config_records[wire.ABOUT]["client"] = client
        with pytest.raises(wire.RefusedError) as caught:
            wire.from_hello(content)
        assert caught.value.client == who
        assert wire.to_error("no", 3).config_records[wire.ABOUT]["client"] == 3

    def test_a_reason_is_not_endless(self) -> None:
        content = RecordDict({wire.ABOUT: ConfigRecord({"error": "x" * 10_000})})
        with pytest.raises(EngineError) as caught:
            wire.from_hello(content)
        assert str(caught.value) == "x" * 300
