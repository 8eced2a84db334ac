"""FedDM from noisy sums, on the client and on the server, and the averaging methods."""

import itertools
from typing import Any

import pytest
import torch

from feddm.algorithms.base import LocalResult, Upload
from feddm.algorithms.feature_feddm import FeatureRelease, Network
from feddm.algorithms.gradient_feddm import GradientFedDM
from feddm.core.examples import Examples
from feddm.core.matching import ClassMeans, Target, class_means, synthesize
from feddm.core.models import ConvNet
from feddm.core.seeding import generator
from feddm.core.tensors import Records, norm, num_bytes, to_bytes, zip_map
from feddm.core.training import ignore
from feddm.errors import EmptyRoundError, UploadError
from feddm.privacy.features import Bound
from feddm.privacy.noise import Secret
from private import (
    BASELINES,
    MODEL,
    NAMES,
    OTHER_SECRET,
    SECRET,
    built,
    download,
    examples,
    noise,
)
from toy import TwoParameters, pixels, point

TINY = 1e-9
DATA = examples(0, 0, 0, 1, 1, 1, 2, 2, 2)


def local(
    algorithm: Any,
    data: Examples = DATA,
    secret: Secret = SECRET,
    memory: Records | None = None,
) -> LocalResult:
    weights = download(algorithm)
    rng = generator(0, "client")
    result: LocalResult = algorithm.local(
        weights, data, memory or {}, rng, ignore, noise(secret)
    )
    algorithm.parse(result.upload, weights)
    return result


def aggregated(algorithm: Any, *uploads: Records) -> Records:
    weights = download(algorithm)
    return learned_from(algorithm, *(algorithm.parse(sent, weights) for sent in uploads))


def learned_from(algorithm: Any, *parsed: Records) -> Records:
    state = algorithm.init(algorithm.model.init(generator(0, "test")))
    numbered = [Upload(client, records) for client, records in enumerate(parsed)]
    result: Records = algorithm.aggregate(state, numbered, generator(0, "server"), ignore)
    return result


@pytest.mark.parametrize("name", BASELINES)
def test_expected_batch_by_hand(name: str) -> None:
    # A quarter of the 9 examples that a client is assumed to have, in every step.
    algorithm: Any = built(name, rate=0.25, steps=3)
    assert algorithm.private.expected_batch == 2.25


def test_expected_batch_of_a_class_by_hand() -> None:
    # A quarter of 9 examples, which are of 3 classes.
    algorithm = built("gradients", rate=0.25, steps=3)
    assert isinstance(algorithm, GradientFedDM)
    assert algorithm.expected_batch == 0.75


@pytest.mark.parametrize("name", NAMES)
def test_a_private_client_needs_noise(name: str) -> None:
    algorithm = built(name)
    with pytest.raises(ValueError, match="needs noise, got None"):
        algorithm.local(download(algorithm), DATA, {}, generator(0, "client"), ignore)


def test_class_means_by_hand() -> None:
    # At a = 2, b = 3 and radius 0, the pixel x has h = 2 x and z = (6 x, 0). Class 0 has the
    # pixels .1 and .3, class 1 has -.2 alone, which counts as two because of the floor.
    release = FeatureRelease(1, 0.0, Bound(5.0, 0.36), TINY)
    model, networks = release.shown(TwoParameters(), {"params": point(2.0, 3.0)})
    data = Examples(pixels(0.1, -0.2, 0.3), torch.tensor([0, 1, 0]))
    totals = release.noisy_totals(model, networks, data, noise())
    sizes, (target,) = release.targets(totals, networks, 2, floor=2.0)
    assert sizes.tolist() == pytest.approx([2.0, 1.0])
    assert target.means.embedding.flatten().tolist() == pytest.approx([0.4, -0.2], rel=1e-4)
    assert target.means.logits.flatten().tolist() == pytest.approx([1.2, 0, -0.6, 0], abs=1e-4)


