"""Language models: loading, adapters, parameters that travel, batches and sampling."""
