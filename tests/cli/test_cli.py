import io
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import tomli_w
import torch
import typer.main
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import feddm.cli
import feddm.runtime.session
from feddm.analysis.bench import BenchReport, ClientUpdate, Kernel, PeakMemory, Workers
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.formatting import size_text
from feddm.errors import FedDMError
from feddm.runtime.build import LocalSetup, build
from feddm.runtime.display import HEADER, TextDisplay, line
from feddm.runtime.federation import RoundRecord
from feddm.runtime.results import from_line
from feddm.runtime.run import execute
from tiny import (
    CLIENTS,
    SETTINGS,
    arguments,
    num_rounds,
    running,
    timeless_results,
    wait_for_rounds,
)


def commands() -> dict[str, click.Command]:
    """Returns every command by its name, as ``data list``."""

    def below(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from below(command, f"{prefix}{name} ")
            else:
                yield prefix + name, command

    group = typer.main.get_command(feddm.cli.app)
    assert isinstance(group, click.Group)
    return dict(below(group, ""))


COMMANDS = commands()


@dataclass(frozen=True)
class Output:
    """What a command leaves on the screen."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on standard error, which is all that a mistake prints."""
        assert self.code == 2
        assert self.out == ""
        assert re.fullmatch(r"feddm: .+\n", self.err), self.err
        return self.err.removeprefix("feddm: ").rstrip("\n")

    @property
    def text(self) -> str:
        """Standard output of a command that went well."""
        assert (self.code, self.err) == (0, "")
        return self.out


Feddm = Callable[..., Output]


@pytest.fixture
def feddm_(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Feddm:
    """Returns the command line, in an empty folder and without any data of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Output:
        monkeypatch.setattr(sys, "argv", ["feddm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            feddm.cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return Output(code, out, err)

    return call


class TestHelp:
    @staticmethod
    def help_of(*command: str) -> str:
        result = CliRunner().invoke(feddm.cli.app, [*command, "--help"], env={"COLUMNS": "100"})
        assert result.exit_code == 0
        return click.unstyle(result.output)

    def test_it_lists_the_commands(self) -> None:
        text = self.help_of()
        for command in ("run", "resume", "config", "partition", "data", "bench", "profile"):
            assert re.search(rf"^│ {command} +[A-Z]", text, re.MULTILINE), command
        for command in ("list", "fetch", "check"):
            assert re.search(rf"^│ {command} +[A-Z]", self.help_of("data"), re.MULTILINE)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_has_an_example_and_explains_its_options(self, name: str) -> None:
        text = self.help_of(*name.split())
        assert "Example" in text
        assert re.search(rf"[ •]feddm {name}\b", text.partition("Example")[2])
        for parameter in COMMANDS[name].params:
            assert getattr(parameter, "help", None), parameter.name

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_example_can_be_typed(self, name: str) -> None:
        epilog = COMMANDS[name].epilog or ""
        examples = re.findall(r"`(feddm .+?)`", epilog)
        assert examples
        for example in examples:
            words = shlex.split(example.partition(" > ")[0])[1:]
            assert words[: len(name.split())] == name.split()
            COMMANDS[name].make_context(name, words[len(name.split()) :])

    def test_no_command_is_help(self, feddm_: Feddm) -> None:
        shown = feddm_()
        assert "partition" in shown.out + shown.err

    def test_version(self, feddm_: Feddm) -> None:
        assert re.fullmatch(r"feddm \d+\.\d+\.\d+\n", feddm_("--version").text)


class TestMistakes:
    def test_in_the_name_of_an_option(self, feddm_: Feddm) -> None:
        shown = feddm_("run", "--rond", 3)
        assert (shown.code, shown.out) == (2, "")
        assert "No such option '--rond'" in shown.err
        assert "--rounds" in shown.err
        assert len(shown.err.splitlines()) == 1

    def test_in_the_name_of_a_command(self, feddm_: Feddm) -> None:
        shown = feddm_("runn")
        assert (shown.code, shown.out) == (2, "")
        assert shown.err.count("Did you mean 'run'?") == 1
        assert len(shown.err.splitlines()) == 1

    def test_a_text_where_a_number_should_be(self, feddm_: Feddm) -> None:
        shown = feddm_("run", "--clients", "ten")
        assert (shown.code, shown.out) == (2, "")
        assert "'ten' is not a valid integer" in shown.err
        assert len(shown.err.splitlines()) == 1

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                ["run", "--dataset", "mnits"],
                "unknown data set 'mnits' (did you mean mnist?); "
                "choose from digits, mnist, fashion-mnist, cifar10, cifar100",
            ),
            (
                ["run", "--clients", "0"],
                "partition.clients must be a whole number of at least 1, got 0",
            ),
            (
                ["run", "--set", "server.lr=fast"],
                "server.lr must be a number above 0, got 'fast'",
            ),
            (
                ["config", "--set", "server.lr"],
                "--set takes key=value, got 'server.lr'",
            ),
            (
                ["config", "--preset", "thesis"],
                "preset must be one of quick, paper, private, got 'thesis'",
            ),
            (
                ["run", "--workers", "many"],
                "--workers must be a whole number of at least 1 or auto, got 'many'",
            ),
            (
                ["resume", "somewhere", "--workers", "0"],
                "--workers must be a whole number of at least 1 or auto, got '0'",
            ),
            (
                ["run", "--device", "gpu"],
                "runtime.device must be one of auto, cpu, cuda, mps, got 'gpu'",
            ),
            (
                ["run", "--compile", "always"],
                "runtime.compile must be one of auto, on, off, got 'always'",
            ),
            (
                ["run", "--device", "cpu", "--set", "runtime.precision=float16"],
                "runtime.precision float16 needs a GPU; use bfloat16 on a CPU",
            ),
            (
                ["profile", "--device", "gpu"],
                "runtime.device must be one of auto, cpu, cuda, mps, got 'gpu'",
            ),
            (
                ["profile", "--compile", "1"],
                "runtime.compile must be one of auto, on, off, got '1'",
            ),
            (
                ["bench", "--compile", "auto"],
                "--compile must be on or off, got 'auto'",
            ),
            (
                ["bench", "--out", "nowhere/bench.json"],
                "--out nowhere/bench.json: the directory nowhere does not exist",
            ),
            (
                ["run", "none.toml"],
                "cannot read none.toml: No such file or directory",
            ),
            (
                ["data", "check", "imagenet"],
                "unknown data set 'imagenet'; "
                "choose from digits, mnist, fashion-mnist, cifar10, cifar100",
            ),
            (
                ["data", "fetch", "MNIST"],
                "unknown data set 'MNIST' (did you mean mnist?); "
                "choose from digits, mnist, fashion-mnist, cifar10, cifar100",
            ),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_in_a_value(self, feddm_: Feddm, words: list[str], message: str) -> None:
        assert feddm_(*words).error == message
        assert not list(Path("runs").glob("*"))

    @pytest.mark.parametrize("device", ["cuda", "mps"])
    def test_a_device_that_is_not_there(
        self, feddm_: Feddm, monkeypatch: pytest.MonkeyPatch, device: str
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        message = f"runtime.device is {device}, but torch finds no such device; use auto or cpu"
        assert feddm_("run", "--device", device).error == message
        assert not list(Path("runs").glob("*"))

    def test_data_that_are_not_there(self, feddm_: Feddm, tmp_path: Path) -> None:
        message = feddm_("run", "--dataset", "mnist").error
        assert message.startswith(f"mnist is not in {tmp_path / 'data'}")
        assert "`feddm data fetch mnist`" in message
        assert not list(Path("runs").glob("*"))

    def test_a_process_ends_with_the_code_and_without_a_traceback(self, tmp_path: Path) -> None:
        for words in (["run", "--dataset", "mnits"], ["run", "--rond", "3"]):
            with running(tmp_path, *words) as process:
                out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (2, "")
            assert words[-1] in err or words[-2] in err
            assert "Traceback" not in err


class TestMain:
    """What the entry point does with what comes out of a command."""

    @staticmethod
    def main_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int | str | None:
        def app(**options: object) -> None:
            raise error

        monkeypatch.setattr(feddm.cli, "app", app)
        with pytest.raises(SystemExit) as ended:
            feddm.cli.main()
        return ended.value.code

    def test_an_error_that_can_be_mended(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.main_with(monkeypatch, FedDMError("the dog ate it; bring another")) == 2
        assert capsys.readouterr() == ("", "feddm: the dog ate it; bring another\n")

    def test_control_c(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.main_with(monkeypatch, KeyboardInterrupt()) == 130
        assert capsys.readouterr().err == "feddm: interrupted\n"

    def test_a_bug_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ZeroDivisionError):
            self.main_with(monkeypatch, ZeroDivisionError())


class TestRun:
    def test_plain_lines_where_there_is_no_terminal(self, feddm_: Feddm) -> None:
        lines = feddm_("run", *arguments(rounds=2), "--out", "run").text.splitlines()
        assert len(lines) == 7
        assert lines[0].startswith("feddm on digits, preset quick, seed 0: 3 clients with ")
        assert lines[0].endswith("; convnet with 374 parameters.")
        assert lines[1] == HEADER
        record = from_line((Path("run") / "results.jsonl").read_text().splitlines()[0])
        assert lines[2] == line(record, rounds=2)
        assert lines[2].startswith("      1/2 ")
        assert lines[3].startswith("      2/2 ")
        assert {len(row) for row in lines[1:4]} == {len(HEADER)}
        assert lines[4].startswith("Final accuracy ")
        assert lines[5:] == ["Results: run", "Report: run/report.html"]
        assert all(row == row.rstrip() and "\x1b" not in row for row in lines)

    def test_a_path_is_never_broken_into_lines(self, feddm_: Feddm, tmp_path: Path) -> None:
        out = tmp_path / ("long " * 30 + "way")
        text = feddm_("run", *arguments(rounds=1), "--out", out).text
        assert text.splitlines()[-2:] == [
            f"Results: {out}",
            f"Report: {out}/report.html",
        ]

    def test_the_header_is_as_wide_as_the_rows(self) -> None:
        for accuracy, count in ((0.0, 1), (1.0, 10**12)):
            record = RoundRecord(20, accuracy, 9.87654, 0, 0, count, count, 999.94, 0.0, ())
            assert len(line(record, rounds=20)) == len(HEADER)
        assert size_text(999_949) == "999.9 kB"
        assert size_text(999_950) == "1.0 MB"
        assert size_text(10**12) == "1000.0 GB"

    def test_json(self, feddm_: Feddm) -> None:
        text = feddm_("run", *arguments(rounds=2), "--out", "run", "--json").text
        assert [json.loads(row)["round"] for row in text.splitlines()] == [1, 2]
        assert text == (Path("run") / "results.jsonl").read_text()

    def test_quiet(self, feddm_: Feddm) -> None:
        shown = feddm_("run", *arguments(rounds=1), "--out", "run", "--quiet")
        assert shown == Output(0, "", "")
        assert num_rounds(Path("run")) == 1

    def test_quiet_is_not_silent_about_errors(self, feddm_: Feddm) -> None:
        assert "partition.clients" in feddm_("run", "--clients", 0, "--quiet").error

    def test_directories_have_names_of_their_own(self, feddm_: Feddm) -> None:
        for number in (1, 2):
            text = feddm_("run", *arguments(rounds=1)).text
            assert text.splitlines()[-2] == f"Results: runs/feddm-digits-{number}"
            assert (Path("runs") / f"feddm-digits-{number}" / "model.safetensors").exists()

    def test_two_that_begin_at_once_do_not_get_in_each_others_way(
        self, feddm_: Feddm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def build_after_another_run(config: Config, run: str) -> LocalSetup:
            monkeypatch.setattr(feddm.runtime.session, "build", build)
            words = ["run", *arguments(rounds=1), "--quiet"]
            feddm.cli.app(words, standalone_mode=False)
            return build(config, run)

        monkeypatch.setattr(feddm.runtime.session, "build", build_after_another_run)
        assert feddm_("run", *arguments(rounds=1), "--quiet").text == ""
        for number in (1, 2):
            assert (Path("runs") / f"feddm-digits-{number}" / "model.safetensors").exists()

    def test_a_directory_that_is_there_is_refused(self, feddm_: Feddm) -> None:
        feddm_("run", *arguments(rounds=1), "--out", "run", "--quiet")
        before = {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
        message = feddm_("run", *arguments(rounds=2), "--out", "run").error
        assert message == (
            "run exists and is not empty; choose another with --out, "
            "or continue that run with `feddm resume run`"
        )
        after = {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
        assert after == before

    def test_options_reach_the_run(self, feddm_: Feddm) -> None:
        Path("file.toml").write_text('seed = 3\n[model]\nnorm = "group"\n')
        words = ("--ipc", 1, "--alpha", 5, "--participation", 0.5, "--quiet", "--out", "run")
        feddm_("run", "file.toml", *arguments(rounds=1), *words)
        config = feddm_("config", Path("run") / "config.toml", "--json").text
        values = json.loads(config)
        assert (values["seed"], values["model"]["norm"], values["participation"]) == (
            3,
            "group",
            0.5,
        )
        assert (values["algorithm"]["images_per_class"], values["partition"]["alpha"]) == (1, 5)
        record = json.loads((Path("run") / "results.jsonl").read_text())
        assert len(record["clients"]) == 2  # half of three
        assert all(c["metrics"]["images"] == c["metrics"]["classes"] for c in record["clients"])

    def test_bars_on_a_terminal(self, tmp_path: Path) -> None:
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=80, color_system=None)
        options = {"clients": CLIENTS, "rounds": 2, "workers": 1}
        config = resolve(options=options, settings=SETTINGS, shared=True)
        with TextDisplay(console) as display:
            result = execute(config, tmp_path / "run", display)
            display.finished(result.records, tmp_path / "run")
        text = screen.getvalue()
        assert "clients learn" in text
        assert "server trains" in text
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        assert all(len(row) <= 80 for row in re.split(r"[\r\n]+", plain))
        assert "Final accuracy" in plain


class TestResume:
    def test_it_shows_the_rounds_before_and_goes_on(self, feddm_: Feddm) -> None:
        feddm_("run", *arguments(rounds=2), "--out", "run", "--quiet")
        config = Path("run") / "config.toml"
        config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
        text = feddm_("resume", "run", "--json").text
        assert text == (Path("run") / "results.jsonl").read_text()
        assert text.count("\n") == 3

        lines = feddm_("resume", "run").text.splitlines()
        assert [row.split()[0] for row in lines[2:5]] == ["1/3", "2/3", "3/3"]
        assert feddm_("resume", "run", "--quiet").text == ""

    def test_a_note_about_other_versions(self, feddm_: Feddm) -> None:
        feddm_("run", *arguments(rounds=1), "--out", "run", "--quiet")
        environment = Path("run") / "environment.json"
        environment.write_text(
            json.dumps(json.loads(environment.read_text()) | {"numpy": "0.0"})
        )
        assert feddm_("resume", "run").out.startswith(
            "Note: changed since the run began: numpy 0.0 -> "
        )

    def test_what_is_no_run_directory(self, feddm_: Feddm, tmp_path: Path) -> None:
        message = feddm_("resume", tmp_path).error
        assert message == f"{tmp_path} is not a run directory: it has no config.toml"
        assert "is not a run directory" in feddm_("resume", "nowhere").error

    def test_a_damaged_run_directory(self, feddm_: Feddm) -> None:
        feddm_("run", *arguments(rounds=1), "--out", "run", "--quiet")
        state = Path("run") / "checkpoints" / "round_00000001" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-3])
        assert f"{state} is damaged" in feddm_("resume", "run").error

    def test_control_c_says_how_to_go_on(self, tmp_path: Path) -> None:
        directory = tmp_path / "run"
        slow = arguments(rounds=1000, synthesis__steps=20)
        with running(tmp_path, "run", *slow, "--out", directory) as process:
            wait_for_rounds(process, directory, 2)  # so the first is on the screen too
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == f"Interrupted. Continue with: feddm resume {directory}\n"
        assert "1/1000" in out
        assert not (directory / "model.safetensors").exists()
        numbers = [record["round"] for record in timeless_results(directory)]
        assert numbers == list(range(1, len(numbers) + 1))


class TestConfig:
    def test_fed_back_as_a_file_it_is_the_same(self, feddm_: Feddm) -> None:
        words = ("--dataset", "cifar100", "--preset", "paper", "--workers", 2, "--seed", 7)
        shown = feddm_(
            "config", *words, "--data-dir", "my data", "--set", "server.lr=1e-3"
        ).text
        Path("again.toml").write_text(shown)
        assert feddm_("config", "again.toml").text == shown
        assert feddm_("config", "again.toml", "--seed", 8).text != shown
        for expected in (
            'name = "cifar100"',
            'preset = "paper"',
            f'dir = "{Path.cwd()}/my data"',
            "workers = 2",
            "seed = 7",
            "lr = 0.001",
            "images_per_class = 5",
        ):
            assert expected in shown.splitlines()

    def test_json_has_the_same_values(self, feddm_: Feddm) -> None:
        values = json.loads(feddm_("config", "--json").text)
        assert tomli_w.dumps(values) == feddm_("config").text

    def test_schema(self, feddm_: Feddm) -> None:
        document = json.loads(feddm_("config", "--schema").text)
        assert document["title"] == "Config"
        assert document["properties"]["rounds"]["description"] == "Rounds of communication."

    def test_a_run_uses_what_was_shown(self, feddm_: Feddm) -> None:
        shown = feddm_("config", *arguments(rounds=1)).text
        feddm_("run", *arguments(rounds=1), "--out", "run", "--quiet")
        assert (Path("run") / "config.toml").read_text() == shown


class TestPartition:
    def test_json_holds_every_example_once(self, feddm_: Feddm) -> None:
        shown = json.loads(feddm_("partition", "--clients", 4, "--json").text)
        assert shown["classes"] == list("0123456789")
        assert [len(row) for row in shown["clients"]] == [10] * 4
        assert sum(map(sum, shown["clients"])) == 1438

    def test_the_table_has_the_same_numbers(self, feddm_: Feddm) -> None:
        table = json.loads(feddm_("partition", "--clients", 4, "--json").text)["clients"]
        lines = feddm_("partition", "--clients", 4).text.splitlines()
        assert lines[0].split() == ["client", *"0123456789", "classes", "total"]
        for client, counts in enumerate(table):
            cells = [str(count) if count else "." for count in counts]
            present = sum(count > 0 for count in counts)
            expected = [str(client), *cells, str(present), str(sum(counts))]
            assert lines[1 + client].split() == expected
        assert max(map(len, lines)) <= 80
        assert lines[5].strip() == ""
        # The bar of the largest client is the longest, and shows no class that it lacks.
        bars = [row.split()[1] for row in lines[6:10]]
        totals = [sum(counts) for counts in table]
        assert max(range(4), key=lambda c: len(bars[c])) == totals.index(max(totals))
        for bar, counts in zip(bars, table, strict=True):
            assert {int(mark) for mark in bar} <= {c for c in range(10) if counts[c]}

    def test_it_is_the_split_of_the_run(self, feddm_: Feddm) -> None:
        shown = json.loads(feddm_("partition", "--clients", 3, "--seed", 4, "--json").text)[
            "clients"
        ]
        # FedDM leaves out a class with fewer than ten images, and says how many it took.
        feddm_("run", *arguments(rounds=1), "--seed", 4, "--out", "run", "--quiet")
        record = json.loads((Path("run") / "results.jsonl").read_text())
        assert [client["metrics"]["classes"] for client in record["clients"]] == [
            sum(count >= 10 for count in counts) for counts in shown
        ]

    def test_no_client_is_without_examples(self, feddm_: Feddm) -> None:
        message = feddm_("partition", "--set", "partition.min_examples=0").error
        assert message == "partition.min_examples must be a whole number of at least 1, got 0"

    def test_what_cannot_be_split(self, feddm_: Feddm) -> None:
        message = feddm_("partition", "--clients", 2000).error
        assert message.startswith("1438 examples cannot be split over 2000 clients")
        message = feddm_("partition", "--clients", 3, "--set", "partition.scheme=classes").error
        assert message.startswith("3 clients with 2 classes each cannot cover all 10 classes")

    def test_a_picture(self, feddm_: Feddm) -> None:
        text = feddm_("partition", "--out", "split.png").text
        assert text.splitlines()[-1] == "Drawn in split.png"
        with Image.open("split.png") as picture:
            assert picture.format == "PNG"
            assert picture.width == 8 * 150
            colors = picture.convert("RGB").getcolors(maxcolors=2**20)
        assert colors is not None
        assert len(colors) > 10  # a colour for each class

    def test_a_picture_beside_json_leaves_the_json_alone(self, feddm_: Feddm) -> None:
        assert json.loads(feddm_("partition", "--json", "--out", "split.png").text)["clients"]
        assert Path("split.png").read_bytes().startswith(b"\x89PNG\r\n")

    @pytest.mark.parametrize("name", ["none/split.png", "split.docx"])
    def test_a_picture_that_cannot_be_written(self, feddm_: Feddm, name: str) -> None:
        shown = feddm_("partition", "--out", name)
        assert shown.code == 2
        assert shown.err.startswith(f"feddm: cannot draw {name}: ")
        assert shown.err.count("\n") == 1

    def test_without_matplotlib(self, feddm_: Feddm, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        shown = feddm_("partition", "--out", "split.png")
        assert shown.code == 2
        assert shown.err == "feddm: figures need matplotlib: pip install 'feddm[figures]'\n"
        assert not Path("split.png").exists()


class TestProfile:
    COMMAND = ("profile", *arguments(rounds=5, workers=2, images_per_class=1))

    def test_as_text(self, feddm_: Feddm) -> None:
        text = feddm_(*self.COMMAND).text
        rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.strip()]
        assert rows[0] == ["part", "seconds", "share", "calls"]
        shown = {name: (share, calls) for name, _, share, calls in rows[1:]}
        assert shown["the whole round"] == ("100.0 %", "1")
        assert shown["clients"][1] == str(CLIENTS)
        assert shown["sampling networks"][1] == str(2 * CLIENTS)
        assert not list(Path().iterdir())  # it writes nothing

    def test_what_was_not_done_is_not_shown(self, feddm_: Feddm) -> None:
        options = arguments(algorithm="fedavg")
        text = feddm_("profile", "--algorithm", "fedavg", *options).text
        assert "training" in text
        assert "sampling networks" not in text

    def test_as_json(self, feddm_: Feddm) -> None:
        parts = json.loads(feddm_(*self.COMMAND, "--json").text)
        calls = {part["name"].strip(): part["calls"] for part in parts}
        assert (calls["the whole round"], calls["clients"]) == (1, CLIENTS)
        assert {type(part["seconds"]) for part in parts} == {float}


class TestBench:
    """The output; tests/analysis/test_bench.py tests the measurements."""

    REPORT = BenchReport(
        machine={"processor": "abacus", "cores": "2"},
        width=8,
        sgemm_gflops=50.4,
        compiler="works",
        kernels=(Kernel("compiled", "images", 12345.6, 20.16, 0.4),),
        updates=(
            ClientUpdate("quick", "ten steps", 4608.0, 900.0, 2.5, 1.0, 1_230_000, "all"),
        ),
        projection_share=0.0123,
        workers=Workers(2, 1.875, 4.25, 1000, 300.0, 301.0),
        memory=PeakMemory(1000.0, 500.0),
    )

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        """The arguments of each call of `measure`, which is replaced."""
        asked: list[object] = []

        def measure(
            width: int, repeats: int, compile_: bool, tick: Callable[[str], None]
        ) -> BenchReport:
            asked.append((width, repeats, compile_))
            tick("nothing")
            return self.REPORT

        monkeypatch.setattr("feddm.analysis.bench.measure", measure)
        return asked

    def test_as_text(self, feddm_: Feddm, asked: list[object]) -> None:
        text = feddm_("bench", "--width", 8, "--repeats", 1, "--compile", "off").text
        assert asked == [(8, 1, False)]
        rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.strip()]
        assert rows[0] == ["Measuring nothing."]
        assert ["ConvNet of width 8, one thread; large matrix products: 50 GFLOP/s"] in rows
        assert ["compiled", "forward and back to images", "12,346", "20.2", "40 %"] in rows
        assert ["quick", "4,608", "900", "2.5", "1.00", "1.23 MB", "all"] in rows
        assert ["quick", "ten steps"] in rows
        assert ["speed-up of 2 workers", "1.88"] in rows
        assert ["memory after 100 and 1000 small clients", "300 and 301 MB"] in rows
        assert ["projection, share of a server step", "1.23 %"] in rows
        assert [
            "peak memory, 10 clients, 2 workers",
            "1,500 MB, 500 of it in workers",
        ] in rows
        assert ["processor", "abacus"] in rows

    def test_as_json_and_into_a_file(self, feddm_: Feddm, asked: list[object]) -> None:
        text = feddm_("bench", "--json", "--out", "bench.json").text
        assert asked == [(128, 3, True)]
        assert text == Path("bench.json").read_text()
        report = json.loads(text)
        assert report["workers"]["speedup"] == 1.875
        assert report["updates"][0]["name"] == "quick"


class TestData:
    def test_list_as_json(self, feddm_: Feddm) -> None:
        rows = {row["name"]: row for row in json.loads(feddm_("data", "list", "--json").text)}
        assert list(rows) == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"]
        digits, cifar = rows["digits"], rows["cifar100"]
        assert (digits["train"], digits["test"], digits["shape"]) == (1438, 359, [1, 8, 8])
        assert digits["builtin"] is True
        assert Path(digits["place"]).is_dir()
        assert (cifar["classes"], cifar["place"], cifar["builtin"]) == (100, None, False)

    def test_list(self, feddm_: Feddm, tmp_path: Path) -> None:
        lines = feddm_("data", "list").text.splitlines()
        assert lines[1].split() == [
            *("digits", "10", "1,438", "359", "1x8x8", "comes", "with", "feddm")
        ]
        assert lines[2].split() == [
            *("mnist", "10", "60,000", "10,000", "1x28x28", "not", "downloaded")
        ]
        assert lines[-1] == f"Data folder: {tmp_path / 'data'}"

    def test_list_of_a_folder_with_a_long_name(self, feddm_: Feddm, tmp_path: Path) -> None:
        folder = tmp_path / "long/way/" / ("x" * 100)
        lines = feddm_("data", "list", "--data-dir", folder).text.splitlines()
        assert lines[-1] == f"Data folder: {folder}"

    def test_check_of_intact_files(self, feddm_: Feddm) -> None:
        for words in (["digits"], []):  # nothing else is here
            lines = feddm_("data", "check", *words).text.splitlines()
            assert len(lines) == 4
            for row in lines:
                name, state, path = row.split(maxsplit=2)
                assert (name, state) == ("digits", "ok")
                assert Path(path).is_file()

    def test_check_of_missing_files(self, feddm_: Feddm, tmp_path: Path) -> None:
        message = feddm_("data", "check", "mnist").error
        assert message.startswith(f"mnist is not in {tmp_path / 'data'}")

    def test_check_of_damaged_files(self, feddm_: Feddm, tmp_path: Path) -> None:
        folder = tmp_path / "data" / "MNIST" / "raw"
        folder.mkdir(parents=True)
        (folder / "train-images-idx3-ubyte").write_bytes(b"damaged")
        shown = feddm_("data", "check", "mnist")
        assert shown.code == 2
        assert [row.split()[:2] for row in shown.out.splitlines()] == [["mnist", "FAILED"]] * 4
        assert shown.err.startswith(f"feddm: {folder / 'train-images-idx3-ubyte'} ")
        assert shown.err.endswith(" (and 3 more)\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["config"], 1),
        (["run", *arguments()], 2),
    ],
)
def test_output_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, words: list[str], code: int
) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "feddm", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert ended.returncode == code
    assert ended.stderr.startswith("feddm: cannot write the output")
    assert ended.stderr.count("\n") == 1
    assert code == 1 or "feddm resume runs/feddm-digits-1" in ended.stderr
