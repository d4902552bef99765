# An image with the command `headrace` and what the wheel brings, for a user without rights.
#
#   docker build -t headrace .                                   EXTRAS: libraries of models, as in pyproject.toml
#   docker build -t headrace-onnx --build-arg EXTRAS=onnx,stores .
#   docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" headrace predict model.onnx trips/ -o fares/ …

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG EXTRAS=""
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN python -m pip install --no-cache-dir -c /wheels/constraints.txt "$(echo /wheels/*.whl)${EXTRAS:+[$EXTRAS]}" \
 && useradd --uid 10001 --create-home headrace \
 && install --directory --owner headrace /data
USER headrace
WORKDIR /data
ENTRYPOINT ["headrace"]
CMD ["--help"]
