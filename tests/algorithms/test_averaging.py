"""FedAvg, FedProx, FedNova and SCAFFOLD against numbers worked out by hand.

All of it on `TwoParameters`, two clients and two parameters: at (a, b) = (.5, 2) the logit is
z = a b x = x. A client has copies of one example of class 0, so that the order does not matter.
Client 0 has x = 1 once: its loss has the slope s(1) - 1 = -q by z. Client 1 has x = -1 thrice:
its slope is s(-1) - 1 = -p. With dz/da = b x = 2 x and dz/db = a x = x / 2 the gradients are
(-2 q, -q / 2) and (2 p, p / 2).
"""

import math
from collections.abc import Sequence

import pytest
import torch

from feddm.algorithms.base import Algorithm, Context, LocalResult, Upload
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.algorithms.fednova import FedNova, FedNovaSettings, gradient_weight
from feddm.algorithms.fedprox import FedProx, FedProxSettings
from feddm.algorithms.local_training import PlainTraining, Training
from feddm.algorithms.scaffold import Scaffold, ScaffoldSettings
from feddm.core.examples import Examples
from feddm.core.seeding import generator
from feddm.core.tensors import Records
from feddm.core.training import ignore
from toy import TwoParameters, pixels, point

MODEL = TwoParameters()
START = (0.5, 2.0)
VALUES, COUNTS = (1.0, -1.0), (1, 3)
CLIENTS = [
    Examples(pixels(*[value] * count), torch.zeros(count, dtype=torch.int64))
    for value, count in zip(VALUES, COUNTS, strict=True)
]
q = 1 / (1 + math.e)
p = 1 - q

Point = tuple[float, float]


def slope(w: Point, x: float) -> Point:
    """Returns the gradient of the loss of x in class 0, in plain Python."""
    a, b = w
    by_z = 1 / (1 + math.exp(-a * b * x)) - 1
    return by_z * b * x, by_z * a * x


def add(w: Point, v: Point, scale: float = 1.0) -> Point:
    return w[0] + scale * v[0], w[1] + scale * v[1]


def rounds(
    algorithm: Algorithm, number: int, clients: Sequence[Examples] = CLIENTS
) -> tuple[list[Records], list[dict[int, Records]]]:
    """Returns the states after each round, and what the clients remember."""
    state = algorithm.init(point(*START))
    memories: dict[int, Records] = {}
    states, remembered = [], []
    for _ in range(number):
        download = algorithm.broadcast(state)
        results: list[LocalResult] = [
            algorithm.local(download, data, memories.get(k, {}), generator(k, "t"), ignore)
            for k, data in enumerate(clients)
        ]
        memories = {k: result.memory for k, result in enumerate(results)}
        uploads = (
            Upload(k, algorithm.parse(result.upload, download))
            for k, result in enumerate(results)
        )
        state = algorithm.aggregate(state, uploads, generator(0, "s"), ignore)
        states.append(state)
        remembered.append(memories)
    return states, remembered


def params(algorithm: Algorithm, number: int, clients: Sequence[Examples] = CLIENTS) -> Point:
    final = rounds(algorithm, number, clients)[0][-1]["params"]
    return float(final["a"]), float(final["b"])


def full_batch(lr: float = 1.0, epochs: int = 1, momentum: float = 0.0) -> Training:
    return Training(lr=lr, epochs=epochs, batch_size=10, momentum=momentum)


def one_by_one(lr: float = 0.1, epochs: int = 1, momentum: float = 0.0) -> Training:
    """Client 0 takes one step an epoch, client 1 three."""
    return Training(lr=lr, epochs=epochs, batch_size=1, momentum=momentum)


def fedavg(local: Training) -> FedAvg:
    return FedAvg(FedAvgSettings(local=local), Context(MODEL))


def fedprox(local: Training, mu: float) -> FedProx:
    return FedProx(FedProxSettings(local=local, mu=mu), Context(MODEL))


def fednova(local: Training) -> FedNova:
    return FedNova(FedNovaSettings(local=local), Context(MODEL))


