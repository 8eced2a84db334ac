"""What a run is good for afterwards: export, evaluate, train-on, and results in Python."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import feddm
import feddm.cli
from feddm.data.datasets import load
from feddm.errors import ConfigError, RunDirectoryError
from feddm.runtime.run import RunResult
from residual import ResNet
from tiny import run_tiny


def feddm_(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["feddm", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            feddm.cli.main()
    seen = capsys.readouterr()
    assert ended.value.code in (None, 0, 2), seen
    return seen.err if ended.value.code else seen.out


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run_tiny(tmp_path_factory.mktemp("done") / "run", rounds=2)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the digits' test set as somebody's own file."""
    test, file = load("digits").test, tmp_path_factory.mktemp("digits") / "test.npz"
    np.savez(file, x=test.x[:, 0].numpy(), y=test.y.numpy())
    return file


def directory(result: RunResult) -> Path:
    assert result.directory is not None
    return result.directory


@pytest.fixture(scope="module")
def out(done: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from feddm.analysis.export import export

    out = tmp_path_factory.mktemp("export") / "out"
    exported = export(feddm.load_run(directory(done)), out)
    assert {path.name for path in out.iterdir()} == set(exported.files)
    needed = {
        "PRIVACY.txt",
        "about.json",
        "images",
        "model.pt",
        "model.ts",
        "synthetic.npz",
    }
    assert needed <= set(exported.files)
    assert ("model.onnx" in exported.files) != any("onnx" in n for n in exported.notes)
    return out


class TestExport:
    def test_the_set_is_what_was_trained_on_and_what_can_be_seen(
        self, out: Path, done: RunResult
    ) -> None:
        assert done.synthetic is not None
        with np.load(out / "synthetic.npz", allow_pickle=False) as file:
            assert np.array_equal(file["inputs"], done.synthetic.examples.x.numpy())
            assert np.array_equal(file["x"][..., 0], done.synthetic.pixels()[:, 0].numpy())
            assert file["client"].tolist() == done.synthetic.clients.tolist()
        images = sorted(out.glob("images/*/*.png"))
        assert len(images) == len(done.synthetic)
        first = done.synthetic.pixels()[0, 0].numpy()
        label, client = int(done.synthetic.examples.y[0]), int(done.synthetic.clients[0])
        file = out / f"images/{label:03d}-{label}/client{client:03d}-00000.png"
        with Image.open(file) as image:
            assert np.array_equal(np.asarray(image), first)

    def test_it_is_data_for_another_run(self, out: Path) -> None:
        result = feddm.run(
            data=out / "synthetic.npz",
            rounds=1,
            algorithm="fedavg",
            set={"model.width": 4, "model.depth": 2, "local.epochs": 1},
        )
        assert result.config.partition.scheme == "given"
        assert result.config.partition.clients == 3
        assert result.config.data.own.shape == (1, 8, 8)

    @pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore:.*jit.*:FutureWarning")
    def test_the_model_is_the_same_everywhere(self, out: Path, done: RunResult) -> None:
        state = torch.load(out / "model.pt", weights_only=True)
        assert {key: tensor.shape for key, tensor in state.items()} == {
            key: tensor.shape for key, tensor in done.model.params.items()
        }
        pixels = load("digits").test.x[:5]
        script = torch.jit.load(out / "model.ts")
        torch.testing.assert_close(script(pixels), done.model.logits(pixels))

    def test_the_privacy_statement_is_beside_it(self, out: Path) -> None:
        assert "No privacy guarantee." in (out / "PRIVACY.txt").read_text()

    def test_a_folder_in_use_is_refused(
        self, out: Path, done: RunResult, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = feddm_(capsys, "export", directory(done), "--out", out)
        assert said == f"feddm: {out} is not empty; choose another folder with --out\n"


class TestEvaluate:
    def test_the_run_s_own_test_set_gives_the_last_accuracy(
        self, done: RunResult, digits: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = json.loads(feddm_(capsys, "evaluate", directory(done), digits, "--json"))
        assert said["examples"] == 359
        assert said["accuracy"] == done.records[-1].accuracy
        assert said["loss"] == pytest.approx(done.records[-1].loss)

    def test_other_classes_are_refused(
        self, done: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8), np.uint8), y=np.array(["a", "b"]))
        said = feddm_(capsys, "evaluate", directory(done), tmp_path / "x.npz")
        assert "has an unknown class 'a'" in said


class TestTrainOn:
    def test_another_model_learns_from_the_set_alone(
        self, done: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "new.safetensors"
        words = ("train-on", directory(done), "--model=mlp", "--width=32", "--depth=1")
        said = json.loads(feddm_(capsys, *words, "--epochs=30", "--out", out, "--json"))
        assert said["accuracy"] > 0.7
        model = feddm.load_model(out)
        test = load("digits").test
        right = sum(
            name == model.classes[label]
            for name, label in zip(model.predict(test.x), test.y.tolist(), strict=True)
        )
        assert right / len(test) == said["accuracy"]
        again = json.loads(feddm_(capsys, *words, "--epochs=30", "--json"))
        assert again == said

    def test_a_model_of_your_own(
        self, done: RunResult, capsys: pytest.CaptureFixture[str]
    ) -> None:
        own = f"{Path(__file__).parent / 'residual.py'}:ResNet"
        said = feddm_(capsys, "train-on", directory(done), "--model", own, "--epochs=1")
        assert "359 examples of the test set of the run: accuracy" in said


class TestResults:
    def test_a_run_is_loaded_again(self, done: RunResult) -> None:
        again = feddm.load_run(directory(done))
        assert again.records == done.records
        assert again.model.to_bytes() == done.model.to_bytes()
        assert again.synthetic is not None and done.synthetic is not None
        assert again.synthetic.to_bytes() == done.synthetic.to_bytes()

    def test_a_run_that_is_not_finished_says_so(self, done: RunResult, tmp_path: Path) -> None:
        for name in ("config.toml", "results.jsonl"):
            (tmp_path / name).write_bytes((directory(done) / name).read_bytes())
        with pytest.raises(RunDirectoryError, match=r"is not finished.*2 of 2 rounds are done"):
            feddm.load_run(tmp_path)

    def test_it_shows_itself(self, done: RunResult) -> None:
        page = done._repr_html_()
        assert page.count("<tr>") == 1 + len(done.records)
        assert f"{100 * done.records[-1].accuracy:.2f} %" in page
        assert page.count("<circle") == len(done.records)
        assert repr(done).startswith("<feddm on digits: ")
        assert repr(done.model) == "<convnet with 374 parameters: 1 x 8 x 8 to 10 classes>"

    def test_its_table_has_a_row_for_each_round(
        self, done: RunResult, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import importlib.util

        frame = done.table()
        assert list(frame["accuracy"]) == [record.accuracy for record in done.records]
        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "pandas" else found(name)
        )
        rows = done.table()
        assert [row["round"] for row in rows] == [1, 2]
        assert rows[0]["clients"] == 3

    def test_its_plot_is_the_curve(self, done: RunResult) -> None:
        (axes,) = done.plot().axes
        (line,) = axes.lines
        accuracies = [100 * record.accuracy for record in done.records]
        assert list(np.asarray(line.get_ydata())) == pytest.approx(accuracies)

    def test_the_set_is_a_data_set_of_torch(self, done: RunResult) -> None:
        assert done.synthetic is not None
        x, y = done.synthetic.to_torch()[3]
        assert torch.equal(x, done.synthetic.examples.x[3])
        assert y == done.synthetic.examples.y[3]


SMALL: dict[str, Any] = {
    "model.width": 4,
    "model.depth": 2,
    "server.epochs": 2,
    "local.epochs": 1,
}


class TestCompare:
    def test_it_is_the_same_as_single_runs(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"clients": 3, "rounds": 1, "workers": 1}
        found = feddm.compare(
            ["real", "fedavg"], seeds=[0, 1], set=SMALL, out=tmp_path / "study", **options
        )
        assert list(found.records) == ["real", "fedavg"]
        single = feddm.run(
            algorithm="fedavg",
            seed=1,
            set={k: v for k, v in SMALL.items() if k.startswith(("model", "local"))},
            **options,
        )
        assert found.records["fedavg"][1][0].loss == single.records[0].loss
        assert [row.name for row in found.rows] == ["real", "fedavg"]
        assert list(found.table()["algorithm"]) == ["real", "fedavg"]
        assert "fedavg" in found._repr_html_()
        assert len(found.plot().axes[0].lines) == 4
        again = feddm.compare(
            ["real", "fedavg"], seeds=[0, 1], set=SMALL, out=tmp_path / "study", **options
        )
        assert again.rows == found.rows  # nothing ran again

    def test_mistakes(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'round'"):
            feddm.compare(round=1)
        with pytest.raises(ConfigError, match="algorithms must differ"):
            feddm.compare(["fedavg", "fedavg"])
        with pytest.raises(ConfigError, match=r"unknown key server\.lrr|has no setting"):
            feddm.compare(["real", "fedavg"], set={"server.lrr": 1})


class TestWords:
    def test_errors_name_arguments(self, tmp_path: Path, done: RunResult) -> None:
        with pytest.raises(
            ConfigError, match=r"^data_dir does nothing: digits come with feddm"
        ):
            feddm.run(data_dir=tmp_path)
        with pytest.raises(RunDirectoryError, match=r"choose another with out, or continue .*"):
            feddm.run(out=directory(done))

    def test_progress_is_shown_where_there_is_a_screen(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options: dict[str, Any] = {"rounds": 1, "clients": 2, "algorithm": "fedavg"}
        settings = {k: v for k, v in SMALL.items() if k.startswith(("model", "local"))}
        feddm.run(**options, set=settings)
        assert capsys.readouterr().out == ""
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
        feddm.run(**options, set=settings)
        assert "fedavg on digits" in capsys.readouterr().out
        feddm.run(**options, set=settings, quiet=True)
        assert capsys.readouterr().out == ""


def test_a_model_of_your_own_is_exported(tmp_path: Path) -> None:
    from feddm.analysis.export import export

    result = feddm.run(
        model=ResNet,
        algorithm="fedavg",
        rounds=1,
        clients=2,
        set={"local.epochs": 1},
        out=tmp_path / "run",
    )
    with pytest.raises(RunDirectoryError, match="reading a run runs no code"):
        feddm.load_run(tmp_path / "run")
    loaded = feddm.load_run(tmp_path / "run", model=ResNet)
    exported = export(loaded, tmp_path / "out")
    assert any("fedavg makes no synthetic set" in note for note in exported.notes)
    state = torch.load(tmp_path / "out/model.pt", weights_only=True)
    assert torch.equal(state["fc.weight"], result.model.params["fc.weight"])
