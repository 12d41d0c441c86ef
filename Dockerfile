# docker build -t otmd . && docker run --rm -it otmd
# The demo in a container: kernels are compiled when the image is built. It fetches the models when it runs.
FROM python:3.11-slim
WORKDIR /otmd
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[llm,experiments]" && otmd warmup
CMD ["otmd", "demo"]
