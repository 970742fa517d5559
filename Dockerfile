# One target for each service; tools/containers/build.sh builds all three, as does `make images`:
#
#   docker build --target trainer --build-arg HUBBUB_VERSION=0.1.0 --tag hubbub-trainer:0.1.0 .
#
# Arguments, each with --build-arg:
#   HUBBUB_VERSION       required; the one in shared/hubbub/__init__.py, which becomes a label
#   PYTHON_IMAGE         what the images are made from; for a release, name it with its digest: python:3.11-slim-bookworm@sha256:...
#   BUILDER_IMAGE        where things are built, with the same Python; PYTHON_IMAGE unless given
#   PIP_INDEX_URL, PIP_EXTRA_INDEX_URL   your organisation's packages; they stay in stages that nobody ships
#   TORCH_INDEX          where else to look for torch. pip prefers a build with a suffix, such as 2.13.0+cpu, wherever it finds one:
#                        name PyTorch's index of CPU builds for the small image, of CUDA builds for a GPU's. Without it
#                        torch is what your package index has, which may be a CUDA build of several gigabytes.
#   TORCH_REQUIREMENT    which torch; torch==2.13.0 unless given. torch===2.13.0 takes the build without a suffix, with CUDA
#
# It needs no BuildKit. The dependencies are a layer of their own below the code, which therefore is all that a new
# version usually sends over the network.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG BUILDER_IMAGE=${PYTHON_IMAGE}

FROM ${BUILDER_IMAGE} AS builder
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_INDEX_URL=${PIP_INDEX_URL} PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL} \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_WARN_SCRIPT_LOCATION=1
WORKDIR /build
# No pip inside: what is installed stays as it is.
RUN python -m venv --without-pip /opt/hubbub
COPY constraints.txt ./
ENV PIP_CONSTRAINT=/build/constraints.txt

# The package itself, and nothing that it needs.
FROM builder AS code
ARG HUBBUB_VERSION
COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY services services
RUN pip wheel --quiet --no-deps --wheel-dir dist . \
    && pip --python /opt/hubbub/bin/python install --quiet --no-deps \
       "dist/hubbub-${HUBBUB_VERSION:?give --build-arg HUBBUB_VERSION=, the one in shared/hubbub/__init__.py}-py3-none-any.whl"

FROM builder AS requirements
COPY pyproject.toml tools/containers/requirements.py ./
RUN python requirements.py pyproject.toml > aggregator.txt \
    && python requirements.py pyproject.toml --extra dashboard --extra postgres > coordinator.txt \
    && python requirements.py pyproject.toml --extra demo --without dashboard --without trainer > trainer.txt

FROM builder AS aggregator-packages
COPY --from=requirements /build/aggregator.txt ./
RUN pip --python /opt/hubbub/bin/python install --quiet --requirement aggregator.txt \
    && find /opt/hubbub -type d -name tests -prune -exec rm -rf '{}' +

FROM builder AS coordinator-packages
COPY --from=requirements /build/coordinator.txt ./
RUN pip --python /opt/hubbub/bin/python install --quiet --requirement coordinator.txt \
    && find /opt/hubbub -type d -name tests -prune -exec rm -rf '{}' +

FROM builder AS trainer-packages
ARG TORCH_REQUIREMENT=torch==2.13.0
ARG TORCH_INDEX
RUN pip --python /opt/hubbub/bin/python install --quiet ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$TORCH_REQUIREMENT"
COPY --from=requirements /build/trainer.txt ./
RUN pip --python /opt/hubbub/bin/python install --quiet --requirement trainer.txt \
    && find /opt/hubbub -type d -name tests -prune -exec rm -rf '{}' + \
    # Headers and test programs of torch, 190 MB: of use only beside a compiler. Processes that share tensors need the manager.
    && cd /opt/hubbub/lib/python3.*/site-packages/torch \
    && rm -rf include test && find bin -type f ! -name torch_shm_manager -delete

# What all images have in common: a user without rights, and the folders that are mounted. They are that user's, and a
# named volume takes over owner and mode of the folder that it is mounted on.
FROM ${PYTHON_IMAGE} AS service
RUN groupadd --gid 10001 hubbub \
    && useradd --uid 10001 --gid hubbub --home-dir /tmp --no-create-home --shell /usr/sbin/nologin hubbub \
    && install --directory --owner hubbub --group hubbub --mode 0700 /run/hubbub /var/lib/hubbub \
    && install --directory --owner hubbub --group hubbub --mode 0755 /etc/hubbub /var/cache/hubbub /data
