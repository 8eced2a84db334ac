"""What travels between server and nodes, as Flower's records.

    server -> node   feddm     ConfigRecord   protocol, version, federation, config, ...
                     params... ArrayRecord    what the algorithm broadcasts
    node -> server   feddm     ConfigRecord   client, seconds, remembers; or error
                     metrics   MetricRecord
                     examples... ArrayRecord  the upload

Both sides check what they get: neither trusts the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)

from feddm.config.code import is_reference
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.tensors import Records
from feddm.errors import ConfigError, EngineError, UploadError
from feddm.flower.node import Job
from feddm.runtime.client import Reply
from feddm.runtime.federation import SiteRecord

PROTOCOL = 1
ABOUT, METRICS = "feddm", "metrics"

Value = TypeVar("Value")

# Most values of a kind, and letters of a name; a large ResNet has some hundred parameters.
MOST, LONGEST = 1000, 200
# Types that an array may have; no other is read.
_TYPES = ("float32", "float16", "float64", "uint8", "int32", "int64")


def to_arrays(records: Records) -> dict[str, ArrayRecord]:
    """Returns records as Flower's."""
    return {
        name: ArrayRecord({key: Array(tensor.numpy()) for key, tensor in tensors.items()})
        for name, tensors in records.items()
    }


def from_arrays(content: RecordDict) -> dict[str, dict[str, torch.Tensor]]:
    """Returns the records in a message; an `UploadError` says what is none."""
    return {
        name: {key: _tensor(array, f"{name} {key}") for key, array in _few(arrays).items()}
        for name, arrays in _few(content.array_records).items()
    }


