# docker build -t otmd . && docker run --rm -it otmd
# The demo in a container, which fetches the models and compiles kernels when it runs.
FROM python:3.11-slim
WORKDIR /otmd
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[llm,experiments]"
CMD ["otmd", "demo"]
