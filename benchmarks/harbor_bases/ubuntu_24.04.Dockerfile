# For tests that install uv and Python by https://astral.sh: here they come from Debian and PyPI.
FROM ubuntu:24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-pip python3-venv \
    && pip install --no-cache-dir --break-system-packages uv \
    && rm -rf /var/lib/apt/lists/*