def test_without_noise_means_and_sizes_are_the_true_ones() -> None:
    release = FeatureRelease(3, 1.0, Bound(1000.0), TINY, projection=5)  # clips nothing
    model, networks = release.shown(MODEL, {"params": MODEL.init(generator(0, "test"))})
    totals = release.noisy_totals(model, networks, DATA, noise())
    sizes, targets = release.targets(totals, networks, 3, floor=1.0)
    assert sizes.tolist() == pytest.approx([3, 3, 3], rel=1e-6)
    for network, target in zip(networks, targets, strict=True):
        outputs = MODEL(network.params, DATA.x)
        assert model.projection is not None
        seen = outputs._replace(embedding=outputs.embedding @ model.projection)
        expected = class_means(seen, DATA.y, 3)
        torch.testing.assert_close(target.means.embedding, expected.embedding)
        torch.testing.assert_close(target.means.logits, expected.logits)


def test_projections_keep_lengths_on_average() -> None:
    release = FeatureRelease(1, 0.0, Bound(1.0), 1.0, projection=400)
    model, _ = release.shown(MODEL, download(built("features")))
    assert model.projection is not None
    assert model.projection.shape == (16, 400)
    assert float(model.projection.square().sum(1).mean()) == pytest.approx(1.0, rel=0.1)


def shown(algorithm: Any, weights: Records) -> tuple[bytes, list[bytes]]:
    model, networks = algorithm.release.shown(algorithm.model, weights)
    projection = to_bytes({"projection": {"p": model.projection}})
    return projection, [to_bytes({"params": network.params}) for network in networks]


@pytest.mark.parametrize("name", ["features", "server"])
def test_networks_are_the_same_for_all_and_depend_on_the_download(name: str) -> None:
    algorithm = built(name)
    first = shown(algorithm, download(algorithm))
    weights = download(algorithm)
    # Messages do not keep the order of names.
    backwards = {"params": dict(reversed(list(weights["params"].items())))}
    assert shown(algorithm, backwards) == first
    assert len(set(first[1])) == 2
    other = shown(algorithm, download(algorithm, seed=1))
    assert first[0] != other[0]
    assert not set(first[1]) & set(other[1])


def test_networks_are_as_far_away_as_asked() -> None:
    weights = download(built("features"))
    for radius in (0.0, 2.5):
        release = FeatureRelease(2, radius, Bound(1.0), 1.0)
        model, networks = release.shown(MODEL, weights)
        assert model.projection is None
        for network in networks:
            distance = norm(zip_map(torch.sub, network.params, weights["params"]))
            assert distance == pytest.approx(radius, rel=1e-4)


class TestFeatures:
    def test_images_are_learned_towards_the_noisy_means(self) -> None:
        algorithm = built("features", TINY, synthesis={"steps": 60})
        examples_ = local(algorithm).upload["examples"]
        assert examples_["y"].tolist() == [0, 0, 1, 1, 2, 2]
        release = algorithm.release  # type: ignore[attr-defined]
        model, networks = release.shown(MODEL, download(algorithm))
        start = torch.randn(6, 1, 8, 8, generator=generator(0, "client"))

        def gap(images: torch.Tensor, network: Network) -> float:
            real = class_means(model(network.params, DATA.x), DATA.y, 3)
            ours = class_means(model(network.params, images), examples_["y"].long(), 3)
            return sum(float((r - o).square().sum()) for r, o in zip(real, ours, strict=True))

        for network in networks:
            assert gap(examples_["x"], network) < 0.5 * gap(start, network)

    def test_an_upload_without_any_class_is_valid(self) -> None:
        for name in ("features", "gradients"):
            algorithm = built(name, TINY)
            upload = local(algorithm, examples(0, 1)).upload  # no class has two
            assert to_bytes(upload) == to_bytes(algorithm.pack_nothing())  # type: ignore[attr-defined]
            assert num_bytes(upload) == 0

    def test_one_client_without_any_class_does_no_harm(self) -> None:
        algorithm = built("features", TINY)
        nothing, something = (local(algorithm, data).upload for data in (examples(), DATA))
        after = aggregated(algorithm, nothing, something)
        assert after["synthetic"]["client"].tolist() == [1] * 6
        with pytest.raises(EmptyRoundError):
            aggregated(algorithm, nothing, nothing)

    @pytest.mark.parametrize("name", ["features", "gradients"])
    def test_classes_can_be_weighted_by_noisy_sizes(self, name: str) -> None:
        algorithm = built(name, TINY, server={"weighting": "examples"})
        sent = local(algorithm, examples(0, 0, 0, 0, 0, 0, 2, 2, 2, 2)).upload["examples"]
        assert sent["y"].tolist() == [0, 0, 2, 2]
        # Two images stand for six examples, and two for four.
        assert sent["weight"].tolist() == pytest.approx([3, 3, 2, 2], rel=1e-4)
        assert sent["weight"].dtype == torch.float32

    def test_other_secrets_make_other_images(self) -> None:
        algorithm = built("features", 0.01)
        first, second = (
            local(algorithm, secret=secret).upload["examples"]["x"]
            for secret in (SECRET, OTHER_SECRET)
        )
        assert not torch.equal(first, second)


