# syntax=docker/dockerfile:1

# The image of the server, by `make image VARIANT=...`:
#   cpu     torch for CPUs
#   cuda    torch with the CUDA libraries; the driver comes from the host
ARG PYTHON_VERSION=3.11
ARG VARIANT=cpu

FROM python:${PYTHON_VERSION}-slim-bookworm AS build-cpu
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

FROM python:${PYTHON_VERSION}-slim-bookworm AS build-cuda

# hadolint ignore=DL3006
FROM build-${VARIANT} AS build
WORKDIR /source
RUN python -m venv /opt/treadle
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY client/treadle client/treadle
COPY server server
# Wheels alone: what is required needs no compiler, here or in the final image.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/treadle/bin/pip install --only-binary :all: --constraint constraints.txt '.[server,gateway,tracing]'

FROM python:${PYTHON_VERSION}-slim-bookworm
ARG VARIANT
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="treadle" \
      org.opencontainers.image.description="A text-generation server: gRPC, continuous batching, every token streamed" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm" \
      treadle.variant="${VARIANT}"

# A number, so that a cluster can see that it is not root. The cache is what a volume takes its owner from.
RUN groupadd --gid 65532 treadle \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin treadle \
    && install --directory --owner 65532 --group 65532 --mode 0750 /var/cache/treadle
COPY --from=build /opt/treadle /opt/treadle

# The root file system may be read-only: what is written goes to the cache and to /tmp.
# Inside a container loopback reaches nobody, so every address is listened on; the server wants TLS or a word for that.
ENV PATH=/opt/treadle/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/var/cache/treadle/huggingface \
    TREADLE_CACHE=/var/cache/treadle \
    TREADLE_HOST=0.0.0.0 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /opt/treadle
USER 65532:65532
VOLUME ["/var/cache/treadle"]
EXPOSE 50051 9464

# No HEALTHCHECK: an orchestrator asks grpc.health.v1 itself; elsewhere `treadle health` does, with its exit status.
# No shell in between: SIGTERM reaches the server, which lets running requests finish.
ENTRYPOINT ["/opt/treadle/bin/python", "-m", "server"]
