"""FedAvg, FedProx, FedNova and SCAFFOLD with 8 or 4 bits per number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

import private
from feddm.algorithms.base import Context, LocalResult, Upload
from feddm.algorithms.fedavg import FedAvg
from feddm.algorithms.fednova import FedNova
from feddm.algorithms.fedprox import FedProx
from feddm.algorithms.local_training import TrainsLocally
from feddm.algorithms.scaffold import Scaffold
from feddm.config.resolve import resolve
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, Model
from feddm.core.seeding import generator
from feddm.core.tensors import Records, Tensors, zip_map
from feddm.core.training import ignore
from feddm.errors import ConfigError, UploadError
from toy import TwoParameters, pixels, point

KINDS: list[type[TrainsLocally]] = [FedAvg, FedProx, FedNova, Scaffold]
TOP = {8: 127, 4: 7}
MODEL = ConvNet((1, 4, 4), 2, width=3, depth=1)
WEIGHTS = MODEL.init(generator(0, "test"))

every_kind = pytest.mark.parametrize("kind", KINDS)
few_bits = pytest.mark.parametrize("bits", TOP)


def built(kind: type[TrainsLocally], bits: int, model: Model = MODEL) -> TrainsLocally:
    settings = kind.Settings.model_validate(
        {"bits": bits, "local": {"lr": 0.1, "epochs": 2, "batch_size": 2}}
    )
    return kind(settings, Context(model, clients=2))


def examples(client: int) -> Examples:
    """Returns three images, which are not the same on both clients."""
    x = torch.randn(3, *MODEL.shape, generator=generator(0, "images", client=client))
    return Examples(x, torch.tensor([client, client, 1 - client]))


def work(algorithm: TrainsLocally, download: Records, memory: Records) -> LocalResult:
    return algorithm.local(download, examples(0), memory, generator(0, "client"), ignore)


def update_in(upload: Records, download: Records) -> Tensors:
    """Returns the update or direction in an upload that was parsed, or has 32 bits."""
    if "params" in upload:
        return zip_map(torch.sub, upload["params"], download["params"])
    return upload["update"] if "update" in upload else upload["direction"]


def assert_close(first: Tensors, second: Tensors) -> None:
    torch.testing.assert_close(dict(first), dict(second), rtol=1e-5, atol=1e-6)


def test_two_updates_by_hand() -> None:
    # With 4 bits a level is 1 in both rounds, and the server gets 0 or 1 of the second number,
    # .25. What is left of it, .25 or -.75, makes .75 or -.25 of the next, .5: the server gets 0
    # or 1, or else -1 or 0.
    algorithm = built(FedAvg, 4)
    updates = [{"w": torch.tensor([7.0, 0.25])}, {"w": torch.tensor([-7.0, 0.5])}]
    paths = set()
    for seed in range(100):
        memory: Records = {}
        path: list[float] = []
        for number, update in enumerate(updates):
            rng = generator(seed, "t", number)
            sent, memory = algorithm.encoded("update", update, memory, rng)
            arrived = algorithm.decoded(sent, "update", update)["update"]["w"]
            assert abs(float(arrived[0])) == 7
            path += [float(arrived[1]), float(memory["residual"]["w"][1])]
        paths.add(tuple(path))
    assert paths == {
        (0.0, 0.25, 0.0, 0.75),
        (0.0, 0.25, 1.0, -0.25),
        (1.0, -0.75, 0.0, -0.25),
        (1.0, -0.75, -1.0, 0.75),
    }


def series() -> st.SearchStrategy[Tensor]:
    """Returns updates of up to six rounds, one per row."""
    shapes = st.tuples(st.integers(1, 6), st.integers(1, 5))
    return npst.arrays("float32", shapes, elements=st.floats(-9, 9, width=32)).map(
        torch.from_numpy
    )


@given(series(), st.sampled_from(sorted(TOP)))
def test_what_was_sent_adds_up_to_the_updates_but_for_one_residual(
    updates: Tensor, bits: int
) -> None:
    algorithm = built(FedAvg, bits)
    memory: Records = {}
    total = torch.zeros(updates.shape[1])
    for number, update in enumerate(updates):
        rng = generator(0, "t", number)
        sent, memory = algorithm.encoded("update", {"w": update}, memory, rng)
        total += algorithm.decoded(sent, "update", {"w": update})["update"]["w"]
    left = memory["residual"]["w"]
    torch.testing.assert_close(total + left, updates.sum(0), rtol=1e-5, atol=1e-4)
    # With updates up to U and residuals up to E, a level is at most (U + E) / L, and so is the
    # next residual: they stay below U / (L - 1), however many there were.
    assert float(left.abs().max()) <= float(updates.abs().max()) / (TOP[bits] - 1) * 1.0001


@every_kind
@few_bits
def test_what_arrives_and_what_is_left_are_the_update(
    kind: type[TrainsLocally], bits: int
) -> None:
    exact, algorithm = built(kind, 32), built(kind, bits)
    state, memory = algorithm.init(WEIGHTS), work(algorithm, algorithm.init(WEIGHTS), {}).memory
    download = algorithm.broadcast(state)
    whole, result = (work(each, download, memory) for each in (exact, algorithm))
    parsed = algorithm.parse(result.upload, download)
    assert_close(
        zip_map(torch.add, update_in(parsed, download), result.memory["residual"]),
        zip_map(torch.add, update_in(whole.upload, download), memory["residual"]),
    )
    assert result.metrics == whole.metrics


@every_kind
def test_32_bits_leave_nothing_and_draw_nothing(kind: type[TrainsLocally]) -> None:
    algorithm = built(kind, 32)
    result = work(algorithm, algorithm.init(WEIGHTS), {})
    assert set(result.memory) == ({"control"} if kind is Scaffold else set())
    rng = generator(0, "t")
    before = rng.get_state()
    assert algorithm.encoded("update", WEIGHTS, {}, rng) == ({"update": WEIGHTS}, {})
    assert torch.equal(rng.get_state(), before)


@every_kind
@few_bits
def test_tensors_of_one_number_arrive_as_they_are(kind: type[TrainsLocally], bits: int) -> None:
    # The only number of a tensor is its largest, and so lies on a level.
    data = Examples(pixels(1.0, -0.5), torch.tensor([0, 1]))
    ends = []
    for algorithm in (built(kind, 32, TwoParameters()), built(kind, bits, TwoParameters())):
        state: Records = algorithm.init(point(0.5, 2.0))
        memory: Records = {}
        for number in range(3):
            download = algorithm.broadcast(state)
            rng = generator(0, "t", number)
            result = algorithm.local(download, data, memory, rng, ignore)
            uploads = [Upload(0, algorithm.parse(result.upload, download))]
            state = algorithm.aggregate(state, uploads, rng, ignore)
            memory = result.memory
        ends.append(state["params"])
    assert_close(*ends)
    assert float(ends[0]["a"]) != pytest.approx(0.5, abs=1e-3)


@few_bits
def test_scaffolds_variate_is_the_mean_if_only_some_take_part(bits: int) -> None:
    algorithm = built(Scaffold, bits)
    state = algorithm.init(WEIGHTS)
    memories: dict[int, Records] = {}
    for number, client in enumerate((0, 1, 1, 0, 1)):
        download, rng = algorithm.broadcast(state), generator(0, "t", number)
        result = algorithm.local(
            download, examples(client), memories.get(client, {}), rng, ignore
        )
        memories[client] = result.memory
        parsed = algorithm.parse(result.upload, download)
        state = algorithm.aggregate(state, [Upload(client, parsed)], rng, ignore)
        controls = [memory["control"] for memory in memories.values()]
        assert_close(state["control"], zip_map(lambda *c: sum(c) / 2, *controls))


@few_bits
def test_scaffolds_variates_do_not_pile_up_what_rounding_left(bits: int) -> None:
    # From the same weights with the server's variate at 0 and the client's own corrected for,
    # each change aims at the same mean gradient: the variate stays within a level of it.
    exact, algorithm = built(Scaffold, 32), built(Scaffold, bits)
    download = exact.broadcast(exact.init(WEIGHTS))
    memory: Records = {}
    for _ in range(10):
        aim = work(exact, download, memory).memory["control"]
        result = work(algorithm, download, memory)
        scales = result.upload["control_scale"]
        for name, kept in result.memory["control"].items():
            assert bool(((kept - aim[name]).abs() <= scales[name] * 1.0001 + 1e-6).all())
        memory = result.memory


@every_kind
@pytest.mark.parametrize(("ours", "theirs"), [(8, 4), (4, 8), (8, 32), (4, 32), (32, 8)])
def test_uploads_with_other_bits_are_refused(
    kind: type[TrainsLocally], ours: int, theirs: int
) -> None:
    state = built(kind, ours).init(WEIGHTS)
    upload = work(built(kind, theirs), state, {}).upload
    with pytest.raises(UploadError):
        built(kind, ours).parse(upload, state)


def test_an_upload_without_scales_is_refused() -> None:
    algorithm = built(FedAvg, 8)
    state = algorithm.init(WEIGHTS)
    upload = dict(work(algorithm, state, {}).upload)
    del upload["update_scale"]
    with pytest.raises(UploadError, match="with 8 bits has update and update_scale"):
        algorithm.parse(upload, state)


@pytest.mark.parametrize("wrong", [16, 0, "8"])
def test_other_numbers_of_bits_are_refused(wrong: int | str) -> None:
    says = f"^bits must be one of 32, 8, 4, got {wrong!r}$"
    with pytest.raises(ConfigError, match=says):
        resolve(options={"algorithm": "fedavg"}, settings={"bits": wrong})


@pytest.mark.parametrize("name", private.BASELINES)
@few_bits
def test_private_clients_round_what_they_release_with_noise(name: str, bits: int) -> None:
    whole, rounded = private.built(name), private.built(name, bits=bits)
    download, data = private.download(whole), private.examples(0, 1, 2)
    assert rounded.planned == whole.planned
    noises = private.noise(), private.noise()
    exact, result = (
        algorithm.local(download, data, {}, generator(0, "t"), ignore, noise)
        for algorithm, noise in zip((whole, rounded), noises, strict=True)
    )
    assert noises[0].released == noises[1].released != ()
    assert_close(
        zip_map(
            torch.add,
            update_in(rounded.parse(result.upload, download), download),
            result.memory["residual"],
        ),
        update_in(exact.upload, download),
    )
    assert not result.metrics
