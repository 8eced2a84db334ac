"""Noise and samples that nobody but the client can recompute.

The run's seed is known to the server, and torch's CPU generator keeps 32 bits of it: noise from
there could be found by trying and subtracted. Here it comes from a cipher under 256 secret bits
that stay with the client.

The same secret and label always give the same noise, and another label gives other noise, so
that two uploads cannot be subtracted from each other.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

from feddm.core.tensors import Records

_KEY_BYTES = 32
_BITS = 52  # of a uniform number; with a 53rd, the greatest would be rounded to 1


@dataclass(frozen=True)
class Secret:
    """What a client knows and nobody else does; it does not show itself when printed.

    Args:
        key: 32 bytes.
        for_tests: Whether the bytes are fixed or known, so that a run can say that it is not
            private.
    """

    key: bytes = field(repr=False)
    for_tests: bool = False

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"a secret has {_KEY_BYTES} bytes, got {len(self.key)}")

    @classmethod
    def fresh(cls) -> Secret:
        """Returns a new secret from the operating system."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def from_hex(cls, text: str, *, for_tests: bool = False) -> Secret:
        """Returns the secret that `to_hex` wrote."""
        return cls(bytes.fromhex(text), for_tests)

    def nonce(self) -> bytes:
        """Returns bytes that never come again; for tests always the same."""
        return bytes(_KEY_BYTES) if self.for_tests else secrets.token_bytes(_KEY_BYTES)

    def to_hex(self) -> str:
        """Returns the bytes as 64 digits, for a file that only the client can read."""
        return self.key.hex()


@dataclass(frozen=True)
class Label:
    """What noise is for; two different sums must never share a label.

    If they did, their difference would be free of noise. So whatever decides a sum and is not
    the client's own choice, such as weights or settings of the server, belongs to `download`.

    Args:
        purpose: A word for the kind of release.
        round: Number of the round.
        number: Number of the network or step within the round.
        download: Digest of what the client was sent.
    """

    purpose: str
    round: int
    number: int
    download: bytes

    def __post_init__(self) -> None:
        for name, value in (("round", self.round), ("number", self.number)):
            if not 0 <= value < 2**64:
                raise ValueError(f"{name} must be at least 0 and below 2**64, got {value}")

    def encoded(self) -> bytes:
        """Returns the label as bytes; two different labels never have the same.

        >>> Label("sum", 1, 2, b"").encoded() == Label("sum", 12, 0, b"").encoded()
        False
        """
        numbers = self.round.to_bytes(8, "big") + self.number.to_bytes(8, "big")
        return _framed(self.purpose.encode()) + numbers + _framed(self.download)


def uniform(secret: Secret, label: Label, shape: Sequence[int]) -> Tensor:
    """Returns float64 numbers between 0 and 1, neither of which occurs.

    They are ``(k + 1/2) / 2**52`` with k of 52 bits, and so exact.
    """
    return _uniform(b"uniform", secret, label, shape)


def gaussian(secret: Secret, label: Label, shape: Sequence[int]) -> Tensor:
    """Returns float64 numbers of the standard normal distribution, as ``Phi^-1(uniform)``.

    The uniform number is a sign and a share of one tail with 105 random bits, so that there are
    no gaps far out, where 52 bits would leave them: a number is drawn as finely as float64 can
    tell numbers apart. None is beyond 12 deviations, where a true Gaussian is in 1e-32 of all
    cases.
    """
    num = math.prod(shape)
    words = np.frombuffer(_keystream(b"gaussian", secret, label, 16 * num), "<u8")
    # In place, because a release can have many millions of numbers.
    share = (words[num:] >> 11).astype(np.float64)
    share += 0.5
    share /= 2**53
    share += words[:num] >> (64 - _BITS)
    share /= 2 ** (_BITS + 1)
    numbers = torch.from_numpy(share)
    torch.special.ndtri(numbers, out=numbers)
    positive = torch.from_numpy((words[:num] & 1).astype(np.bool_))
    return torch.where(positive, -numbers, numbers).view(tuple(shape))


def poisson_sample(secret: Secret, label: Label, num: int, rate: float) -> Tensor:
    """Returns numbers below `num` in order, each kept on its own with probability `rate`.

    The sample must stay secret: that is why a sampled release costs less.

    >>> poisson_sample(Secret(bytes(32), for_tests=True), Label("doc", 0, 0, b""), 3, 1.0)
    tensor([0, 1, 2])
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate}")
    return (_uniform(b"sample", secret, label, (num,)) < rate).nonzero().flatten()


def digest(records: Records) -> bytes:
    """Returns the SHA-256 of names, types, shapes and bytes, whatever the order of mappings.

    >>> row, column = torch.zeros(1, 2), torch.zeros(2, 1)
    >>> digest({"params": {"w": row}}) == digest({"params": {"w": column}})
    False
    """
    total = hashlib.sha256()
    for record in sorted(records):
        tensors = records[record]
        # The number of tensors tells where the next record begins.
        total.update(_framed(record.encode()) + len(tensors).to_bytes(8, "big"))
        for name in sorted(tensors):
            for part in _parts(name, tensors[name]):
                total.update(part)
    return total.digest()


def _parts(name: str, tensor: Tensor) -> Iterator[bytes | memoryview]:
    """Yields what is hashed of a tensor; type and shape tell how long its bytes are."""
    yield _framed(name.encode()) + _framed(str(tensor.dtype).encode())
    yield _framed(b"".join(size.to_bytes(8, "big") for size in tensor.shape))
    yield tensor.detach().cpu().flatten().view(torch.uint8).numpy().data


def _uniform(drawn: bytes, secret: Secret, label: Label, shape: Sequence[int]) -> Tensor:
    """Returns the numbers of `uniform` for one kind of draw."""
    words = np.frombuffer(_keystream(drawn, secret, label, 8 * math.prod(shape)), "<u8")
    numbers = (words >> (64 - _BITS)).astype(np.float64)
    numbers += 0.5
    numbers /= 2**_BITS
    return torch.from_numpy(numbers).view(tuple(shape))


def _keystream(drawn: bytes, secret: Secret, label: Label, length: int) -> bytes:
    """Returns bytes that look random to whoever lacks the secret.

    AES-256 in counter mode over zeros, under a key of its own for each label and kind of draw.
    Counter mode breaks if a key meets the same nonce with two texts. Here every key has one
    stream only, so the nonce can be zero, and a stream that is asked for again is the same.

    Args:
        drawn: The kind of draw. If a sample and noise of one label came from one stream, the
            noise would tell who is in the sample.
        secret: Of the client.
        label: What the bytes are for.
        length: How many.
    """
    key = hashlib.blake2b(
        label.encoded(), digest_size=_KEY_BYTES, key=secret.key, person=b"feddm " + drawn
    )
    cipher = Cipher(AES256(key.digest()), CTR(bytes(16)))
    return cipher.encryptor().update(bytes(length))


def _framed(part: bytes) -> bytes:
    """Returns the bytes after their length, so that parts in a row do not run together."""
    return len(part).to_bytes(8, "big") + part
