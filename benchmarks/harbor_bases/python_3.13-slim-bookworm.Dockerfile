# With the uv that the tests install by https://astral.sh.
FROM python:3.13-slim-bookworm
RUN pip install --no-cache-dir uv
