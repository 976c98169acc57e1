# Rollpin: the proxy, its simulated engine and its command line, in one image.
# Everything that is installed is pinned by hash: deploy/build.lock builds the wheel, deploy/requirements.lock runs it.

FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

# Dependencies first: they change less often than the code.
COPY deploy/build.lock deploy/requirements.lock deploy/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --only-binary :all: --require-hashes -r deploy/build.lock
RUN python -m venv --without-pip /opt/rollpin \
    && /opt/build/bin/pip --python /opt/rollpin/bin/python install --no-deps --only-binary :all: --require-hashes \
        -r deploy/requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /opt/wheels . \
    && /opt/build/bin/pip --python /opt/rollpin/bin/python install --no-deps --no-index --find-links /opt/wheels rollpin


FROM python:3.11-slim
LABEL org.opencontainers.image.title="Rollpin" \
      org.opencontainers.image.description="Makes any agent harness's model calls trainable: a pinning, seeding, recording proxy in front of SGLang and vLLM." \
      org.opencontainers.image.licenses="Apache-2.0"

# Fixed numbers, so that volumes and security contexts can name them.
RUN groupadd --gid 10001 rollpin \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin rollpin \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data /run/rollpin

COPY --from=build /opt/rollpin /opt/rollpin
COPY deploy/image.toml /etc/rollpin/rollpin.toml
COPY --chmod=0755 deploy/probe.py /usr/local/bin/rollpin-probe

ENV PATH=/opt/rollpin/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ROLLPIN_CONFIG=/etc/rollpin/rollpin.toml
USER 10001:10001
# The store and the minted secrets lie here.
WORKDIR /data
VOLUME ["/data"]
# 8080: harnesses. 8081: the control plane, on loopback unless control_host says otherwise.
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["rollpin-probe", "/healthz"]
ENTRYPOINT ["rollpin"]
CMD ["serve"]
