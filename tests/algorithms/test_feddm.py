import pickle
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch

from feddm.algorithms.base import Context, Upload
from feddm.algorithms.feddm import (
    FedDM,
    FedDMSettings,
    ServerTraining,
    Synthesis,
    label_dtype,
    united,
)
from feddm.core.coding import Coding, Type
from feddm.core.examples import Examples, Normalization
from feddm.core.models import ConvNet, Model
from feddm.core.seeding import generator
from feddm.core.tensors import Records, Tensors, norm, num_bytes, num_floats, zip_map
from feddm.core.training import ignore
from feddm.errors import EmptyRoundError, UploadError
from toy import TwoParameters, pixels, point


def feddm(
    model: Model = ConvNet((1, 8, 8), 10, width=4, depth=2),  # noqa: B008  # frozen
    *,
    min_class_size: int = 10,
    coding: Type = "float32",
    server: dict[str, Any] | None = None,
    **synthesis: Any,
) -> FedDM:
    """Returns FedDM as in the paper, but that it takes no step."""
    return FedDM(
        FedDMSettings(
            min_class_size=min_class_size,
            coding=coding,
            server=ServerTraining(**{"lr": 1.0, "epochs": 1, **(server or {})}),
            synthesis=Synthesis(**{"steps": 0, **synthesis}),
        ),
        Context(model),
    )


def client(counts: dict[int, int], shape: tuple[int, int, int] = (1, 8, 8)) -> Examples:
    """Returns random images with so many of each class."""
    y = torch.tensor([label for label, count in counts.items() for _ in range(count)])
    x = torch.randint(0, 256, (len(y), *shape), dtype=torch.uint8)
    return Examples(x, y, Normalization((0.3,) * shape[0], (0.4,) * shape[0]))


def local(algorithm: FedDM, data: Examples, seed: int = 0) -> Records:
    download = {"params": algorithm.model.init(generator(0, "test"))}
    result = algorithm.local(download, data, {}, generator(seed, "client"), ignore)
    algorithm.parse(result.upload, download)
    assert not result.memory
    return result.upload


def test_no_step_sends_real_images_of_the_right_classes() -> None:
    data = client({2: 30, 5: 12})
    examples = local(feddm(), data)["examples"]
    assert examples["y"].tolist() == [2] * 10 + [5] * 10
    inputs = data[torch.arange(len(data))].x
    for image, label in zip(examples["x"], examples["y"], strict=True):
        matches = (inputs == image).flatten(1).all(1).nonzero().flatten()
        assert len(matches) == 1
        assert data.y[matches] == label
    distinct = {image.numpy().tobytes() for image in examples["x"]}
    assert len(distinct) == 20


def test_steps_start_from_what_no_step_sends() -> None:
    data = client({2: 30, 5: 12})
    start = local(feddm(), data)["examples"]
    nearly = local(feddm(steps=3, lr=1e-9, networks=2), data)["examples"]
    torch.testing.assert_close(nearly["x"], start["x"], rtol=0, atol=1e-6)
    learned = local(feddm(steps=3, lr=100.0, networks=2), data)["examples"]
    assert (learned["x"] - start["x"]).abs().max() > 1e-3


def test_upload_of_cifar10_is_3072_floats_an_image_and_a_byte_a_label() -> None:
    data = client({0: 10, 3: 11, 9: 25, 4: 9}, (3, 32, 32))
    upload = local(feddm(ConvNet((3, 32, 32), 10, width=2)), data)
    pairs = 3  # class 4 has fewer than ten images
    assert num_floats(upload) == pairs * 10 * 3072
    assert num_bytes(upload) == pairs * 10 * (3072 * 4 + 1)


def test_a_class_with_few_images_sends_what_it_has() -> None:
    examples = local(feddm(min_class_size=1), client({1: 3, 2: 40}))["examples"]
    assert examples["y"].tolist() == [1] * 3 + [2] * 10


def test_a_client_without_any_class_sends_nothing() -> None:
    upload = local(feddm(), client({1: 3}))
    assert upload["examples"]["x"].shape == (0, 1, 8, 8)
    assert num_bytes(upload) == 0


def test_noise_start_does_not_look_at_the_images() -> None:
    first, second = (
        local(feddm(start="noise", min_class_size=1), client({1: 3, 7: 20}))["examples"]
        for _ in range(2)
    )
    assert torch.equal(first["x"], second["x"])
    assert first["y"].tolist() == [1] * 10 + [7] * 10


