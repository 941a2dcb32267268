"""An agent program: it runs what its model answers. One with files of its own is the path of a folder."""

from swegym_env.programs.spec import AgentSpec

PROGRAM = """
import json, os, subprocess, urllib.request

messages = [{"role": "user", "content": open(os.environ["SWEGYM_TASK"]).read()}]
while True:
    body = json.dumps({"model": os.environ["SWEGYM_MODEL"], "messages": messages}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    if message["content"] == "submit":
        break
    done = subprocess.run(message["content"], shell=True, capture_output=True, text=True)
    messages += [message, {"role": "user", "content": done.stdout + done.stderr}]
"""
AGENT = AgentSpec(f"exec python3 - <<'END_OF_PROGRAM'{PROGRAM}END_OF_PROGRAM", name="acme-agent", description="a shell")
