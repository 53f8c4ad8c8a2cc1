"""Rewrite the generated part of app/pyproject.toml from config/schema.py (`make app-config`)."""

from __future__ import annotations

from pathlib import Path

from privsyn_flower.config import RunConfig, to_toml

START = "# Generated: python scripts/update_app_config.py\n"
END = "# End of the generated part\n"


def main() -> None:
    path = Path(__file__).resolve().parent.parent / "app" / "pyproject.toml"
    before, _, rest = path.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    config = to_toml(RunConfig(), comments=True, prefix="tool.flwr.app.config")
    path.write_text(f"{before}{START}{config}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
