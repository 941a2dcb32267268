"""The page of recorded episodes, in a real browser."""

import itertools

import pytest

from swegym_env.cli.main import main
from swegym_env.recording.record import read_record, write_record
from swegym_env.recording.viewer import render_page
from swegym_env.tasks.data import mini_edit
from tests.browser import page_faults

ONE = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 2\n b = 3\n"
TWO = ONE + "diff --git a/n.py b/n.py\n--- a/n.py\n+++ b/n.py\n@@ -4 +4,2 @@\n c = 4\n+d = 5\n"


@pytest.fixture
def show(open_page, tmp_path):
    """Opens the page of these records."""
    paths = (tmp_path / f"page-{n}.html" for n in itertools.count())

    def opened(*records, scheme="light", anchor=""):
        path = next(paths)
        path.write_text(render_page(records, title="Records </title><script>"), encoding="utf-8")
        return open_page(path, anchor, viewport={"width": 1400, "height": 900}, color_scheme=scheme)

    return opened


@pytest.fixture
def episode(made_record):
    """Four turns: the diff grows in the second and the third."""
    return made_record(
        [
            ("ls -a", "m.py\nn.py\n[exit code 0]", "", -0.25, {}),
            ("sed -i s/1/2/ m.py", "[exit code 0]", ONE, 0.5, {"reward": {"progress": 0.75, "step": -0.25}}),
            ("cat nowhere", "cat: nowhere: No such file\n[exit code 1]", TWO, -0.25, {"exit_code": 1}),
            ("submit", "Submitted.", TWO, 1.0, {}),
        ],
        ending={
            "end_reason": "submitted",
            "resolved": False,
            "valid": True,
            "fail_to_pass": [0, 1],
            "pass_to_pass": [1, 2],
            "failed_tests": list(mini_edit.generate(0).fail_to_pass[:1]),
        },
    )


def _texts(page, selector):
    return page.locator(selector).all_text_contents()


HOSTILE = (
    "</script><script>window.hacked = 1; alert(1)</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<!--<script>",
    "</script x=",
    "<!-- <script ",
    "]]></style><svg onload=window.hacked=1>",
    '"><iframe srcdoc="<script>parent.hacked=1</script>">',
    "javascript:window.hacked=1",
    "\u2028\u2029\ud800 lone \udcff \x00 \x1b[31m &lt;b&gt; @DATA@ @SCRIPT@",
    "${window.hacked=1} {{7*7}} `",
)


def test_hostile_content_is_shown_as_text(show, made_record):
    turns = [(text, text, f"diff --git a/{text} b/{text}\n@@ -1 +1 @@\n-{text}\n+{text}\n") for text in HOSTILE]
    ending = {"end_reason": HOSTILE[0], "valid": False, "failure_reason": HOSTILE[1]}
    page = show(made_record(turns, instance=HOSTILE[0], prompt=HOSTILE[1], ending=ending))
    assert page.locator(".turn.open").count() == 0
    page.keyboard.press("a")
    for _ in HOSTILE:
        page.keyboard.press("j")
    assert page.evaluate(
        "[document.scripts.length, document.images.length, document.querySelectorAll('iframe, #turns svg').length]"
    ) == [2, 0, 0]
    assert page.evaluate("window.hacked") is None
    assert page.locator("#instance").text_content() == HOSTILE[0]
    seen = page.evaluate("EPISODES[0].turns.map((turn) => turn.observation)")
    shown = page.evaluate("[...document.querySelectorAll('pre.observation')].map((pre) => pre.textContent)")
    assert seen == shown and len(shown) == len(HOSTILE)
    assert shown[0] == HOSTILE[0]


def test_content_security_policy_blocks_other_scripts(browser, tmp_path, made_record):
    path = tmp_path / "page.html"
    text = render_page([made_record([("ls", "a", "")])])
    path.write_text(text.replace("<nav", "<script>window.hacked = 1</script><nav"), encoding="utf-8")
    page = browser.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(f"file://{path}")
    assert page.evaluate("window.hacked") is None and page.locator(".turn").count() == 1
    assert "Content Security Policy" in refused[0]
    page.close()


