"""A test double for LLM gateways: streams like vLLM on a named GPU, dies on demand."""

__version__ = "0.1.0"