class TestServer:
    def test_the_sums_of_clients_are_added(self) -> None:
        algorithm = built("server", 0.1)
        first = local(algorithm, examples(*[0] * 9, *[1] * 9)).upload
        second = local(algorithm, examples(2, 2, 2, seed=3), OTHER_SECRET).upload
        total = sum(each["sums"]["totals"].double() for each in (first, second))
        assert isinstance(total, torch.Tensor)
        both = aggregated(algorithm, first, second)
        assert to_bytes(both) == to_bytes(learned_from(algorithm, {"sums": {"totals": total}}))
        assert to_bytes(both) != to_bytes(aggregated(algorithm, first))

    def test_classes_are_those_of_all_clients_together(self) -> None:
        algorithm = built("server", TINY)
        # Each has one image of class 1, and the smallest class that counts has two.
        uploads = [local(algorithm, examples(0, 0, 0, 1)).upload for _ in range(3)]
        assert sorted(set(aggregated(algorithm, *uploads)["synthetic"]["y"].tolist())) == [0, 1]
        assert set(aggregated(algorithm, uploads[0])["synthetic"]["y"].tolist()) == {0}

    def test_no_class_at_all_is_an_empty_round(self) -> None:
        algorithm = built("server", TINY)
        with pytest.raises(EmptyRoundError, match="no class that is large enough"):
            aggregated(algorithm, local(algorithm, examples()).upload)
        with pytest.raises(EmptyRoundError, match="no client"):
            aggregated(algorithm)

    def test_an_upload_is_one_row_a_class_for_each_network(self) -> None:
        totals = local(built("server")).upload["sums"]["totals"]
        # 3 classes; 5 projected features, a count and 3 logits.
        assert (totals.shape, totals.dtype) == ((2, 3, 9), torch.float32)

    @pytest.mark.parametrize(
        "wrong",
        [
            torch.zeros(2, 3, 8),
            torch.zeros(1, 3, 9),
            torch.zeros(2, 3, 9, dtype=torch.float64),
            torch.full((2, 3, 9), torch.nan),
            torch.full((2, 3, 9), torch.inf),
        ],
    )
    def test_other_uploads_are_refused(self, wrong: torch.Tensor) -> None:
        algorithm = built("server")
        weights = download(algorithm)
        algorithm.parse({"sums": {"totals": torch.zeros(2, 3, 9)}}, weights)
        with pytest.raises(UploadError):
            algorithm.parse({"sums": {"totals": wrong}}, weights)
        good = {"totals": torch.zeros(2, 3, 9)}
        others: list[Records] = [{}, {"sums": {}}, {"sums": good, "x": {}}]
        for other in others:
            with pytest.raises(UploadError):
                algorithm.parse(other, weights)


@pytest.mark.parametrize("name", ["features", "gradients"])
def test_other_images_are_refused(name: str) -> None:
    algorithm = built(name, TINY)
    weights = download(algorithm)
    sent = local(algorithm).upload["examples"]
    for key, wrong in (
        ("x", torch.full_like(sent["x"], torch.nan)),
        ("x", sent["x"][:, :, 1:]),
        ("x", torch.cat([sent["x"], sent["x"]])),
        ("y", sent["y"] + 3),
        ("y", sent["y"].long()),
    ):
        with pytest.raises(UploadError):
            algorithm.parse({"examples": {**sent, key: wrong}}, weights)


