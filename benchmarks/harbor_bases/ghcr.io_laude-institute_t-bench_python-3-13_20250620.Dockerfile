# What the name says, with the uv that the tests install by https://astral.sh.
FROM python:3.13-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends asciinema curl git tmux \
    && pip install --no-cache-dir uv \
    && rm -rf /var/lib/apt/lists/*
