"""Your own data: an image folder, a .npz file, or arrays in Python, as one `OwnData`.

    file.npz    x        (n, height, width) or (n, height, width, channels); (n, features)
                y        class of each: names, or indices into `classes`
                classes  class names, optional; else those of y
                test     optional: whether it is for testing
                group    optional: whom it is about, for instance a patient
                client   optional: who has it

Images are pixels, from 0 to 255. Anything else is numbers: a table has a row for each example,
and an array of floats is taken as it is. Nothing is unpickled.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddm.config.schema import DataConfig, OwnDataConfig
from feddm.core import files
from feddm.core.examples import Examples, Normalization
from feddm.core.seeding import numpy_generator
from feddm.data import images
from feddm.data.catalog import DATASETS, DatasetInfo, described
from feddm.data.datasets import Dataset
from feddm.data.holdout import held_out
from feddm.data.images import Broken
from feddm.errors import DataError

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]

TEST_SHARE = 0.2  # held out, if the data have no test set
OWN = OwnDataConfig()
EXPORTED = {"inputs", "mean", "std", "weight"}  # what `feddm export` writes too; not read
MOST_BYTES = 16 * 2**30  # in the arrays of a .npz; a few bytes of a file can become any number


@dataclass(frozen=True, eq=False)
class OwnData:
    """Labelled examples of your own.

    Args:
        x: Values of shape (n, channels, height, width): uint8 pixels, or float32 numbers.
        y: Class of each, as an index into `classes`.
        classes: Names of the classes.
        test: Whether each is for testing; ``None`` if there is no test set.
        group: Number of whom each is about.
        client: Number of the client that has each.
        clients: Names of the clients.
        broken: Files that could not be read.
        converted: What was done to images, in words; empty if nothing.
        normalization: How they are to be normalized, if their owner says so.
    """

    x: Array
    y: Array
    classes: tuple[str, ...]
    test: Array | None = None
    group: Array | None = None
    client: Array | None = None
    clients: tuple[str, ...] = ()
    broken: tuple[Broken, ...] = ()
    converted: str = ""
    normalization: Normalization | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> Shape:
        """Channels, height and width."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    @property
    def pixels(self) -> bool:
        """Whether the values are pixels, and not any numbers."""
        return bool(self.x.dtype == np.uint8)


def facts_of(path: str) -> dict[str, Any]:
    """Returns the values of a configuration that follow from the data at a path."""
    place = Path(path)
    with files.explained(DataError, place):
        if not place.is_dir():
            return facts(_file(place, OWN), _name(place))
        folder = images.scan(place)
    return _facts(
        _name(place),
        classes=folder.classes,
        shape=images.natural_shape(folder.sizes, folder.gray),
        examples=sum(not image.test for image in folder.images),
        tested=any(image.test for image in folder.images),
        clients=len(folder.clients),
    )


def facts(data: OwnData, name: str) -> dict[str, Any]:
    """Returns the values of a configuration that follow from data."""
    train = np.ones(len(data), bool) if data.test is None else ~data.test
    found = _facts(
        name,
        classes=data.classes,
        shape=data.shape,
        examples=int(train.sum()),
        tested=data.test is not None,
        clients=len(data.clients),
    )
    if data.normalization is not None:
        found["data"]["own"] |= {
            "mean": list(data.normalization.mean),
            "std": list(data.normalization.std),
        }
    if not data.pixels:
        x = data.x[_training(data, TEST_SHARE)]
        mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3))
        found["data"]["own"] |= {
            "values": "numbers",
            "mean": [float(f"{value:.6g}") for value in mean],
            # A feature that never changes tells nothing, whatever it is divided by.
            "std": [float(f"{value:.6g}") if value > 1e-6 else 1.0 for value in std],
        }
        if data.shape[1:] == (1, 1):
            found["model"] = {"name": "mlp"}
            # Presets are for images. Vectors cannot be mirrored or turned, and have fewer
            # numbers, so that steps on them are longer.
            found["algorithm"] = {
                "synthesis": {"augment": False, "lr": 1.0},
                "server": {"augment": False},
            }
    return found


