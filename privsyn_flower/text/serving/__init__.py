"""Generators behind HTTP: any OpenAI-compatible server, or a vLLM server of the run's own."""
