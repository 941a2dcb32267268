"""What the commands say where an option is misspelled, or its value impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_trainers.cli import main as commands
from swe_trainers.cli import serve

_CONFIG = Path(__file__).parents[3] / "examples/configs/frozen_lake.yaml"
_COMMANDS = {"swe-train": commands.main, "swe-eval": commands.main_eval, "swe-serve": serve.main}


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("swe-train --hlp", "--hlp: no such option; did you mean --help?"),
        ("swe-train --dryrun", "--dryrun: no such option; did you mean --dry-run?"),
        (f"swe-train {_CONFIG} --dryrun", "--dryrun: no such option; did you mean --dry-run?"),
        (f"swe-train {_CONFIG} --outputdir x", "outputdir: no such setting. Did you mean 'output_dir'?"),
        ("swe-eval", "the following arguments are required: RUN, or --model"),
        ("swe-eval --episode 3", "--episode: no such option; did you mean --episodes?"),
        ("swe-eval --modl x --dataset mini", "--modl: no such option; did you mean --model?"),
        ("swe-eval x --model.pth y", "x: cannot be read"),
        ("swe-serve", "the following arguments are required: folder"),
        ("swe-serve --hlp", "--hlp: no such option; did you mean --help?"),
        ("swe-serve model --prt=3", "--prt: no such option; did you mean --port?"),
        ("swe-serve model --zzzzzzzz", "unrecognized arguments: --zzzzzzzz"),
        ("swe-serve model --port 99999", "argument --port: expected a number from 0 to 65535, got '99999'"),
        ("swe-serve model --port -1", "argument --port: expected a number from 0 to 65535, got '-1'"),
        ("swe-serve model --threads 0", "argument --threads: expected a positive whole number, got '0'"),
        ("swe-serve model --slots 0", "argument --slots: expected a positive whole number, got '0'"),
        ("swe-serve model --max-tokens 0", "argument --max-tokens: expected a positive whole number, got '0'"),
    ],
)
def test_a_wrong_option_is_named_before_what_is_missing(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *arguments = line.split()
    try:
        code: object = _COMMANDS[command](arguments)
    except SystemExit as ending:
        code = ending.code
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1
    assert err.startswith(f"{command}: {hint}")


def test_the_traceback_of_an_error_is_shown_on_request(tmp_path: object) -> None:
    with pytest.raises(Exception, match=str(tmp_path)):
        serve.main([str(tmp_path), "--debug"])
