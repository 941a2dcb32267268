# With the uv that the tests install by https://astral.sh.
FROM python:3.11-slim
RUN pip install --no-cache-dir uv