def test_networks_are_used_in_turn() -> None:
    # With radius 0 all networks are alike, so a pool of one is the same as fresh ones.
    data = client({2: 30, 5: 12})
    same: dict[str, Any] = dict(steps=4, lr=10.0, radius=0.0, real_batch="all")
    fresh, pool = (
        local(feddm(networks=n, **same), data)["examples"]["x"] for n in ("fresh", 1)
    )
    assert torch.equal(fresh, pool)


def test_matching_brings_the_means_together() -> None:
    data = client({2: 60, 5: 60})
    algorithm = feddm(steps=60, lr=2.0, networks=5)
    download = {"params": algorithm.model.init(generator(0, "test"))}
    metrics = algorithm.local(download, data, {}, generator(0, "client"), ignore).metrics
    assert metrics["last_loss"] < 0.5 * metrics["first_loss"]
    assert metrics["classes"] == 2
    assert metrics["images"] == 20


def upload(client: int, x: torch.Tensor, *labels: int, **more: torch.Tensor) -> Upload:
    examples = {"x": x, "y": torch.tensor(labels, dtype=torch.uint8), **more}
    return Upload(client, {"examples": examples})


def aggregated(
    weighting: Literal["synthetic", "examples"], radius: float, *uploads: Upload
) -> dict[str, torch.Tensor]:
    server = {"weighting": weighting, "radius": radius}
    algorithm = feddm(TwoParameters(), server=server)
    state = algorithm.init(point(0.5, 2.0))
    return dict(algorithm.aggregate(state, uploads, generator(0, "s"), ignore)["params"])


def test_server_step_by_hand() -> None:
    # At a = .5, b = 2 the logit is z = x. The losses of x = 1 in class 0 and x = -1 in class 1
    # have slopes s(1) - 1 = -q and s(-1) = q by z, and dz/da = 2 x, dz/db = x / 2. The mean
    # gradient is (-2 q, -q / 2) and one step with rate 1 goes against it.
    q = 1 / (1 + torch.e)
    params = aggregated("synthetic", 5.0, upload(0, pixels(1.0), 0), upload(3, pixels(-1.0), 1))
    assert float(params["a"]) == pytest.approx(0.5 + 2 * q)
    assert float(params["b"]) == pytest.approx(2 + q / 2)


def test_server_stays_in_the_ball() -> None:
    # The same step, of length q sqrt(4 + 1/4), cut to .1.
    params = aggregated("synthetic", 0.1, upload(0, pixels(1.0), 0), upload(3, pixels(-1.0), 1))
    assert norm(zip_map(torch.sub, params, point(0.5, 2.0))) == pytest.approx(0.1)
    assert float(params["a"]) == pytest.approx(0.5 + 0.1 * 2 / 4.25**0.5)


def test_weighting_by_examples_is_the_mean_over_real_examples() -> None:
    # One image stands for three real ones, the other for one: as if it were there three times.
    three, one = torch.tensor([3.0]), torch.tensor([1.0])
    weighted = aggregated(
        "examples",
        5.0,
        upload(0, pixels(1.0), 0, weight=three),
        upload(1, pixels(2.0), 1, weight=one),
    )
    repeated = aggregated(
        "synthetic", 5.0, upload(0, pixels(1.0, 1.0, 1.0), 0, 0, 0), upload(1, pixels(2.0), 1)
    )
    for name in weighted:
        torch.testing.assert_close(weighted[name], repeated[name])


def test_weights_are_class_sizes_over_images() -> None:
    examples = local(feddm(server={"weighting": "examples"}), client({2: 30, 5: 12}))[
        "examples"
    ]
    assert examples["weight"].tolist() == pytest.approx([3.0] * 10 + [1.2] * 10)


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(EmptyRoundError, match="min_class_size"):
        aggregated("synthetic", 5.0, upload(0, torch.empty(0, 1, 1, 1)))
    with pytest.raises(EmptyRoundError):
        aggregated("synthetic", 5.0)


def test_union_names_the_client() -> None:
    sets = [upload(4, pixels(1.0, 2.0), 0, 1), upload(7, pixels(3.0), 1)]
    both = united((sent.client, sent.records["examples"]) for sent in sets)
    assert both["client"].tolist() == [4, 4, 7]
    assert both["x"].flatten().tolist() == [1, 2, 3]
    assert both["y"].tolist() == [0, 1, 1]


