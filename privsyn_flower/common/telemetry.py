"""What libraries would send or write by themselves, and the variables that stop it.

Importing `privsyn_flower` sets these variables, whatever they were: before our modules import any
of the libraries, in every process of ours and in an app that uses this package. What was imported
earlier has read its own by then (Flower's commands, when they are started as they are): set them
where such a process starts, too (docs/runs.md). SECURITY.md has a row for each library.
"""

from __future__ import annotations

NO_TELEMETRY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # ONNX Runtime counts its runs, one for each private text, and sends texts of errors.
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # TRL's trainers send through it
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # datasets, for local files too
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers, of a hub model that has none
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GRADIO_ANALYTICS_ENABLED": "False",  # what TRL's Trackio draws with
    "DO_NOT_TRACK": "1",
}

# Ray's dashboard asks the metadata servers of three clouds which of them it runs in, without usage
# reports too. It asks through `requests`, which finds a proxy for one host under such a name; no
# other program's requests go there, and nothing listens at it.
NO_CLOUD_METADATA = {
    f"http://{host}_proxy": "http://127.0.0.1:9"
    for host in ("169.254.169.254", "metadata.google.internal")
}
