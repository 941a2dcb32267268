"""A small agent: runs what the model answers in bash until the answer is `submit`; `fail N` exits with N."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

messages = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": Path(os.environ["SWEGYM_TASK"]).read_text()},
]
while True:
    body = json.dumps({"model": os.environ["SWEGYM_MODEL"], "messages": messages}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    if answer == "submit":
        break
    if answer.startswith("fail "):
        sys.stderr.write("this agent fails\n")
        sys.exit(int(answer.removeprefix("fail ")))
    done = subprocess.run(
        ["bash", "-c", answer], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"{done.stdout}[{done.returncode}]"},
    ]