def test_diff_of_each_turn_marks_new_lines(show, episode):
    page = show(episode)
    assert _texts(page, "#diff .file") == ["m.py", "n.py"]  # it opens on the final diff
    page.keyboard.press("g")
    grown = []
    for _ in episode.turns:
        grown.append(
            (
                _texts(page, "#diff .file"),
                _texts(page, "#diff .add code, #diff .del code"),
                _texts(page, "#diff .new code"),
            )
        )
        page.keyboard.press("j")
    assert grown == [
        ([], [], []),
        (["m.py"], ["-a = 1", "+a = 2"], ["-a = 1", "+a = 2"]),
        (["m.py", "n.py"], ["-a = 1", "+a = 2", "+d = 5"], ["+d = 5"]),
        (["m.py", "n.py"], ["-a = 1", "+a = 2", "+d = 5"], []),
    ]
    page.keyboard.press("d")
    gold = mini_edit.generate(0).patch
    assert _texts(page, "#diff .add code") == [
        line for line in gold.splitlines() if line.startswith("+") and "+++" not in line
    ]


def test_earlier_turn_shows_its_own_diff(show, made_record):
    texts = ["", "😀\nb\n😀\n", "😀\nx\nb\n😀\n", "b\n😃\n", "", "zz\n"]  # of two code units each in JavaScript
    patches = [
        text and "diff --git a/f b/f\n@@ -0,0 +1 @@\n" + "".join(f"+{line}\n" for line in text.split())
        for text in texts
    ]
    page = show(made_record([("ls", "", patch) for patch in patches]))
    order = [5, 2, 4, 1, 3, 0]
    found = page.evaluate("(order) => order.map((turn) => patchAt(EPISODES[0], turn))", order)
    assert found == [patches[turn] for turn in order]


def test_tests_and_rewards_are_shown(show, episode):
    page = show(episode)
    assert "repaired 0 of 1 · kept 1 of 2" in page.locator("#tests summary").first.text_content()
    name = mini_edit.generate(0).fail_to_pass[0]
    row = page.locator("#tests tr", has_text=name).first
    assert _texts(row, "td") == [name, "✗", "✗"]
    assert page.locator("#chart .reward").get_attribute("d").count("M") == 4
    assert _texts(page, ".ticks span") == ["1", "3", "4", "turn"]
    assert page.locator("#chart .failed").get_attribute("d").count("M") == 1
    assert "0.5 = progress 0.75 + step −0.25" in page.locator(".turn").nth(1).text_content()
    assert "reward 1" in page.locator("#badges").text_content()


def test_info_that_means_something_else_in_another_environment_is_left_out(show, made_record):
    other = {"reward": {"hp": "low"}, "tests": {"unit": 3}, "judge": 0.5, "failed_tests": 2, "end_reason": ["won"]}
    page = show(made_record([("ls", "m.py", "", 0.5, other)], ending={**other, "fail_to_pass": 1}))
    assert page.locator("#turns .observation").text_content() == "m.py"
    assert "abandoned" in page.locator("#badges").text_content()
    assert "tests so far" not in page.locator("#turns").text_content()


def test_keys_navigate_fold_and_search(show, made_record):
    turns = [(f"echo {number}", f"say {number} {'needle' if number % 10 == 3 else ''}", "") for number in range(40)]
    page = show(made_record(turns), anchor="#1.5")
    assert page.locator(".turn.selected .number").text_content() == "5"
    assert page.locator(".turn.open").count() == 0
    for keys, selected, unfolded in (
        ("jj", "7", 0),
        ("o", "7", 1),
        ("ko", "6", 2),
        ("G", "40", 2),
        ("g", "1", 2),
        ("a", "1", 0),
    ):
        for key in keys:
            page.keyboard.press(key)
        assert page.locator(".turn.selected .number").text_content() == selected
        assert page.locator(".turn.open").count() == unfolded
    page.keyboard.press("/")
    page.keyboard.type("NEEDLE")
    assert page.locator(".turn:visible").count() == 4 and page.locator("#matches").text_content() == "4"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator(".turn.selected .number").text_content() == "14"
    assert _texts(page, ".turn.selected mark") == ["needle"]
    page.keyboard.press("Escape")
    assert page.locator(".turn:visible").count() == 40 and page.locator("mark").count() == 0


