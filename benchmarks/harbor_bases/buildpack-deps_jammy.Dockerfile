# With the Node.js that Dockerfiles install by https://deb.nodesource.com: Debian's.
FROM buildpack-deps:jammy
RUN apt-get update \
    && apt-get install -y --no-install-recommends nodejs npm \
    && rm -rf /var/lib/apt/lists/*