ENV PATH=/opt/hubbub/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/hubbub
USER 10001:10001
ARG HUBBUB_VERSION
ARG PYTHON_IMAGE
LABEL org.opencontainers.image.version="${HUBBUB_VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="Hubbub" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"

FROM service AS coordinator
LABEL org.opencontainers.image.title="hubbub-coordinator" \
      org.opencontainers.image.description="Schedules the rounds of federated training; sees no share, no sum and no model."
ENV HUBBUB_COORDINATOR_IDENTITY=/run/hubbub/identity.json \
    HUBBUB_COORDINATOR_READ_TOKEN_FILE=/run/hubbub/read.token \
    HUBBUB_COORDINATOR_CHANGE_TOKEN_FILE=/run/hubbub/change.token \
    HUBBUB_COORDINATOR_ROSTER=/etc/hubbub/roster.json \
    HUBBUB_COORDINATOR_FOLDER=/var/lib/hubbub \
    HUBBUB_COORDINATOR_HOST=0.0.0.0 \
    HUBBUB_COORDINATOR_PORT=8750
COPY --from=coordinator-packages /opt/hubbub /opt/hubbub
COPY --from=code /opt/hubbub /opt/hubbub
EXPOSE 8750
HEALTHCHECK --interval=10s --timeout=5s --start-period=1m --retries=3 \
    CMD ["python", "-m", "hubbub.runtime.probe", "http://127.0.0.1:8750/healthz"]
ENTRYPOINT ["python", "-m", "hubbub_coordinator"]

FROM service AS aggregator
LABEL org.opencontainers.image.title="hubbub-aggregator" \
      org.opencontainers.image.description="Adds up shares of which each is uniform, and releases one sum, once."
ENV HUBBUB_AGGREGATOR_IDENTITY=/run/hubbub/identity.json \
    HUBBUB_AGGREGATOR_ROSTER=/etc/hubbub/roster.json \
    HUBBUB_AGGREGATOR_POLICY=/etc/hubbub/policy.toml \
    HUBBUB_AGGREGATOR_FOLDER=/var/lib/hubbub \
    HUBBUB_AGGREGATOR_METRICS_HOST=0.0.0.0 \
    HUBBUB_AGGREGATOR_METRICS_PORT=8751
COPY --from=aggregator-packages /opt/hubbub /opt/hubbub
COPY --from=code /opt/hubbub /opt/hubbub
EXPOSE 8751
HEALTHCHECK --interval=10s --timeout=5s --start-period=1m --retries=3 \
    CMD ["python", "-m", "hubbub.runtime.probe", "http://127.0.0.1:8751/healthz"]
ENTRYPOINT ["python", "-m", "hubbub_aggregator"]

FROM service AS trainer
LABEL org.opencontainers.image.title="hubbub-trainer" \
      org.opencontainers.image.description="Trains on an organisation's own data, and deals out shares of what it learnt."
ENV HUBBUB_TRAINER_IDENTITY=/run/hubbub/identity.json \
    HUBBUB_TRAINER_ROSTER=/etc/hubbub/roster.json \
    HUBBUB_TRAINER_POLICY=/etc/hubbub/policy.toml \
    HUBBUB_TRAINER_FOLDER=/var/lib/hubbub \
    HUBBUB_TRAINER_CACHE_FOLDER=/var/cache/hubbub \
    HUBBUB_TRAINER_METRICS_HOST=0.0.0.0 \
    HUBBUB_TRAINER_METRICS_PORT=8751
USER root
# Where `hubbub federation new /federation` puts what it makes, in docker-compose.yml: a volume for each party.
RUN cd / && install --directory --owner hubbub --group hubbub --mode 0700 federation \
    && cd federation \
    && install --directory --owner hubbub --group hubbub --mode 0755 public \
    && install --directory --owner hubbub --group hubbub --mode 0700 operator monitor broker coordinator \
       aggregator-1 aggregator-2 trainer-1 trainer-2 trainer-3 trainer-4 trainer-5
USER 10001:10001
COPY --from=trainer-packages /opt/hubbub /opt/hubbub
COPY --from=code /opt/hubbub /opt/hubbub
EXPOSE 8751
HEALTHCHECK --interval=10s --timeout=5s --start-period=1m --retries=3 \
    CMD ["python", "-m", "hubbub.runtime.probe", "http://127.0.0.1:8751/healthz"]
ENTRYPOINT ["python", "-m", "hubbub_trainer"]
