"""`swe-train export`: a folder that `transformers` and `swe-eval` take, and the same on a hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from swe_trainers.cli.main import main, main_eval
from swe_trainers.model.language_model import LanguageModel
from tests.programs import ROOT
from tests.trainers.export.hub import TOKEN, Hub, Repository, running_hub
from tests.trainers.tiny import tiny_model

# Of the hub's client, about its own call for sending a file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")

WRITTEN = ROOT / "tests" / "contracts" / "formats" / "0.1" / "run"
"""A run of version 0.1, whose model lacks the tokenizer's files that `transformers` reads."""
FILES = {
    *("README.md", "chat_template.jinja", "config.json", "environment.yaml", "generation_config.json"),
    *("model.safetensors", "tokenizer.json", "tokenizer_config.json", "words.json"),
}
# Reads a model by its name on the hub; our own packages cannot be imported.
BY_NAME = """
import sys
sys.modules["swe_trainers"] = sys.modules["swegym_env"] = None
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
text = tokenizer.apply_chat_template([{"role": "user", "content": "left"}], tokenize=False)
assert AutoModelForCausalLM.from_pretrained(sys.argv[1]).config.vocab_size >= len(tokenizer)
print(text)
"""

Push = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The output directory of a run, with an argument that belongs to the machine that trained."""
    shutil.copytree(WRITTEN, tmp_path / "run")
    written = tmp_path / "run" / "model" / "environment.yaml"
    content = yaml.safe_load(written.read_text())
    content["environment"]["kwargs"]["repos"] = "/home/me/clones"
    written.write_text(yaml.safe_dump(content))
    return tmp_path / "run"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


def variables(home: Path, endpoint: str, token: str | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    ours = {"HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    return kept | ours | {"OMP_NUM_THREADS": "1"} | ({} if token is None else {"HF_TOKEN": token})


@pytest.fixture
def push(
    run: Path, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Push:
    """Runs `swe-train export --push` here, with the hub's client set up as the variables of `variables` do."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))

    def push(*options: str, token: str | None = TOKEN) -> tuple[int, str, str]:
        monkeypatch.delenv("HF_TOKEN", raising=False)
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        code = main(["export", str(run), "--push", *options])
        return code, *capsys.readouterr()

    return push


def refused(done: tuple[int, str, str]) -> str:
    """The one line that a command ended with."""
    code, output, errors = done
    assert code == 2 and output == ""
    (line,) = errors.splitlines()
    assert line.startswith("swe-train export: --")
    return line


def test_an_exported_folder_is_evaluated_as_it_was_trained(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "run", "--output", "out", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["files"]) == FILES == {path.name for path in Path("out").iterdir()}
    assert "/home/me" not in "".join((Path("out") / name).read_text() for name in ("README.md", "environment.yaml"))
    exported, trained = LanguageModel.from_pretrained(tmp_path / "out"), LanguageModel.from_pretrained(run / "model")
    assert all(exported.causal_lm.state_dict()[name].equal(t) for name, t in trained.causal_lm.state_dict().items())
    assert main_eval(["--model", "out", "--episodes", "1", "--output", "evaluated"]) == 0
    assert "on FrozenLake-v1: is_slippery False" in capsys.readouterr().err
    card = Path("out/README.md").read_text()
    assert "by 1 update of ppo, seed 0" in card and "| `eval/return` | 0 |" in card and 'pretrained("out")' in card


def test_the_card_has_the_newest_evaluation_and_an_edited_one_is_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main_eval(["run", "--episodes", "2"]) == 0
    assert main(["export", "run", "--output", "out"]) == 0
    assert "resolved 0 of 2: 0.0% (95 % interval 0.0% to 65.8%)" in Path("out/README.md").read_text()
    Path("out/README.md").write_text("mine\n")
    assert main(["export", "out", "--output", "again"]) == 0
    assert Path("again/README.md").read_text() == "mine\n"
    assert {path.name for path in Path("again").iterdir()} == FILES


