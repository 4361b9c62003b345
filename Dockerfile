# Refdesk in a container: not root, nothing written but /data and /tmp, keys required.
#
#   docker build --tag refdesk .
#   docker build --tag refdesk --build-arg EXTRAS="redis otel sentry ocr" .
#
# For builds that are the same tomorrow, name the base by its digest:
#   --build-arg PYTHON_IMAGE=docker.io/library/python:3.13-slim-trixie@sha256:…
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
ARG UV_VERSION=0.13.7
ARG EXTRAS="redis otel sentry"
ENV UV_CACHE_DIR=/var/cache/uv \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_PROGRESS=1 \
    UV_PROJECT_ENVIRONMENT=/opt/refdesk \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir --root-user-action=ignore "uv==${UV_VERSION}"
WORKDIR /build

# The packages of the lock file first: they change more seldom than we do, and keep their layer.
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/var/cache/uv \
    for extra in ${EXTRAS}; do set -- "$@" --extra "${extra}"; done; \
    uv sync --frozen --no-dev --no-install-project "$@"

COPY README.md LICENSE ./
COPY docs ./docs
COPY src ./src
RUN --mount=type=cache,target=/var/cache/uv \
    for extra in ${EXTRAS}; do set -- "$@" --extra "${extra}"; done; \
    uv sync --frozen --no-dev --no-editable "$@"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Refdesk" \
      org.opencontainers.image.description="The reference desk for LLM agents: an MCP server that finds, reads and serves a team's documentation" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# tini is the first process: it passes signals on, and buries what servers behind the gateway leave behind.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 refdesk \
    && useradd --uid 10001 --gid refdesk --home-dir /data --no-create-home --shell /usr/sbin/nologin refdesk \
    && install --directory --owner=refdesk --group=refdesk --mode=0700 /data

COPY --from=build /opt/refdesk /opt/refdesk
COPY deploy/docker/healthcheck.py /opt/refdesk/healthcheck.py

# Beyond its own loopback a desk takes only callers with a key. Without one it does not start, and says so.
ENV PATH=/opt/refdesk/bin:$PATH \
    HOME=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    REFDESK_DATA=/data \
    MCP_SERVER_HOST=0.0.0.0 \
    MCP_SERVER_PORT=8001 \
    MCP_AUTH_REQUIRED=true
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8001
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/refdesk/healthcheck.py"]
ENTRYPOINT ["tini", "--", "refdesk"]
CMD ["serve"]