def scaffold(local: Training, server_lr: float, clients: int) -> Scaffold:
    plain = PlainTraining(lr=local.lr, epochs=local.epochs, batch_size=local.batch_size)
    settings = ScaffoldSettings(local=plain, server_lr=server_lr)
    return Scaffold(settings, Context(MODEL, clients=clients))


class TestFedAvg:
    def test_one_step_by_hand(self) -> None:
        # The clients go to (.5 + 2 q, 2 + q / 2) and (.5 - 2 p, 2 - p / 2), and count 1 and 3.
        a, b = params(fedavg(full_batch()), 1)
        assert a == pytest.approx(0.5 + (2 * q - 3 * 2 * p) / 4)
        assert b == pytest.approx(2 + (q / 2 - 3 * p / 2) / 4)

    def test_equal_sizes_are_the_plain_mean(self) -> None:
        single = [CLIENTS[0], Examples(pixels(-1.0), torch.tensor([0]))]
        a, b = params(fedavg(full_batch()), 1, single)
        assert a == pytest.approx(0.5 + q - p)
        assert b == pytest.approx(2 + (q - p) / 4)


class TestFedProx:
    def test_two_steps_by_hand(self) -> None:
        # The proximal term is nothing in the first step, and pulls back by mu (w - w_r) in the
        # second.
        lr, mu = 0.5, 0.3
        ends = []
        for x in VALUES:
            first = add(START, slope(START, x), -lr)
            pull = add(slope(first, x), add(first, START, -1), mu)
            ends.append(add(first, pull, -lr))
        a, b = params(fedprox(full_batch(lr, epochs=2), mu), 1)
        assert a == pytest.approx((ends[0][0] + 3 * ends[1][0]) / 4)
        assert b == pytest.approx((ends[0][1] + 3 * ends[1][1]) / 4)

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_mu_zero_is_fedavg(self, momentum: float) -> None:
        sgd = one_by_one(epochs=2, momentum=momentum)
        assert params(fedprox(sgd, 0.0), 3) == params(fedavg(sgd), 3)

    def test_large_mu_stays_near(self) -> None:
        sgd = full_batch(lr=0.01, epochs=20)
        near = params(fedprox(sgd, 50.0), 1)
        far = params(fedprox(sgd, 0.0), 1)
        assert math.dist(near, START) < 0.2 * math.dist(far, START)


class TestFedNova:
    def test_different_steps_by_hand(self) -> None:
        # Client 0 takes one step, client 1 three; each update is divided by its steps, and the
        # mean direction is taken (1 + 3 * 3) / 4 = 2.5 times.
        lr = 0.1
        ends = [START, START]
        for k, (x, steps) in enumerate(zip(VALUES, COUNTS, strict=True)):
            for _ in range(steps):
                ends[k] = add(ends[k], slope(ends[k], x), -lr)
        direction = [
            ((START[i] - ends[0][i]) / 1 + 3 * (START[i] - ends[1][i]) / 3) / 4
            for i in range(2)
        ]
        a, b = params(fednova(one_by_one(lr)), 1)
        assert a == pytest.approx(START[0] - 2.5 * direction[0])
        assert b == pytest.approx(START[1] - 2.5 * direction[1])

    def test_different_steps_with_momentum_by_hand(self) -> None:
        # With momentum .5, one gradient counts 1 and three count 1.75 + 1.5 + 1 = 4.25.
        lr, momentum, weights = 0.1, 0.5, (1.0, 4.25)
        directions = []
        for x, steps, weight in zip(VALUES, COUNTS, weights, strict=True):
            w, velocity = START, (0.0, 0.0)
            for _ in range(steps):
                velocity = add(slope(w, x), velocity, momentum)
                w = add(w, velocity, -lr)
            directions.append(((START[0] - w[0]) / weight, (START[1] - w[1]) / weight))
        far = (1 * weights[0] + 3 * weights[1]) / 4
        a, b = params(fednova(one_by_one(lr, momentum=momentum)), 1)
        assert a == pytest.approx(
            START[0] - far * (directions[0][0] + 3 * directions[1][0]) / 4
        )
        assert b == pytest.approx(
            START[1] - far * (directions[0][1] + 3 * directions[1][1]) / 4
        )

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_equal_steps_are_fedavg(self, momentum: float) -> None:
        sgd = full_batch(lr=0.3, epochs=3, momentum=momentum)
        nova, avg = params(fednova(sgd), 3), params(fedavg(sgd), 3)
        assert nova == pytest.approx(avg, rel=1e-5)

    def test_unequal_steps_are_not_fedavg(self) -> None:
        sgd = one_by_one()
        nova, avg = params(fednova(sgd), 1), params(fedavg(sgd), 1)
        assert math.dist(nova, avg) > 1e-3

    @pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
    @pytest.mark.parametrize("steps", [1, 2, 7])
    def test_weight_of_gradients(self, steps: int, momentum: float) -> None:
        # With the gradient 1 in every step, the way gone is the weight of all gradients.
        velocity = way = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1
            way += velocity
        assert gradient_weight(steps, momentum) == pytest.approx(way)