def test_an_export_replaces_nothing_unless_it_is_forced(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "config.json").write_text("old")
    arguments = ["export", str(run), "--output", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "exists already. Try: --force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert "llama" in (tmp_path / "out" / "config.json").read_text()
    assert main(["export", str(run), "--output", str(run / "model"), "--force"]) == 2
    assert "is the model itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["."], "expected --output DIR, --push OWNER/NAME, or both"),
        ([".", "--output", "out", "--private"], "--private and --message have no effect without --push"),
        ([".", "--push", "me/lake", "--force"], "--force has no effect without --output"),
        ([".", "--output", "out"], "neither a run of swe-train nor the folder of a model"),
        (["unfinished", "--output", "out"], "the run has no model yet. Try: swe-train unfinished/config.yaml"),
        ([".", "--push", "lake"], "--push: expected OWNER/NAME, got 'lake'"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unfinished" / "checkpoints").mkdir(parents=True)
    try:
        code = main(["export", *arguments])
    except SystemExit as ended:
        code = int(str(ended.code))
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and expected in line
    assert not (tmp_path / "out").exists()


def test_a_pushed_model_is_loaded_from_the_hub_by_its_name(run: Path, hub: Hub, tmp_path: Path) -> None:
    environment = variables(tmp_path, hub.url, TOKEN)

    def succeeds(*command: str) -> str:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    swe_train = (sys.executable, "-m", "swe_trainers.cli.main")
    options = ("--push", "me/lake", "--private", "--message", "The first")
    assert succeeds(*swe_train, "export", str(run), *options).startswith(f"{hub.url}/me/lake (private), commit ")
    repository = hub.repositories["me/lake"]
    assert repository.private and repository.commits == ["The first"] and set(repository.files) == FILES
    assert repository.files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert b'pretrained("me/lake")' in repository.files["README.md"]
    assert b"is_slippery: false" in repository.files["environment.yaml"]

    assert succeeds(sys.executable, "-I", "-c", BY_NAME, "me/lake") == "<|user|>left<|end|>\n"
    hf = str(Path(sys.executable).parent / "hf")
    succeeds(hf, "download", "me/lake", "--local-dir", str(tmp_path / "copy"))
    assert LanguageModel.from_pretrained(tmp_path / "copy").tokenizer.vocab_size == 22


def test_a_repository_that_is_there_gets_a_commit_and_keeps_its_visibility(push: Push, hub: Hub) -> None:
    hub.repositories["me/lake"] = Repository(private=True, files={"notes.txt": b"mine"}, commits=["by hand"])
    code, output, errors = push("me/lake", "--json")
    assert code == 0 and errors == ""
    found = json.loads(output)
    assert found["private"] is True and set(found["files"]) == FILES and found["url"] == f"{hub.url}/me/lake"
    assert hub.repositories["me/lake"].files["notes.txt"] == b"mine"
    assert push("me/lake")[0] == 0
    assert len([each for each in hub.requests if each.startswith("PUT")]) == 1  # the weights, once


def test_a_token_that_the_hub_refuses_and_a_missing_one_are_one_line_each(push: Push, hub: Hub) -> None:
    line = refused(push("me/lake", token="hf_revoked"))
    assert f"{hub.url} refuses the token (401: Invalid username or password.). Try: hf auth login" in line
    assert "there is no token for the hub. Try: hf auth login" in refused(push("me/lake", token=None))
    assert hub.repositories == {}


def test_repositories_of_others_and_public_ones_are_refused_before_anything_is_sent(push: Push, hub: Hub) -> None:
    hub.repositories |= {"other/secret": Repository(private=True), "other/open": Repository(), "me/open": Repository()}
    line = refused(push("other/secret"))
    assert "the token may not write to other/secret (403: You don't have the rights to create a model" in line
    line = refused(push("other/open"))
    assert "the token may not write to other/open (403: You don't have write access" in line
    line = refused(push("me/open", "--private"))
    assert "--private: me/open exists already and is public. Try: another name" in line
    assert all(not repository.commits for repository in hub.repositories.values())


def test_a_network_that_is_gone_is_one_line_before_and_during_the_upload(
    push: Push, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.hangs_up_at = "/commit/"
    line = refused(push("me/lake"))
    assert f"sending to {hub.url} failed: " in line and "the same command tries again" in line
    assert hub.repositories["me/lake"].files == {} and len(hub.sent) == 1
    hub.hangs_up_at = None
    assert push("me/lake")[0] == 0
    assert len([each for each in hub.requests if each.startswith("PUT")]) == 1  # not sent a second time
    hub.hangs_up_at = "/api/repos/create"
    assert "Nothing was committed" in refused(push("me/lake"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "--push: HF_HUB_OFFLINE forbids connections" in refused(push("me/lake"))


def test_adapters_alone_are_exported_for_peft_and_not_pushed_for_a_folder_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny_model("llama")
    base.save_pretrained(tmp_path / "base")
    model = LanguageModel.from_pretrained(tmp_path / "base")
    from swe_trainers.model.lora import LoRA

    model.add_lora(LoRA(rank=2)).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()  # as with quantised weights, which are not merged
    (tmp_path / "model" / "model.safetensors").unlink()
    assert main(["export", str(tmp_path / "model"), "--output", str(tmp_path / "out")]) == 0
    assert LanguageModel.from_pretrained(tmp_path / "out").tokenizer.vocab_size == base.tokenizer.vocab_size
    assert "library_name: peft" in (tmp_path / "out" / "README.md").read_text()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    capsys.readouterr()
    assert main(["export", str(tmp_path / "model"), "--push", "me/lake"]) == 2
    assert f"adapters of {tmp_path}/base, a folder of this machine" in capsys.readouterr().err