def _facts(
    name: str, classes: Sequence[str], shape: Shape, examples: int, tested: bool, clients: int
) -> dict[str, Any]:
    if len(classes) < 2:
        raise DataError(f"{name} must have two classes or more, got {', '.join(classes)}")
    data: dict[str, Any] = {
        "name": name,
        "own": {
            "classes": list(classes),
            "shape": list(shape),
            "examples": examples,
            "measured": True,
        },
    }
    if not tested:
        data["holdout"] = TEST_SHARE
    split = {"partition": {"scheme": "given", "clients": clients}} if clients else {}
    return {"data": data, **split}


def _name(path: Path) -> str:
    """Returns the name of data at a path: it names run directories and ledgers.

    >>> _name(Path("scans/Skin lesions.npz")), _name(Path("mnist"))
    ('Skin-lesions', 'own-mnist')
    """
    stem = path.absolute().name if path.is_dir() else path.stem
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "own"
    return f"own-{name}" if name in DATASETS else name


def read_data(path: Path, own: OwnDataConfig) -> OwnData:
    """Returns the data at a path, or raises a `DataError` that says why not.

    Args:
        path: An image folder or a .npz file.
        own: What is known of them: the shape of images, and how they are made to fit.
    """
    with files.explained(DataError, path):
        return _folder(path, own) if path.is_dir() else _file(path, own)


def read_own(path: Path, config: DataConfig) -> Examples:
    """Returns the examples of a node, whose files must all be whole.

    Args:
        path: An image folder or a .npz file.
        config: What the federation agreed on: class names and shape.
    """
    data = read_data(path, config.own)
    if data.broken:
        first = data.broken[0]
        raise DataError(f"{first.path} cannot be read: {first.reason}")
    return _examples(data, described(config), path)


def read_examples(data: OwnData, config: DataConfig) -> Examples:
    """Returns data as what a configuration says of them, all in one set."""
    return _examples(data, described(config), config.path)


def dataset_of(data: OwnData, config: DataConfig) -> Dataset:
    """Returns a data set with a test set, which may be held out, or elsewhere.

    Args:
        data: The examples.
        config: What is known of them, and what is held out.
    """
    info, place = described(config), config.path
    whole = _examples(data, info, place)
    notices = (*_broken_text(data), *filter(None, [data.converted]))
    if config.own.test:
        elsewhere = read_data(Path(config.own.test), config.own)
        notices += (*_broken_text(elsewhere),)
        test = _examples(elsewhere, info, config.own.test)
        chosen = np.zeros(len(data), bool)
    else:
        chosen = ~_training(data, config.holdout)
        test = whole.subset(torch.from_numpy(np.flatnonzero(chosen)))
    if chosen.all() or not len(test):
        raise DataError(
            f"{place} leaves {int((~chosen).sum())} examples to train on and {len(test)} to "
            "test with; there must be some of both: data.holdout says how many are held out"
        )
    return Dataset(
        info,
        train=whole.subset(torch.from_numpy(np.flatnonzero(~chosen))),
        test=test,
        owners=None if data.client is None else data.client[~chosen],
        notices=notices,
    )


def _training(data: OwnData, share: float) -> Array:
    """Returns which examples are for training, the same for every seed."""
    if data.test is not None:
        return ~data.test
    rng = numpy_generator(0, "holdout")
    return ~held_out(data.y, share, rng, data.group, data.client)


def _broken_text(data: OwnData) -> list[str]:
    if not data.broken:
        return []
    number, of = len(data.broken), len(data) + len(data.broken)
    first = data.broken[0]
    return [
        f"{number} of {of} files cannot be read and {'is' if number == 1 else 'are'} left out: "
        f"{first.path} ({first.reason})" + (", and more" if number > 1 else "")
    ]