def test_gradients_without_noise_and_clipping_are_matching() -> None:
    """The limit: all examples, nothing clipped, no noise, networks at the server's weights."""
    # As many examples of each class as are expected, so that sums become means.
    algorithm = built(
        "gradients",
        1e-15,
        steps=4,
        clip=1e6,
        synthesis={"radius": 0.0},
        count_multiplier=TINY,
    )
    sent = local(algorithm).upload["examples"]
    params = download(algorithm)["params"]
    means = ClassMeans(*class_means(MODEL(params, DATA.x), DATA.y, 3))
    expected, _ = synthesize(
        MODEL,
        torch.randn(6, 1, 8, 8, generator=generator(0, "client")),
        torch.tensor([0, 0, 1, 1, 2, 2]),
        itertools.repeat(Target(params, means)),
        lr=1.0,
        momentum=0.5,
        steps=4,
    )
    torch.testing.assert_close(sent["x"], expected, rtol=1e-3, atol=1e-3)


def round_of(name: str, **local_: float) -> Records:
    algorithm = built(name, rate=0.5, steps=3, local={"lr": 0.5, **local_})
    uploads = [
        local(algorithm, data, secret).upload
        for data, secret in ((DATA, SECRET), (examples(0), OTHER_SECRET))
    ]
    return aggregated(algorithm, *uploads)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_private_fednova_is_private_fedavg(momentum: float) -> None:
    # All clients take the same number of steps and count the same, whatever they have.
    first, second = (round_of(name, momentum=momentum) for name in ("fedavg", "fednova"))
    for name, tensor in first["params"].items():
        torch.testing.assert_close(second["params"][name], tensor, rtol=1e-4, atol=1e-5)


def test_clients_count_the_same_whatever_they_have() -> None:
    for data in (examples(), examples(0), DATA):
        assert int(local(built("fedavg"), data).upload["size"]["examples"]) == 1
        fednova = local(built("fednova", steps=2), data).upload
        assert int(fednova["size"]["examples"]) == 1
        assert float(fednova["coefficient"]["a"]) == 2.0


def test_variates_of_scaffold_are_made_of_what_is_uploaded() -> None:
    # Option II with lr .5 and 2 steps: c_i+ = c_i - c + (x - y) / (2 * .5) = c_i - c - update.
    algorithm = built("scaffold")
    weights = download(algorithm)
    control = {name: torch.full_like(t, 0.1) for name, t in weights["params"].items()}
    before = {name: torch.full_like(t, 0.3) for name, t in weights["params"].items()}
    result = algorithm.local(
        {**weights, "control": control},
        DATA,
        {"control": before},
        generator(0, "client"),
        ignore,
        noise(),
    )
    for name, update in result.upload["update"].items():
        expected = 0.3 - 0.1 - update
        torch.testing.assert_close(result.memory["control"][name], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            result.upload["control"][name], expected - 0.3, rtol=0, atol=1e-5
        )


def test_private_scaffold_of_a_first_round_is_private_fedavg() -> None:
    scaffold, fedavg = round_of("scaffold"), round_of("fedavg")
    for name, tensor in fedavg["params"].items():
        torch.testing.assert_close(scaffold["params"][name], tensor, rtol=1e-4, atol=1e-5)


def test_mu_zero_is_private_fedavg() -> None:
    first = local(built("fedprox", steps=3, mu=0.0)).upload
    assert to_bytes(first) == to_bytes(local(built("fedavg", steps=3)).upload)
    assert to_bytes(first) != to_bytes(local(built("fedprox", steps=3)).upload)


def test_models_with_more_classes_have_their_own_labels() -> None:
    model = ConvNet((1, 8, 8), 300, width=2, depth=1)
    sent = local(built("features", TINY, model=model), examples(*[299, 7] * 3)).upload
    assert sent["examples"]["y"].tolist() == [7, 7, 299, 299]
    assert sent["examples"]["y"].dtype == torch.int32