def test_episodes_can_be_filtered_and_sorted(show, made_record):
    def ended(name, resolved, turns):
        ending = {
            "end_reason": "submitted",
            "valid": True,
            "resolved": resolved,
            "fail_to_pass": [0, 1],
            "pass_to_pass": [1, 1],
        }
        return made_record([("ls", "", "", 1.0, {})] * turns, instance=name, ending=ending)

    page = show(
        ended("b", True, 1), ended("a", False, 3), ended("c", True, 2), made_record([("ls", "", "")], instance="needle")
    )
    assert _texts(page, "#chips button") == ["all 4", "resolved 2", "unresolved 1", "unfinished 1"]
    assert page.locator("#summary").text_content() == "4 episodes · 2 of 3 judged resolved (67 %)"
    page.locator("#chips button", has_text="resolved 2").click()
    assert _texts(page, "#episodes .name") == ["b", "c"]
    page.keyboard.press("J")
    assert page.locator("#instance").text_content() == "c"
    page.locator("#chips button").first.click()
    page.select_option("#sort", "turns")
    assert _texts(page, "#episodes .name") == ["a", "c", "b", "needle"]
    page.fill("#episode-search", "NEED")
    assert _texts(page, "#episodes .name") == ["needle"]


def test_color_scheme_follows_the_system_and_can_be_switched(show, episode):
    dark = show(episode, scheme="dark")
    light = show(episode)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate(ground) != light.evaluate(ground)
    before = dark.evaluate(ground)
    dark.keyboard.press("t")
    assert dark.evaluate(ground) == light.evaluate(ground) != before


@pytest.mark.parametrize(
    "count", [pytest.param(1000, marks=pytest.mark.sample), pytest.param(5000, marks=pytest.mark.campaign)]
)
def test_long_episode_can_be_navigated_and_searched(show, made_record, count):
    patch, turns = "diff --git a/f b/f\n@@ -0,0 +1 @@\n", []
    for number in range(count):
        patch += f"+line {number}\n" if number % 5 == 0 else ""
        turns.append((f"sed -n {number}p f | grep -c x", f"{number}\n" * 20 + "[exit code 0]", patch, 0.001, {}))
    page = show(made_record(turns))
    assert page.locator(".turn").count() == count
    page.keyboard.press("G")
    assert page.locator(".turn.selected .number").text_content() == str(count)
    assert page.locator("#diff .add").count() == count // 5
    wanted = count - 79
    page.keyboard.press("/")
    page.keyboard.type(f"{wanted}p")
    page.keyboard.press("Enter")
    assert page.locator(".turn.selected .number").text_content() == str(wanted + 1)
    assert page.locator(".turn.selected .observation").is_visible()


def test_page_size_is_linear_in_the_number_of_turns(made_record):
    def size(count):
        patch, turns = "", []
        for number in range(count):
            patch += f"+line {number:06}\n"
            turns.append(("ls", "", patch))
        return len(render_page([made_record(turns)])) - len(render_page([made_record([])]))

    assert size(400) < 11 * size(40)


def test_view_command_writes_the_page(tmp_path, episode, capsysbinary):
    folder = write_record(tmp_path / "records", episode)
    assert main(["view", str(tmp_path / "records")]) == 0
    page = (tmp_path / "records" / "view.html").read_text(encoding="utf-8")
    assert page == render_page([read_record(folder)], title="records")
    capsysbinary.readouterr()
    assert main(["view", str(folder), "-o", "-"]) == 0
    assert b"<!doctype html>" in capsysbinary.readouterr().out
    assert main(["view", str(tmp_path / "records"), "-o", str(tmp_path / "no" / "where.html")]) == 2
    assert main(["view", str(tmp_path / "nothing")]) == 2


PROSE = "I will look for 'm.py' in the folder.\n\n<execute>ls -a | grep 'x'</execute>\nThen if it is done, I submit."
FENCED = "Let me see: is 'this' it?\n```bash\ncat m.py\n```\n"