class TestScaffold:
    def test_two_rounds_by_hand(self) -> None:
        # Option II in plain Python: y goes by g - c_i + c, and then
        # c_i' = c_i - c + (x - y) / (K lr).
        lr, server_lr = 0.1, 0.7
        x, c = START, (0.0, 0.0)
        controls = [(0.0, 0.0), (0.0, 0.0)]
        for _ in range(2):
            moves, changes = [], []
            for k, (value, steps) in enumerate(zip(VALUES, COUNTS, strict=True)):
                y = x
                for _ in range(steps):
                    correction = add(c, controls[k], -1)
                    y = add(y, add(slope(y, value), correction), -lr)
                gone = add(x, y, -1)
                after = add(add(controls[k], c, -1), gone, 1 / (steps * lr))
                moves.append(add(y, x, -1))
                changes.append(add(after, controls[k], -1))
                controls[k] = after
            x = add(x, add(moves[0], moves[1]), server_lr / 2)
            c = add(c, add(changes[0], changes[1]), 1 / 2)
        states, memories = rounds(scaffold(one_by_one(lr), server_lr, clients=2), 2)
        assert float(states[-1]["params"]["a"]) == pytest.approx(x[0], rel=1e-5)
        assert float(states[-1]["params"]["b"]) == pytest.approx(x[1], rel=1e-5)
        assert float(states[-1]["control"]["a"]) == pytest.approx(c[0], rel=1e-4)
        for k in range(2):
            assert float(memories[-1][k]["control"]["b"]) == pytest.approx(
                controls[k][1], rel=1e-4
            )

    def test_first_round_with_one_client_is_fedavg(self) -> None:
        sgd = one_by_one(epochs=3)
        ours = params(scaffold(sgd, 1.0, clients=1), 1, CLIENTS[1:])
        assert ours == pytest.approx(params(fedavg(sgd), 1, CLIENTS[1:]))

    def test_the_servers_variate_is_the_mean_of_the_clients(self) -> None:
        algorithm = scaffold(one_by_one(), 1.0, clients=2)
        for state, memory in zip(*rounds(algorithm, 4), strict=True):
            for name in ("a", "b"):
                mean = (memory[0]["control"][name] + memory[1]["control"][name]) / 2
                torch.testing.assert_close(state["control"][name], mean, rtol=1e-4, atol=1e-6)

    def test_it_stays_the_mean_if_only_some_take_part(self) -> None:
        algorithm = scaffold(one_by_one(), 1.0, clients=2)
        state = algorithm.init(point(*START))
        memories: dict[int, Records] = {}
        for k in (0, 1, 1, 0, 1):
            result = algorithm.local(
                algorithm.broadcast(state),
                CLIENTS[k],
                memories.get(k, {}),
                generator(0, "t"),
                ignore,
            )
            memories[k] = result.memory
            state = algorithm.aggregate(
                state, [Upload(k, result.upload)], generator(0, "s"), ignore
            )
            total = sum(memory["control"]["a"] for memory in memories.values())
            assert float(state["control"]["a"]) == pytest.approx(float(total) / 2, rel=1e-4)
