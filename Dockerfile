# The page of `nvdp serve`: locked versions, a user without rights, a health check.
FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements.lock constraints.txt pyproject.toml README.md LICENSE ./
RUN python -m venv /opt/nvdp \
 && /opt/nvdp/bin/pip install --no-cache-dir --require-hashes \
      --extra-index-url https://download.pytorch.org/whl/cpu -r requirements.lock
COPY src ./src
# The tools that build the wheel have exact versions, too, and stay out of the image.
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --constraint constraints.txt build hatchling \
 && /opt/build/bin/python -m build --wheel --no-isolation --outdir /dist . \
 && /opt/nvdp/bin/pip install --no-cache-dir --no-index --no-deps /dist/nvdp-*.whl

FROM python:3.11-slim
COPY --from=build /opt/nvdp /opt/nvdp
RUN useradd --create-home --uid 10001 nvdp
USER nvdp
WORKDIR /home/nvdp
ENV PATH=/opt/nvdp/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 MPLCONFIGDIR=/tmp
EXPOSE 8765
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/api/models', timeout=4)"]
ENTRYPOINT ["nvdp", "serve", "--host", "0.0.0.0", "--port", "8765"]
