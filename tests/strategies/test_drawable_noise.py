"""The integers of the nodes' noise: what cannot be drawn is refused before anything is charged."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.encoding.quantize import node_noise_integers
from privsyn_flower.privacy.encoding.sizing import WrapAround
from privsyn_flower.protocol.noise import total_variation
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import integer_noise
from tests.rigs.answers import question


@settings(max_examples=60, deadline=None)
@given(
    log_z=st.floats(-2, 5), log_distance=st.floats(-45, -3), least=st.sampled_from([0.1, 0.5, 1.0])
)
def test_whatever_is_asked_any_node_can_draw(
    log_z: float, log_distance: float, least: float
) -> None:
    plan = RoundPlan("run", 1000, 10**log_z, min_surviving_weight=least, distance=10**log_distance)
    try:
        noise = integer_noise(plan, question())
    except WrapAround:
        return
    assert total_variation(question(), noise) <= plan.distance
    for weight in (1, plan.users):
        numbers = (weight, noise.min_weight, noise.multiplier, noise.sensitivity)
        assert len(node_noise_integers(4, *numbers)) == 4
