# With the uv that the tests install by https://astral.sh; flit's check of classifiers asks more of PyPI than packages.
FROM python:3.11-slim
RUN pip install --no-cache-dir uv
ENV FLIT_NO_NETWORK=1