def _examples(data: OwnData, info: DatasetInfo, place: str | Path) -> Examples:
    """Returns the examples with the classes of a federation, which matches them by name."""
    numbers = np.array([info.classes.index(name) for name in _known(data, info, place)])
    if data.shape != info.shape:
        wanted, found = (" x ".join(map(str, shape)) for shape in (info.shape, data.shape))
        raise DataError(
            f"{place} has {found} (channels x height x width), but {info.name} has {wanted}"
        )
    if data.pixels != (info.scale == 255.0):
        kinds = ("pixels", "numbers") if data.pixels else ("numbers", "pixels")
        raise DataError(f"{place} has {kinds[0]}, but {info.name} has {kinds[1]}")
    return Examples(
        torch.from_numpy(np.ascontiguousarray(data.x)),
        torch.from_numpy(numbers[data.y].astype(np.int64)),
        info.normalization,
        group=None if data.group is None else torch.from_numpy(data.group),
    )


def _known(data: OwnData, info: DatasetInfo, place: str | Path) -> tuple[str, ...]:
    for name in data.classes:
        if name not in info.classes:
            raise DataError(
                f"{place} has an unknown class {name!r}; the classes of {info.name} are "
                f"{', '.join(info.classes)}"
            )
    return data.classes


def _folder(path: Path, own: OwnDataConfig) -> OwnData:
    folder = images.scan(path)
    x, kept, broken = images.read(folder.images, own.shape, own.fit, own.white)
    found = [folder.images[number] for number in kept]
    if not found:
        first = (*folder.broken, *broken)[0]
        raise DataError(f"{first.path} cannot be read: {first.reason}")
    test = np.array([image.test for image in found])
    clients = folder.clients
    numbers = [clients.index(image.client) if image.client else 0 for image in found]
    named = [image.group for image in found]
    height, width = own.shape[1:]
    resized = sum(image.size != (width, height) for image in found)
    deep = sum(image.mode.startswith("I") for image in found)
    said = [f"{resized:,} images are resized to {width} x {height} ({own.fit})"] * (resized > 0)
    said += [f"{deep:,} images of 16 bits are scaled to 8 (white is {own.white})"] * (deep > 0)
    return OwnData(
        x,
        np.array([folder.classes.index(image.label) for image in found], np.int64),
        folder.classes,
        test if test.any() else None,
        np.unique(named, return_inverse=True)[1].astype(np.int64) if all(named) else None,
        np.array(numbers, np.int64) if clients else None,
        clients,
        (*folder.broken, *broken),
        "; ".join(said),
    )