@pytest.mark.parametrize(
    ("action_format", "action", "line", "coloured"),
    [
        ("auto", PROSE, "ls -a | grep 'x'", {"ls", "-a", "grep", "'x'"}),
        ("bash", FENCED, "cat m.py", {"cat"}),
        ("auto", "I am done if it works.", "I am done if it works.", set()),
        ("raw", "if true; then ls -a; fi", "if true; then ls -a; fi", {"if", "then", "-a", "fi"}),
    ],
)
def test_commands_are_coloured_and_prose_is_not(show, made_record, action_format, action, line, coloured):
    made = made_record([(action, "ok", "")])
    made.meta["environment"] = {"arguments": {"action_format": action_format}}
    page = show(made)
    assert page.locator(".turn .line").text_content() == line
    assert page.locator("pre.action").text_content() == action
    assert set(_texts(page, "pre.action .x, pre.action .f, pre.action .s, pre.action .w")) == coloured


def test_episodes_of_one_instance_are_distinguished_and_notes_are_no_json(show, made_record):
    made = [made_record([("ls", "", "")], instance="same__task-1") for _ in range(2)]
    for number, record in enumerate(made):
        record.meta.update(seed=7 + number, recorded_at=f"2026-01-01T00:00:0{number}+00:00")
        record.meta["notes"] = {"sample": number, "usage": {"requests": 3, "cost": None}, "stop": ["a", "b"]}
    page = show(*made, made_record([("ls", "", "")], instance="other__task-2"))
    facts = [_texts(each, ".facts") for each in page.locator("#episodes button").all()]
    assert [each[1:] for each in facts] == [
        ["sample 0 · seed 7 · 2026-01-01 00:00:00"],
        [],
        ["sample 1 · seed 8 · 2026-01-01 00:00:01"],
    ]
    assert "{" not in page.locator("#bar").text_content()
    assert _texts(page, "#notes dt, #notes dd") == ["usage · requests", "3", "stop", "a, b"]


def test_episodes_before_and_after_training_are_told_apart(show, made_record):
    def played(policy, resolved):
        ending = {"end_reason": "submitted", "valid": True, "resolved": resolved}
        made = made_record([("ls", "", "")], instance=f"task-{resolved}", ending=ending)
        made.meta.update(seed=1, recorded_at="2026-01-01T00:00:00+00:00", notes={"policy": policy})
        return made

    page = show(played("before PPO", False), played("after PPO", True), played("after PPO", False))
    assert page.locator("#summary").text_content() == "3 episodes · before PPO: 0 % resolved · after PPO: 50 % resolved"
    shown = [_texts(each, ".facts")[-1] for each in page.locator("#episodes button").all()]
    assert [each.split(" · ")[0] for each in shown] == ["before PPO", "after PPO", "after PPO"]


def test_an_episode_has_an_address_by_its_folder(open_page, tmp_path, episode, made_record):
    folders = [write_record(tmp_path / "records", made_record([("ls", "", "")], instance="first")),
               write_record(tmp_path / "records", episode)]  # fmt: skip
    path = tmp_path / "view.html"
    path.write_text(render_page(map(read_record, folders)), encoding="utf-8")
    page = open_page(path, f"#{folders[1].name}")
    assert page.locator("#instance").text_content() == "made__record-1"
    page.evaluate("(name) => { location.hash = name }", folders[0].name)
    page.locator("#instance", has_text="first").wait_for()


def test_page_is_accessible_and_shows_one_pane_on_a_telephone(show, episode, made_record):
    page = show(episode, made_record([(PROSE, "ok", "")] * 40))
    page.keyboard.press("a")
    assert page_faults(page) == []
    add = "(kind) => $('badges').append(make('span', { class: `badge ${kind}` }, kind))"
    for kind in ("good", "warn", "reward"):
        page.evaluate(add, kind)
    assert page_faults(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    panes = {"Episodes": "nav", "Turns": "main", "Diff": "aside"}
    for name in panes:
        page.locator("#panes button", has_text=name).click()
        assert [each for each, pane in panes.items() if page.locator(pane).is_visible()] == [name]
        assert page.evaluate("document.documentElement.scrollHeight") <= 844