GOOD: dict[str, torch.Tensor] = {
    "x": torch.zeros(2, 1, 8, 8),
    "y": torch.zeros(2, dtype=torch.uint8),
}


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        ({"x": GOOD["x"]}, "no more"),
        (GOOD | {"z": GOOD["x"]}, "no more"),
        (GOOD | {"x": GOOD["x"].double()}, "float64"),
        (GOOD | {"x": torch.zeros(2, 1, 9, 9)}, "9, 9"),
        (GOOD | {"x": torch.zeros(101, 1, 8, 8)}, "at most 100"),
        (GOOD | {"x": torch.full((2, 1, 8, 8), torch.nan)}, "from -10000"),
        (GOOD | {"y": torch.zeros(3, dtype=torch.uint8)}, "for 3 labels"),
        (GOOD | {"y": torch.zeros(2, dtype=torch.int64)}, "smallest type"),
        (GOOD | {"y": torch.tensor([0, 10], dtype=torch.uint8)}, "below 10"),
    ],
)
def test_wrong_uploads_are_refused(examples: dict[str, torch.Tensor], says: str) -> None:
    feddm().parse({"examples": GOOD}, {})
    with pytest.raises(UploadError, match=says):
        feddm().parse({"examples": examples}, {})


def test_other_records_and_weights_are_refused() -> None:
    with pytest.raises(UploadError, match="no more"):
        feddm().parse({"examples": GOOD, "more": {}}, {})
    weighted = feddm(server={"weighting": "examples"})
    with pytest.raises(UploadError, match="weight"):
        weighted.parse({"examples": GOOD}, {})
    with pytest.raises(UploadError, match="above 0"):
        weighted.parse({"examples": GOOD | {"weight": torch.tensor([1.0, -1.0])}}, {})
    weighted.parse({"examples": GOOD | {"weight": torch.ones(2)}}, {})


def test_weights_that_could_overflow_are_refused() -> None:
    algorithm = feddm(server={"weighting": "examples"})
    for weight in (1.1e9, torch.inf, torch.nan):
        with pytest.raises(UploadError, match="above 0 and up to 1e"):
            algorithm.parse({"examples": GOOD | {"weight": torch.tensor([1.0, weight])}}, {})
    algorithm.parse({"examples": GOOD | {"weight": torch.tensor([1.0, 1e9])}}, {})


def test_local_leaves_its_arguments_unchanged() -> None:
    algorithm = feddm(steps=2, networks=1)
    data = client({2: 30})
    params = algorithm.model.init(generator(0, "test"))
    before = {name: tensor.clone() for name, tensor in params.items()}
    pictures = data.x.clone()
    algorithm.local({"params": params}, data, {}, generator(0, "c"), ignore)
    assert torch.equal(data.x, pictures)
    assert all(torch.equal(params[name], before[name]) for name in before)


def test_it_pickles_and_compares() -> None:
    assert pickle.loads(pickle.dumps(feddm())) == feddm()
    assert feddm(steps=1) != feddm(steps=2)


def test_label_types() -> None:
    assert label_dtype(256) == torch.uint8
    assert label_dtype(257) == torch.int32


class TestReplay:
    def rounds(self, **server: Any) -> list[Records]:
        algorithm = feddm(TwoParameters(), server=server)
        state: Records = algorithm.init(point(1.0, 1.0))
        states = []
        for number in range(4):
            uploads = [upload(7, pixels(float(number)), 0)]
            state = algorithm.aggregate(state, uploads, generator(number, "s"), ignore)
            states.append(state)
        return states

    def test_sets_of_earlier_rounds_are_kept_so_long(self) -> None:
        states = self.rounds(replay=2)
        kept = [state["replay"]["x"].flatten().tolist() for state in states]
        assert kept == [[0], [1, 0], [2, 1, 0], [3, 2, 1]]
        assert states[-1]["replay"]["round"].tolist() == [4, 3, 2]
        # What is shown and counted as the round's own is the round's own.
        assert states[-1]["synthetic"]["x"].flatten().tolist() == [3]

    def test_a_round_takes_as_many_steps_as_without(self) -> None:
        # One image per round: 12 passes over 1, 6 over 2, 4 over 3, and again 4 over 3.
        steps: list[int] = []
        algorithm = feddm(TwoParameters(), server={"epochs": 12, "batch_size": 1, "replay": 2})
        state: Records = algorithm.init(point(1.0, 1.0))
        for number in range(4):
            ticks: list[float] = []
            uploads = [upload(7, pixels(float(number)), 0)]
            state = algorithm.aggregate(state, uploads, generator(number, "s"), ticks.append)
            steps.append(len(ticks) * len(state["replay"]["y"]))
        assert steps == [12, 12, 12, 12]

    def test_without_it_nothing_is_kept(self) -> None:
        assert all(set(state) == {"params", "synthetic"} for state in self.rounds())
        algorithm = feddm()
        state: Records = algorithm.init(algorithm.model.init(generator(0, "test")))
        assert set(algorithm.broadcast(state)) == {"params"}
        result = algorithm.local(state, client({2: 12}), {}, generator(0, "c"), ignore)
        assert result.memory == {}


