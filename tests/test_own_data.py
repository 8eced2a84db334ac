"""Your own data, from the command line and in Python: what is built in works on them, too."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import feddm
import feddm.cli
from feddm.config.resolve import load_toml
from feddm.core.examples import Examples
from feddm.core.models import MLP
from feddm.core.training import SGD, train
from feddm.data.own import OwnData
from feddm.errors import ConfigError, DataError, RunDirectoryError
from feddm.privacy.clipping import GRID
from feddm.privacy.features import Bound, Bounded, class_totals
from feddm.runtime.run import RunResult, resume
from own import CLASSES, class_folders, three_clients
from tiny import running, timeless_results, wait_for_rounds

QUICK = {
    "model.width": 4,
    "model.depth": 2,
    "synthesis.steps": 2,
    "synthesis.networks": 2,
    "server.epochs": 2,
    "min_class_size": 2,
}
OPTIONS = ["--workers=1", *(f"--set={key}={value}" for key, value in QUICK.items())]
FILES = ("model.safetensors", "synthetic.safetensors")


def feddm_(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Runs a command, and returns what it prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["feddm", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            feddm.cli.main()
    seen = capsys.readouterr()
    assert ended.value.code in (None, 0, 2), seen
    return " ".join((seen.err if ended.value.code else seen.out).split())


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with three clients, and works beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    three_clients(tmp_path / "scans")
    return tmp_path / "scans"


def run_own(data: object, **options: Any) -> RunResult:
    settings = {**QUICK, **options.pop("set", {})}
    return feddm.run(
        data=data, rounds=options.pop("rounds", 1), workers=1, set=settings, **options
    )


class TestFolder:
    def test_it_is_trained_on_and_the_broken_file_is_named(
        self, scans: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = feddm_(capsys, "run", "--data", "scans", "--rounds=2", "--out=run", *OPTIONS)
        assert "1 of 73 files cannot be read and is left out: " in said
        assert "oslo/cross/x.png (it is no image)" in said
        assert "72 images are resized to 32 x 32 (stretch)" in said
        assert "feddm on scans" in said
        # 12 images of each of 2 classes, of which 2 are held out.
        assert "3 clients with 20 to 20 of 60 examples and 2.0 of 2 classes" in said
        page = (scans.parent / "run" / "report.html").read_text()
        assert "1 of 73 files cannot be read and is left out" in page
        partition = json.loads((scans.parent / "run" / "partition.json").read_text())
        assert partition == {"classes": list(CLASSES), "table": [[10, 10]] * 3}

    def test_what_is_killed_goes_on_to_the_same_bits(
        self, scans: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ("run", "--data", "scans", "--rounds=4", "--no-report", *OPTIONS)
        feddm_(capsys, *words, "--out=whole")
        here = scans.parent
        with running(here, *words, "--out=killed") as process:
            wait_for_rounds(process, here / "killed", 1)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert not (here / "killed" / "model.safetensors").exists()
        scans.rename(here / "moved")
        feddm_(capsys, "resume", "killed", "--data", "moved", "--no-report")
        assert timeless_results(here / "killed") == timeless_results(here / "whole")
        for name in FILES:
            assert (here / "killed" / name).read_bytes() == (here / "whole" / name).read_bytes()

    def test_other_data_are_refused(self, scans: Path, tmp_path: Path) -> None:
        result = run_own(scans, out=tmp_path / "run")
        assert result.directory is not None
        (scans / "clients/rome/ring/200.png").unlink()
        with pytest.raises(RunDirectoryError, match="the data or their split have changed"):
            resume(result.directory)

    def test_the_configuration_is_complete(
        self, scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["feddm", "config", "--data", "scans"])
            with pytest.raises(SystemExit):
                feddm.cli.main()
        file = tmp_path / "own.toml"
        file.write_text(capsys.readouterr().out)
        data = load_toml(file)["data"]
        assert (data["name"], data["path"]) == ("scans", str(scans))
        assert (data["own"]["classes"], data["own"]["shape"]) == (list(CLASSES), [3, 32, 32])
        assert load_toml(file)["partition"]["scheme"] == "given"
        again, direct = (
            run_own(**given) for given in ({"data": None, "config": file}, {"data": scans})
        )
        assert again.config == direct.config
        assert again.records[0].loss == direct.records[0].loss

    def test_train_and_test_folders(self, tmp_path: Path) -> None:
        class_folders(tmp_path / "own/train", 9)
        class_folders(tmp_path / "own/test", 4, first=50)
        config = run_own(tmp_path / "own", clients=2, set={"partition.min_examples": 2}).config
        assert (config.data.own.examples, config.data.holdout) == (18, 0.0)
        assert config.partition.scheme == "dirichlet"

    def test_clients_can_be_mixed_and_split_again(self, scans: Path) -> None:
        mixed = run_own(scans, clients=2, set={"partition.scheme": "iid"})
        assert len(mixed.records[0].clients) == 2
        with pytest.raises(ConfigError, match=r"partition\.clients must be 3, the clients of"):
            run_own(scans, clients=2)

    def test_a_folder_of_data_sets_that_nothing_uses_is_told(
        self, scans: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = feddm_(capsys, "run", "--data-dir", "scans")
        assert "--data-dir does nothing: digits come with feddm" in said
        assert f"your own data are --data {scans}" in said
        said = feddm_(capsys, "run", "--data", "scans", "--data-dir", "scans")
        assert "--data-dir does nothing with --data" in said

    def test_check_shows_what_is_there(
        self, scans: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = feddm_(capsys, "data", "check", "scans", "--out", "sheet.png")
        for line in (
            "72 images, 1 file that cannot be read",
            "cross 36",
            "ring 36",
            "berlin 24",
            "8 x 8 24",
            "12 x 9 24",
            "7 x 16 24",
            "L 54",
            "RGB 18",
            "x.png it is no image",
        ):
            assert line in said, line
        assert (scans.parent / "sheet.png").stat().st_size > 500


class TestPrivacy:
    def test_groups_are_protected_as_a_whole(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "200")
        class_folders(tmp_path / "skin", 20, groups=8)
        words = (
            *("run", "--data", "skin", "--clients=2", "--epsilon=4", "--ledger=ledger"),
            *("--algorithm=fedavg", "--set=privacy.unit=group", "--set=partition.scheme=iid"),
            *("--rounds=1", "--set=privacy.steps=1", "--set=privacy.sample_rate=1"),
            *("--set=model.width=4", "--set=model.depth=2", "--workers=1", "--out=run"),
        )
        said = feddm_(capsys, *words, "--set=data.own.examples=40", "--no-report")
        assert "The unit is all examples of one group, added or removed." in said
        assert "Privacy spent: epsilon 4.0000" in said or "Privacy spent: epsilon 3.9" in said
        assert "names of classes, shape of examples and number of clients are taken as" in said
        (record,) = timeless_results(tmp_path / "run")
        assert record["unit"] == "group"
        assert 3.5 < record["epsilon"] <= 4
        assert load_toml(tmp_path / "run/config.toml")["data"]["own"]["examples"] == 40

    def test_nothing_is_computed_from_private_numbers(self, tmp_path: Path) -> None:
        x = np.random.default_rng(0).normal(size=(60, 5))
        y = np.arange(60) % 2
        options: dict[str, Any] = {"epsilon": 4, "ledger": tmp_path / "ledger", "clients": 2}
        with pytest.raises(
            ConfigError, match=r"data\.own\.mean and data\.own\.std are missing"
        ):
            run_own((x, y), **options)
        public = {"data.own.mean": 0.0, "data.own.std": 1.0}
        with pytest.raises(ConfigError, match=r"data\.own\.examples is missing"):
            feddm.run(data=(x, y), algorithm="fedavg", workers=1, set=public, **options)

    @given(
        moved=st.lists(st.integers(0, 11), min_size=1, max_size=12, unique=True),
        seed=st.integers(0, 99),
    )
    def test_a_whole_group_moves_a_release_by_at_most_the_bound(
        self, moved: list[int], seed: int
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        model = MLP((4, 1, 1), 2, width=5, depth=1)
        data = Examples(
            100 * torch.randn(20, 4, 1, 1, generator=rng),
            torch.randint(2, (20,), generator=rng),
            group=torch.tensor([100 if n in moved else n for n in range(20)]),
        )
        assert data.group is not None
        bound = Bound(3.0)
        params = model.init(rng)
        seen = Bounded(model, bound.features)
        rest = data.subset((data.group != 100).nonzero().flatten())
        whole, without = (
            class_totals(seen, params, part, bound, unit="group") for part in (data, rest)
        )
        moves = (whole - without).double().norm() * bound.length / GRID
        assert 0 < float(moves) <= bound.length


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = rng.normal(size=(60, 5)) + 3 * y[:, None]
    return x, y


class TestArrays:
    def test_all_kinds_give_the_same_run(self, tmp_path: Path) -> None:
        x, y = arrays()
        np.savez(tmp_path / "own.npz", x=x, y=y)
        float32 = torch.tensor(x, dtype=torch.float32)
        kinds: list[object] = [
            (x, y),
            (torch.tensor(x), torch.tensor(y)),
            {"x": x, "y": y.astype(str)},
            tmp_path / "own.npz",
            TensorDataset(float32, torch.tensor(y)),
            Examples(float32[:, :, None, None], torch.tensor(y)),
        ]
        losses = [run_own(kind, clients=2).records[0].loss for kind in kinds]
        assert losses == [losses[0]] * len(kinds)

    def test_vectors_have_a_model_and_a_synthetic_set_of_their_own(self) -> None:
        x, y = arrays()
        result = run_own((x, y), clients=2)
        assert result.config.model.name == "mlp"
        assert result.synthetic is not None
        assert result.synthetic.examples.x.shape[1:] == (5, 1, 1)
        # Back in the units of the data, the two classes are where they were.
        numbers = result.synthetic.normalization.stored(result.synthetic.examples.x)
        means = [numbers[result.synthetic.examples.y == label].mean() for label in (0, 1)]
        assert abs(means[0]) < 1 < 2 < means[1]
        assert len(result.model.predict(torch.tensor(x, dtype=torch.float32))) == 60

    def test_groups_stay_together(self) -> None:
        x, y = arrays()
        group = np.arange(60) // 5
        from feddm.data.given import keep, own_data
        from feddm.runtime.build import build

        kept = own_data((x, y, group))
        config = run_own(kept, clients=3).config
        data = config.data.model_copy(update={"path": keep(kept)})
        setup = build(config.model_copy(update={"data": data}))
        found = setup.dataset.train.group
        held_out = setup.dataset.test.group
        assert found is not None and held_out is not None
        owners = [set(found[torch.from_numpy(shard)].tolist()) for shard in setup.shards]
        parts = [*owners, set(held_out.tolist())]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 12

    def test_a_run_goes_on_with_the_same_data_given_again(self, tmp_path: Path) -> None:
        x, y = arrays()
        whole = run_own((x, y), clients=2, out=tmp_path / "run", rounds=2)
        with pytest.raises(DataError, match="were given in Python; give them again"):
            resume(tmp_path / "run")
        assert feddm.resume(tmp_path / "run", data=(x, y)).records == whole.records
        with pytest.raises(RunDirectoryError, match="the data or their split have changed"):
            feddm.resume(tmp_path / "run", data=(x + 1, y))

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (([[1.0, 2.0]], [0, 1]), "y must be one whole number or name for each of 1"),
            ({"x": [[1.0]]}, "data is missing y"),
            (5, r"data must be a path, \(x, y\), Examples or a torch Dataset, got int"),
            (([[1.0], [2.0]], [3, 3]), "must have two classes or more, got 3"),
            ((np.zeros((2, 2, 2, 2, 2)), [0, 1]), "x must be numbers of shape"),
        ],
    )
    def test_mistakes(self, data: object, says: str) -> None:
        with pytest.raises(DataError, match=says):
            run_own(data)


def test_breast_cancer_over_five_clients_is_as_good_as_pooled() -> None:
    from sklearn.datasets import load_breast_cancer

    cancer = load_breast_cancer()
    data = (cancer.data, cancer.target)
    federated = feddm.run(data=data, clients=5, workers=1)
    assert federated.config.algorithm.name == "feddm"

    # The same examples in one place, the same model, and as many epochs as it takes.
    from feddm.core.metrics import evaluate
    from feddm.data.given import own_data
    from feddm.data.own import dataset_of

    pooled = dataset_of(own_data(data), federated.config.data)
    assert len(pooled.train) == 456
    model = federated.model.model
    sgd = SGD(lr=0.05, epochs=60, batch_size=32, momentum=0.9)
    rng = torch.Generator().manual_seed(0)
    trained = train(model, model.init(rng), pooled.train, sgd, rng)
    accuracy = evaluate(model, trained.params, pooled.test).accuracy
    assert accuracy > 0.93
    assert federated.records[-1].accuracy > accuracy - 0.03


def test_hugging_face_data_sets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    x, y = arrays()
    columns = {f"feature{n}": x[:, n].tolist() for n in range(5)}
    table = datasets.Dataset.from_dict({**columns, "label": y.tolist()})
    direct = run_own((x, y), clients=2)
    given_ = run_own(table, clients=2)
    table.save_to_disk(str(tmp_path / "saved"))
    saved = run_own(tmp_path / "saved", clients=2)
    assert direct.records[0].loss == given_.records[0].loss == saved.records[0].loss
    assert saved.config.data.name == "saved"


def test_own_data_are_what_they_say() -> None:
    x, y = arrays()
    from feddm.data.given import own_data

    data = own_data({"x": x, "y": y, "client": np.array(["b", "a"] * 30), "test": y == 3})
    assert isinstance(data, OwnData)
    assert data.clients == ("a", "b")
    assert data.test is None  # nothing is for testing
    assert len(run_own(data).records[0].clients) == 2