def _file(path: Path, own: OwnDataConfig) -> OwnData:
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.suffix != ".npz":
        raise DataError(f"{path} is neither a folder nor a .npz file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not a .npz file, or is truncated")
    known = {"x", "y", "classes", "test", own.group, own.client}
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {
                info.filename.removesuffix(".npy"): info.file_size
                for info in archive.infolist()
            }
        _check_members(sizes, known, path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            parts = {name: file[name] for name in file.files if name in known}
    except DataError:
        raise
    except Exception as error:  # zip, zlib and numpy raise their own errors
        raise DataError(f"{path} cannot be read: {error}") from None
    return of_arrays(parts, own, str(path))


def _check_members(sizes: Mapping[str, int], known: set[str], path: Path) -> None:
    """Raises `DataError` for what a .npz cannot have, before any of it is unpacked."""
    missing = {"x", "y"} - set(sizes)
    if missing:
        raise DataError(f"{path} is missing {', '.join(sorted(missing))}")
    unknown = sorted(set(sizes) - known - EXPORTED)
    if unknown:
        raise DataError(
            f"{path} has {', '.join(unknown)}; known are {', '.join(sorted(known))} "
            "(data.own.group and data.own.client say what those two are called)"
        )
    if sum(sizes.values()) > MOST_BYTES:
        raise DataError(
            f"{path} unpacks to {sum(sizes.values()) / 2**30:.0f} GiB, and at most "
            f"{MOST_BYTES / 2**30:.0f} GiB are read"
        )


def of_arrays(
    parts: Mapping[str, Array], own: OwnDataConfig, where: str, *, channels_first: bool = False
) -> OwnData:
    """Returns data in arrays.

    Args:
        parts: x and y, and what else is known; see above.
        own: How `group` and `client` are called.
        where: What errors call them.
        channels_first: Whether channels stand before height and width, as in torch. Without
            it, that is so only if there are 1 or 3 of them there, and other than that last.
    """
    x = _values(parts["x"], own.white, where, channels_first)
    y, classes = _labels(parts["y"], parts.get("classes"), len(x), where)
    test, group, client = (parts.get(key) for key in ("test", own.group, own.client))
    for name, each in (("test", test), (own.group, group), (own.client, client)):
        if each is not None and each.shape != (len(x),):
            raise DataError(
                f"{where}: {name} must be one for each of {len(x)} examples, got shape "
                f"{each.shape}"
            )
    if test is not None and test.dtype != np.bool_:
        raise DataError(f"{where}: test must be true or false, got {test.dtype}")
    data = OwnData(x, y, classes, None if test is None or not test.any() else test)
    if group is not None:
        data = replace(data, group=_numbered(group, own.group, where)[0])
    if client is not None:
        numbers, names = _numbered(client, own.client, where)
        data = replace(data, client=numbers, clients=names)
    return data


def _values(x: Array, white: int, where: str, channels_first: bool) -> Array:
    """Returns pixels or numbers, channels first."""
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "buif":
        raise DataError(
            f"{where}: x must be numbers of shape (n, features), (n, height, width) or "
            f"(n, height, width, channels), got {x.dtype} of shape {x.shape}"
        )
    if not x.size:
        raise DataError(f"{where} has no examples")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{where}: x has {int((~np.isfinite(x)).sum())} values that are none")
    if x.dtype.kind == "f" and np.abs(x).max() > np.finfo(np.float32).max:
        raise DataError(f"{where}: x has values that are too large for float32")
    if x.ndim == 2:
        return np.ascontiguousarray(x.astype(np.float32)[:, :, None, None])
    if x.dtype == np.uint16:
        x = (x * (255 / white)).round().clip(0, 255).astype(np.uint8)
    elif x.dtype == np.bool_:
        x = x.astype(np.uint8) * np.uint8(255)
    elif x.dtype.kind in "iu" and x.dtype != np.uint8:
        if x.min() < 0 or x.max() > 255:
            raise DataError(
                f"{where}: pixels must be from 0 to 255, got {x.min()} to {x.max()}; save "
                "16-bit images as uint16, and other numbers as float32"
            )
        x = x.astype(np.uint8)
    elif x.dtype.kind == "f":
        x = x.astype(np.float32)
    if x.ndim == 3:
        x = x[:, None]
    elif not channels_first and not (x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)):
        x = np.moveaxis(x, 3, 1)
    return np.ascontiguousarray(x)


def _labels(
    y: Array, names: Array | None, number: int, where: str
) -> tuple[Array, tuple[str, ...]]:
    if y.shape != (number,) or y.dtype.kind not in "iuUb":
        raise DataError(
            f"{where}: y must be one whole number or name for each of {number} examples, got "
            f"{y.dtype} of shape {y.shape}"
        )
    if names is None:
        found, numbers = np.unique(y, return_inverse=True)
        return numbers.astype(np.int64), tuple(str(name) for name in found.tolist())
    if names.dtype.kind != "U":
        raise DataError(f"{where}: classes must be strings, got {names.dtype}")
    classes = tuple(str(name) for name in names.flatten().tolist())
    for name in classes:
        if classes.count(name) > 1:
            raise DataError(f"{where} lists the class {name!r} more than once")
    if y.dtype.kind == "U":
        unknown = sorted(set(y.tolist()) - set(classes))
        if unknown:
            raise DataError(f"{where}: y has {unknown[0]!r}, which is not in classes")
        return np.array([classes.index(name) for name in y.tolist()], np.int64), classes
    if y.dtype.kind == "b" or y.min() < 0 or y.max() >= len(classes):
        raise DataError(
            f"{where}: y must be from 0 to {len(classes) - 1}, got {y.min()} to {y.max()}"
        )
    return y.astype(np.int64), classes


def _numbered(names: Array, what: str, where: str) -> tuple[Array, tuple[str, ...]]:
    """Returns a number for each name, and the names in the order of their numbers."""
    if names.dtype.kind not in "iuUb":
        raise DataError(f"{where}: {what} must be whole numbers or names, got {names.dtype}")
    found, numbers = np.unique(names, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(name) for name in found.tolist())