def _few(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Returns values by names that an honest message may have: names may be shown."""
    if len(values) > MOST:
        raise UploadError(f"a message has at most {MOST} values of a kind, got {len(values)}")
    for name in values:
        if not name.isprintable() or len(name) > LONGEST:
            raise _unusable(f"a name has at most {LONGEST} printable letters, got {name}")
    return values


def _tensor(array: Array, what: str) -> torch.Tensor:
    try:
        found = np.lib.format.read_array(BytesIO(array.data), allow_pickle=False)
    except Exception as error:  # numpy does not say what it may stumble over
        raise _unusable(f"{what} cannot be read: {error}") from None
    if str(found.dtype) not in _TYPES:
        raise _unusable(f"{what} is of type {found.dtype}, not one of {', '.join(_TYPES)}")
    return torch.from_numpy(np.ascontiguousarray(found).reshape(found.shape))


def to_job(job: Job, download: Mapping[str, ArrayRecord] | None = None) -> RecordDict:
    """Returns the content of a message that asks a node.

    Args:
        job: What it asks.
        download: What goes with it, from `to_arrays`, in the place of what the job has.
    """
    about: dict[str, ConfigRecordValues] = {
        "protocol": PROTOCOL,
        "version": version("feddm"),
        "federation": job.federation,
        "config": json.dumps(_for_nodes(job.config).model_dump()),
        "compiled": job.compiled,
        "round": job.round,
        "memory": job.memory,
    }
    content = RecordDict({ABOUT: ConfigRecord(about)})
    for name, record in (to_arrays(job.download) if download is None else download).items():
        content[name] = record
    return content


def from_job(content: RecordDict) -> Job:
    """Returns what a server asks; a `ConfigError` says what cannot be understood."""
    try:
        about = _about(content)
        ours = {"protocol": PROTOCOL, "version": version("feddm")}
        for key, value in ours.items():
            if about.get(key) != value:
                raise ConfigError(
                    f"this node has {key} {value} of feddm, and the server {about.get(key)}"
                )
        numbers = {key: _count(about.get(key), key) for key in ("round", "memory")}
        federation, compiled = about.get("federation"), about.get("compiled")
        if not isinstance(federation, str) or not isinstance(compiled, bool):
            raise UploadError("federation must be a text, and compiled true or false")
        values = _object(about.get("config"))
        refuse_code(values)
        config = resolve(values)
        return Job(federation, config, compiled, **numbers, download=from_arrays(content))
    except UploadError as error:
        raise ConfigError(f"the server's message cannot be understood: {error}") from None


def refuse_code(values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if a server names code: a node runs only what is installed here."""
    for section in ("algorithm", "model"):
        there = values.get(section)
        name = there.get("name") if isinstance(there, Mapping) else there
        if isinstance(name, str) and is_reference(name):
            raise ConfigError(
                f"this node runs only what is installed here, and not {name!r}; an entry point "
                "of an installed package makes an algorithm known by a name"
            )


def _object(text: object) -> dict[str, Any]:
    try:
        values = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UploadError("config must be an object of JSON")
    return values


def _for_nodes(config: Config) -> Config:
    """Returns the configuration without what is the server's own, or none of its business."""
    data = config.data.model_copy(
        update={"dir": "", "path": "", "own": config.data.own.model_copy(update={"test": ""})}
    )
    privacy = config.privacy and config.privacy.model_copy(update={"ledger": ""})
    return config.model_copy(update={"data": data, "privacy": privacy})


def to_reply(reply: Reply, remembers: bool) -> RecordDict:
    """Returns the content of a message that answers a task."""
    about: dict[str, ConfigRecordValues] = {
        "client": reply.client,
        "seconds": reply.seconds,
        "remembers": remembers,
    }
    metrics: dict[str, MetricRecordValues] = {
        name: float(value) for name, value in reply.metrics.items()
    }
    content = RecordDict({ABOUT: ConfigRecord(about), METRICS: MetricRecord(metrics)})
    for name, record in to_arrays(reply.upload).items():
        content[name] = record
    return content


def from_reply(content: RecordDict, client: int) -> tuple[Reply, bool]:
    """Returns the reply of a client and whether it remembers something of the round."""
    about = answer(content, client)
    metrics = content.metric_records.get(METRICS) or MetricRecord()
    numbers = {name: _number(value, name) for name, value in _few(metrics).items()}
    seconds = _number(about.get("seconds"), "seconds")
    if not 0 <= seconds < math.inf:
        raise UploadError(f"seconds must be a number of at least 0, got {seconds}")
    return Reply(client, from_arrays(content), numbers, seconds), bool(about.get("remembers"))


def to_site(site: SiteRecord) -> RecordDict:
    """Returns the content of a message that says how good a model is."""
    metrics: dict[str, MetricRecordValues] = {
        "accuracy": site.accuracy,
        "balanced_accuracy": site.balanced_accuracy,
        "loss": site.loss,
    }
    about = ConfigRecord({"client": site.client})
    return RecordDict({ABOUT: about, METRICS: MetricRecord(metrics)})


def from_site(content: RecordDict, client: int) -> SiteRecord:
    """Returns what a client says about a model."""
    answer(content, client)
    metrics = content.metric_records.get(METRICS) or MetricRecord()
    names = ("accuracy", "balanced_accuracy", "loss")
    accuracy, balanced, loss = (_number(metrics.get(name), name) for name in names)
    if not (0 <= accuracy <= 1 and 0 <= balanced <= 1):
        raise UploadError("an accuracy is from 0 to 1")
    return SiteRecord(client, accuracy, balanced, loss)


def to_hello(client: int) -> RecordDict:
    """Returns the content of a message that says who a node is."""
    return RecordDict({ABOUT: ConfigRecord({"client": client})})


def from_hello(content: RecordDict) -> int:
    """Returns which client a node is; an `EngineError` says why it does not take part."""
    return _count(answer(content).get("client"), "client")


class RefusedError(EngineError):
    """A node says why it does not do what it was asked.

    Args:
        reason: Its words.
        client: Which client it is, if it says so.
    """

    def __init__(self, reason: str, client: int | None) -> None:
        super().__init__(reason)
        self.client = client


def to_error(reason: str, client: int | None = None) -> RecordDict:
    """Returns the content of a message that says why there is no other."""
    about: dict[str, ConfigRecordValues] = {"error": one_line(reason)}
    if client is not None:
        about["client"] = client
    return RecordDict({ABOUT: ConfigRecord(about)})


def answer(content: RecordDict, client: int | None = None) -> Mapping[str, Any]:
    """Returns what an answer says of itself; a `RefusedError` if it is one.

    Args:
        content: Of the message.
        client: Who should have sent it.
    """
    about = _about(content)
    if "error" in about:
        who = about.get("client")
        raise RefusedError(one_line(str(about["error"])), who if type(who) is int else None)
    if client is not None and _count(about.get("client"), "client") != client:
        raise UploadError(f"the answer is of client {about['client']}")
    return about


def _about(content: RecordDict) -> Mapping[str, Any]:
    about = content.config_records.get(ABOUT)
    if about is None:
        raise UploadError("the message is not one of feddm")
    return about


def _count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise _unusable(f"{what} must be a whole number from 0, got {value!r}")
    return value


def _number(value: object, what: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _unusable(f"{what} must be a number, got {value!r}")


def _unusable(what: str) -> UploadError:
    # Names and values in it are a stranger's.
    return UploadError(one_line(what))


def one_line(text: str) -> str:
    """Returns what a stranger says as a line that does no harm on a screen."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:300])
