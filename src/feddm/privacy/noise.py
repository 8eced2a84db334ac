"""Noise and samples that only the client can compute.

The server knows the run's seed, and torch's CPU generator keeps only 32 bits of it, so noise
from that generator could be found by brute force and subtracted. Here the noise comes from a
cipher with a 256-bit secret that never leaves the client.

The same secret and label always give the same noise. Another label gives independent noise, so
the difference of two uploads is still noisy.
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
_BITS = 52  # bits of a uniform number; with 53, the largest would round to 1


@dataclass(frozen=True)
class Secret:
    """A secret that only the client knows; printing it does not show it.

    Args:
        key: 32 bytes.
        for_tests: Whether the key is fixed or known, which makes the run not private.
    """

    key: bytes = field(repr=False)
    for_tests: bool = False

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"a secret must have {_KEY_BYTES} bytes, got {len(self.key)}")

    @classmethod
    def fresh(cls) -> Secret:
        """Returns a new secret from the operating system."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def from_hex(cls, text: str, *, for_tests: bool = False) -> Secret:
        """Returns the secret that `to_hex` wrote."""
        return cls(bytes.fromhex(text), for_tests)

    def nonce(self) -> bytes:
        """Returns fresh random bytes; for tests they are always the same."""
        return bytes(_KEY_BYTES) if self.for_tests else secrets.token_bytes(_KEY_BYTES)

    def to_hex(self) -> str:
        """Returns the key as 64 hexadecimal digits, for a file only the client can read."""
        return self.key.hex()


@dataclass(frozen=True)
class Label:
    """The label of one draw of noise; two different sums must never share a label.

    If they did, their difference would have no noise. So `download` must cover everything that
    determines a sum and is not the client's choice, such as the server's weights and settings.

    Args:
        purpose: Kind of release.
        round: Round number.
        number: Number of the network or step within the round.
        download: Digest of what the client received.
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
        """Returns a unique encoding of the label.

        >>> Label("sum", 1, 2, b"").encoded() == Label("sum", 12, 0, b"").encoded()
        False
        """
        numbers = self.round.to_bytes(8, "big") + self.number.to_bytes(8, "big")
        return _framed(self.purpose.encode()) + numbers + _framed(self.download)


def gaussian(secret: Secret, label: Label, shape: Sequence[int]) -> Tensor:
    """Returns standard normal float64 numbers, as ``Phi^-1(uniform)``.

    The uniform number is a sign and a 105-bit position in one tail. With 52 bits the far tail
    would have gaps; with 105 it is as fine as float64 itself. No number is beyond 12 standard
    deviations, where a true Gaussian falls with probability 1e-32.
    """
    num = math.prod(shape)
    words = np.frombuffer(_keystream(b"gaussian", secret, label, 16 * num), "<u8")
    # In place, because a release can have millions of numbers.
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
    """Returns a sorted sample of ``range(num)``, each kept independently with `rate`.

    The sample must stay secret: only then does sampling make a release cheaper.

    >>> poisson_sample(Secret(bytes(32), for_tests=True), Label("doc", 0, 0, b""), 3, 1.0)
    tensor([0, 1, 2])
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate}")
    # Uniform numbers (k + 1/2) / 2**52 with 52-bit integers k: exact, and never 0 or 1.
    words = np.frombuffer(_keystream(b"sample", secret, label, 8 * num), "<u8")
    numbers = ((words >> (64 - _BITS)).astype(np.float64) + 0.5) / 2**_BITS
    return torch.from_numpy(numbers < rate).nonzero().flatten()


def digest(records: Records) -> bytes:
    """Returns the SHA-256 of names, types, shapes and bytes, independent of mapping order.

    >>> row, column = torch.zeros(1, 2), torch.zeros(2, 1)
    >>> digest({"params": {"w": row}}) == digest({"params": {"w": column}})
    False
    """
    total = hashlib.sha256()
    for record in sorted(records):
        tensors = records[record]
        # The number of tensors marks where the next record begins.
        total.update(_framed(record.encode()) + len(tensors).to_bytes(8, "big"))
        for name in sorted(tensors):
            for part in _parts(name, tensors[name]):
                total.update(part)
    return total.digest()


def _parts(name: str, tensor: Tensor) -> Iterator[bytes | memoryview]:
    """Yields the hashed parts of a tensor; type and shape determine the length of its bytes."""
    yield _framed(name.encode()) + _framed(str(tensor.dtype).encode())
    yield _framed(b"".join(size.to_bytes(8, "big") for size in tensor.shape))
    yield tensor.detach().cpu().flatten().view(torch.uint8).numpy().data


def _keystream(kind: bytes, secret: Secret, label: Label, length: int) -> bytes:
    """Returns bytes that look random to anyone without the secret.

    AES-256 in counter mode over zeros, with a separate key for each label and kind of draw.
    Counter mode breaks if one key and nonce encrypt two texts. Here each key has a single
    stream, so the nonce can be zero, and asking for a stream again gives the same bytes.

    Args:
        kind: The kind of draw. If the sample and the noise of a label came from one stream,
            the noise would reveal who is in the sample.
        secret: The client's secret.
        label: What the bytes are for.
        length: Number of bytes.
    """
    key = hashlib.blake2b(
        label.encoded(), digest_size=_KEY_BYTES, key=secret.key, person=b"feddm " + kind
    )
    cipher = Cipher(AES256(key.digest()), CTR(bytes(16)))
    return cipher.encryptor().update(bytes(length))


def _framed(part: bytes) -> bytes:
    """Returns the bytes prefixed with their length, so that concatenation is unambiguous."""
    return len(part).to_bytes(8, "big") + part
