"""What several tests share about plan."""

from __future__ import annotations

from privsyn_flower.app.preflight.speeds import Machine
from tests.rigs.preflight_preflight import place as place

BOX = Machine("a box", "cpu", 2, 2**34, 1e11)