class TestRemembering:
    """A client remembers those of its images that the server trains on again."""

    DATA = Examples(pixels(*[1.0] * 6, *[3.0] * 6), torch.tensor([0] * 12))

    def download(self, number: int) -> Records:
        return {"params": point(2.0, 3.0), "clock": {"round": torch.tensor(number)}}

    def algorithm(self, **synthesis: Any) -> FedDM:
        return feddm(TwoParameters(), server={"replay": 2}, **synthesis)

    def memories(self, *rounds: int) -> Iterator[tuple[Records, Records]]:
        """Yields what a client that takes part in these rounds sent, and what it remembers."""
        algorithm, memory = self.algorithm(), dict[str, Tensors]()
        for number in rounds:
            rng = generator(0, "c", number)
            result = algorithm.local(self.download(number), self.DATA, memory, rng, ignore)
            memory = dict(result.memory)
            yield result.upload, memory

    def test_it_remembers_what_it_sent_and_when(self) -> None:
        (first, _), (second, memory) = self.memories(1, 2)
        assert memory["sent"]["round"].tolist() == [2] * 10 + [1] * 10
        sent = torch.cat([second["examples"]["x"], first["examples"]["x"]])
        assert torch.equal(memory["sent"]["x"], sent)

    def test_it_forgets_what_the_server_forgets(self) -> None:
        # In round 5, the server trains on images of rounds 3 and 4 again. Round 2 is missed.
        kept = [m["sent"]["round"].unique().tolist() for _, m in self.memories(1, 3, 4, 5)]
        assert kept == [[1], [1, 3], [3, 4], [3, 4, 5]]

    def test_new_images_make_up_for_earlier_ones(self) -> None:
        # Mean 2, ten earlier images of 3: ten new ones go to 1. Squared distance, one network
        # at w_r itself: the gap of the means halves in every step at this learning rate.
        memory: Records = {
            "sent": {
                "x": pixels(*[3.0] * 10),
                "y": torch.zeros(10, dtype=torch.uint8),
                "round": torch.ones(10, dtype=torch.int32),
            }
        }
        # d/dx_i of |2 (r - s)|^2 + |6 (r - s)|^2 is -8 (r - s), with ten images in each mean.
        algorithm = self.algorithm(steps=20, lr=1 / 16, radius=0.0, networks=1)
        rng = generator(0, "c")
        result = algorithm.local(self.download(2), self.DATA, memory, rng, ignore)
        assert float(result.upload["examples"]["x"].mean()) == pytest.approx(1.0, abs=1e-3)
        # In round 4 the server no longer has them.
        result = algorithm.local(self.download(4), self.DATA, memory, rng, ignore)
        assert float(result.upload["examples"]["x"].mean()) == pytest.approx(2.0, abs=1e-3)

    def test_a_download_says_the_round(self) -> None:
        algorithm = self.algorithm()
        state: Records = algorithm.init(point(1.0, 1.0))
        for number in (1, 2, 3):
            assert algorithm.broadcast(state)["clock"]["round"].item() == number
            uploads = [upload(7, pixels(1.0), 0)]
            state = algorithm.aggregate(state, uploads, generator(number, "s"), ignore)


@pytest.mark.parametrize("type_", ["uint8", "webp"])
def test_the_server_trains_on_what_it_decoded(type_: Type) -> None:
    coding = Coding(type_)
    algorithm = feddm(coding=type_)
    sent = local(algorithm, client({2: 30, 5: 12}))
    plain = local(feddm(), client({2: 30, 5: 12}))
    assert num_bytes(sent) < num_bytes(plain) / 1.5
    state = algorithm.aggregate(
        algorithm.init(algorithm.model.init(generator(0, "test"))),
        [Upload(3, algorithm.parse(sent, {}))],
        generator(0, "s"),
        ignore,
    )
    coded = {name: sent["examples"][name] for name in coding.names}
    images = coding.decode(coded, sent["examples"]["y"], (1, 8, 8), 100)
    assert torch.equal(state["synthetic"]["x"], images)
