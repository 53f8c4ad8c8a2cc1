"""Integer encoding: norms in exact integers, ranges, residues and bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from privsyn_flower.privacy import clip_l2
from privsyn_flower.privacy.encoding.dense import _sum_reach, dense_numbers
from privsyn_flower.privacy.encoding.quantize import (
    SENSITIVITY,
    IntegerPlan,
    decode,
    from_modulus,
    node_noise_integers,
    pack,
    to_modulus,
    unpack,
)
from privsyn_flower.privacy.encoding.sizing import (
    WrapAround,
    check_plan,
    noise_tail,
    plan_histogram,
)
from privsyn_flower.privacy.noise.integer_noise import TooCoarse, node_variance
from tests.privacy.lattice import noise_array

BITS = st.sampled_from(range(8, 57, 8))
bounds = st.floats(1e-3, 1e3)
any_floats = st.floats(width=64)
NOISE = {"noise_multiplier": 2.0, "weight": 1000.0, "min_weight": 850.0}


def exact_norm_squared(integers):
    return sum(int(value) ** 2 for value in integers)


def encode(vector, plan):
    """One user's vector (d,) as integers (d,)."""
    return plan.encode_users(np.asarray(vector, dtype=np.float64), np.zeros(len(vector), np.intp))


# --- encoding -------------------------------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    vector=arrays.arrays(np.float64, st.integers(1, 40), elements=any_floats),
    bound=bounds,
    sensitivity=st.floats(1, 2**30),
    clipped=st.booleans(),
)
def test_the_integer_norm_never_exceeds_the_sensitivity(vector, bound, sensitivity, clipped):
    """Clipped to the very bound or not clipped at all, NaN and infinity included."""
    plan = IntegerPlan(bound, sensitivity, sensitivity / bound, 56, len(vector))
    if clipped:
        vector = clip_l2(vector, bound)
    integers = encode(vector, plan)
    assert integers.dtype == np.int64
    assert exact_norm_squared(integers) * 1.0 <= sensitivity * sensitivity * (1 + 1e-15)
    if sensitivity.is_integer():
        assert exact_norm_squared(integers) <= int(sensitivity) ** 2
    if clipped:
        assert (np.abs(integers - vector * plan.scale) < 1 + 5e-6 * plan.scale * bound).all()
        assert (np.abs(integers) <= np.abs(vector) * plan.scale).all()  # towards zero


def test_votes_on_one_candidate_and_rounding():
    plan = IntegerPlan(1.0, 4096.0, 4096.0, 32, 4)
    assert encode([1.0, 0.0, 0.0, 0.0], plan).tolist() == [4096, 0, 0, 0]
    assert encode([0.6, -0.8, 0.0, 0.0], plan).tolist() == [2457, -3276, 0, 0]
    # An ulp too long: 4096^2 + 1 would pass any floating-point comparison of norms.
    plan = IntegerPlan(1.0, 2.0**30, 2.0**30, 56, 2)
    integers = encode([1.0, 1.5 * 2.0**-30], plan)
    assert 2**60 * (1 - 2e-5) < exact_norm_squared(integers) <= 2**60


def test_not_clipped_not_finite():
    plan = IntegerPlan(1.0, 100.0, 100.0, 16, 2)
    assert encode([30.0, 40.0], plan).tolist() in ([60, 80], [59, 79], [59, 80])
    for bad in (math.nan, math.inf, 1e300):
        assert encode([bad, 0.5], plan).tolist() == [0, 0]


def test_users_are_encoded_alone():
    plan = IntegerPlan(1.0, 100.0, 100.0, 16, 2)
    values = np.array([0.6, 5.0, 0.8, math.nan, 0.1, 0.0])
    users = np.array([0, 1, 0, 2, 2, 4])
    assert plan.encode_users(values, users).tolist() == [60, 100, 80, 0, 0, 0]
    assert plan.encode_users(values[:0], users[:0]).shape == (0,)


# --- the range ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(
    noise_multiplier=st.floats(0.1, 50),
    weight=st.integers(1, 10**6),
    share=st.floats(0.1, 1),
    length=st.integers(1, 10**6),
    sensitivity=st.sampled_from([4.0, 4096.0, 2.0**20]),
)
def test_the_least_bits_that_hold_the_sum(noise_multiplier, weight, share, length, sensitivity):
    noise = {"noise_multiplier": noise_multiplier, "weight": weight, "min_weight": weight * share}
    plan = plan_histogram(2.0, length, sensitivity=sensitivity, **noise)
    assert plan.scale == sensitivity / 2 and plan.length == length
    variance = ((noise_multiplier * sensitivity) ** 2 + 1 / 12) / share
    reach = weight * sensitivity + noise_tail(variance, length)
    assert reach < 2 ** (plan.bits - 1)
    assert plan.bits == 8 or reach >= 2 ** (plan.bits - 9) - 1
    check_plan(plan, **noise)
    if plan.bits > 8:
        small = IntegerPlan(plan.bound, sensitivity, plan.scale, plan.bits - 8, length)
        with pytest.raises(WrapAround, match=rf"bits = {small.bits}.*weight = {weight}"):
            check_plan(small, **noise)


@pytest.mark.parametrize(
    "variances", [[0.01], [1.0], [30.0], [3000.0], [0.3, 2.0, 9.0], [50.0] * 6]
)
@pytest.mark.parametrize("length", [1, 1024])
def test_the_tail_of_the_noise_is_below_2_to_the_minus_60(variances, length):
    """Against the exact probabilities of one node's draw or of a sum, and no looser than 20 %."""
    reach = int(20 * sum(variances) ** 0.5) + 10
    mass = noise_array(variances, reach)[reach:]

    def beyond(edge):
        return 2 * length * mass[math.ceil(edge) :].sum()

    tail = noise_tail(sum(variances), length)
    assert beyond(tail) <= 2.0**-60
    proven = 2 * length * math.exp(-(tail**2) / (2 * sum(variances)))  # of any subgaussian noise
    assert proven == pytest.approx(2.0**-60)
    if sum(variances) >= 300:
        assert beyond(tail / 1.2) > 2.0**-60
    assert tail > stats.norm.isf(2.0**-61 / length, scale=sum(variances) ** 0.5)


@settings(deadline=None, max_examples=200)
@given(
    noise_multiplier=st.floats(0.05, 50),
    weight=st.integers(2, 10**6),
    share=st.floats(0.05, 1),
    length=st.integers(1, 10**7),
    dense=st.booleans(),
)
def test_no_wrap_around_under_the_plan(noise_multiplier, weight, share, length, dense):
    """All users at their largest in one coordinate: what is left of the range holds the noise.

    Of a dense sum the users' part is below its bound but for 2^-60 of the rotation's signs.
    """
    noise = {"noise_multiplier": noise_multiplier, "weight": weight, "min_weight": weight * share}
    if dense:
        try:
            plan = dense_numbers(3.0, length, **noise)
        except WrapAround:
            return
        users = _sum_reach(plan.scale * plan.bound, length, weight)
        length = plan.padded_length
    else:
        plan = plan_histogram(3.0, length, **noise)
        users = weight * plan.sensitivity
    assert plan.sensitivity >= SENSITIVITY
    std = math.sqrt(node_variance(noise_multiplier, weight, weight * share, plan.sensitivity))
    # Noise so wide is Gaussian in its tail, of which the logarithm is taken: it may underflow.
    room = 2 ** (plan.bits - 1) - users
    assert math.log(2 * length) + stats.norm.logsf(room / std) < -60 * math.log(2)


@pytest.mark.parametrize(
    ("bits", "sensitivity", "weight"), [(16, 256, 118), (24, 256, 32_400), (56, 2**28, 2**26)]
)
def test_the_sum_of_all_users_and_all_noise_comes_back(bits, sensitivity, weight):
    """Near the end of the range: 300 sums, drawn, of users who all say the same."""
    length, z, min_weight, largest = 300, 0.5, 0.8 * weight, weight * sensitivity
    numbers = {"noise_multiplier": z, "weight": weight, "min_weight": min_weight}
    assert plan_histogram(1.0, length, sensitivity=sensitivity, **numbers).bits == bits
    assert 0.5 <= largest / 2 ** (bits - 1) < 1
    rng = np.random.default_rng(1)
    nodes = [weight // 3, weight // 2, weight - weight // 3 - weight // 2]
    shares = [node_noise_integers(length, w, min_weight, z, sensitivity, rng) for w in nodes]
    for sign in (1, -1):
        rows = [to_modulus(share, bits) for share in shares]
        rows.append(to_modulus(np.full(length, sign * largest), bits))
        summed = from_modulus(np.add.reduce(rows), bits)
        assert np.array_equal(summed - sign * largest, np.sum(shares, axis=0))


def test_noise_of_any_plan_can_be_drawn():
    """Also where 56 bits are just enough: a node never finds that its share is too large."""
    noise = {"noise_multiplier": 2.0**22, "weight": 1000.0, "min_weight": 900.0}
    plan = plan_histogram(1.0, 10, sensitivity=2.0**29, **noise)
    share = node_noise_integers(10, 1000, 900.0, 2.0**22, plan.sensitivity)
    assert np.abs(share).max() < 2.0 ** (plan.bits - 1) and np.abs(share).max() > 2.0**45
    with pytest.raises(WrapAround, match="bits = 56"):
        plan_histogram(1.0, 10, sensitivity=2.0**30, **noise | {"noise_multiplier": 2.0**23})


def test_known_plan():
    plan = plan_histogram(1.0, 512, **NOISE)
    assert (plan.bits, plan.scale, plan.sensitivity) == (24, 4096.0, 4096.0)
    assert plan_histogram(1.0, 512, **NOISE | {"weight": 3000.0}).bits == 32
    with pytest.raises(WrapAround, match="bits = 56"):
        plan_histogram(1.0, 512, sensitivity=2.0**30, **NOISE | {"weight": 2.0**27})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 12}, "bits = 12"),
        ({"bits": 64}, "bits = 64"),
        ({"length": 0}, "length = 0"),
        ({"scale": 5000.0}, "scale . bound"),
        ({"bound": math.inf}, "bound = inf"),
        ({"sensitivity": 2.0**31}, "sensitivity = 2147483648"),
        ({"sensitivity": math.nan}, "sensitivity = nan"),
    ],
)
def test_bad_plans(change, words):
    numbers = {"bound": 1.0, "sensitivity": 4096.0, "scale": 4096.0, "bits": 32, "length": 4}
    with pytest.raises(ValueError, match=words):
        IntegerPlan(**numbers | change)


@pytest.mark.parametrize(("bound", "length"), [(0.0, 4), (math.nan, 4), (1.0, 0)])
def test_bad_queries(bound, length):
    with pytest.raises(ValueError, match=f"bound = {bound}" if length else "length = 0"):
        plan_histogram(bound, length, **NOISE)


@pytest.mark.parametrize("name", ["noise_multiplier", "weight", "min_weight"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_bad_noise(name, value):
    if (name, value) != ("noise_multiplier", 0.0):  # of a sum whose nodes add none
        for noise_multiplier in (NOISE["noise_multiplier"], 0.0):
            with pytest.raises(ValueError, match=f"{name} = {value}"):
                plan_histogram(
                    1.0, 4, **NOISE | {"noise_multiplier": noise_multiplier} | {name: value}
                )
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        node_noise_integers(4, sensitivity=4.0, **NOISE | {name: value})


def test_sums_without_noise_need_less_room():
    """31 users of sensitivity 4 reach 124, which 8 bits hold; with noise they do not."""
    numbers = {"weight": 128, "min_weight": 100, "sensitivity": 4.0}
    assert plan_histogram(1.0, 4, noise_multiplier=0.0, **numbers).bits == 16
    assert plan_histogram(1.0, 4, noise_multiplier=0.0, **numbers | {"weight": 31}).bits == 8
    assert plan_histogram(1.0, 4, noise_multiplier=3.0, **numbers | {"weight": 31}).bits == 16
    with pytest.raises(WrapAround, match="reach 128"):
        check_plan(IntegerPlan(1.0, 4.0, 4.0, 8, 4), 0.0, 32, 32)


# --- noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seeded", [False, True])
def test_surviving_nodes_carry_the_guaranteed_noise(seeded):
    """Nodes of unequal weight; the sum of those of weight W_min has variance (z S)^2 + 1/12."""
    z, sensitivity, weights, min_weight = 1.5, 40.0, [100, 30, 5, 15], 150
    rng = np.random.default_rng(1) if seeded else None
    shares = [node_noise_integers(50_000, w, min_weight, z, sensitivity, rng) for w in weights]
    whole = 3600 + 1 / 12
    for draws, variance in ((np.sum(shares, axis=0), whole), (shares[1], whole / 5)):
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 50_000)
        assert low <= (draws.astype(float) ** 2).sum() / variance <= high


def test_noise_of_a_node_that_is_too_coarse():
    """Below a standard deviation of 2 a sum of shares is not as good as one draw."""
    assert node_noise_integers(5, 1, 100.0, 1.0, 20.0).shape == (5,)
    with pytest.raises(TooCoarse, match=r"standard deviation 1\.9 in integers is below 2: raise"):
        node_noise_integers(5, 1, 100.0, 1.0, 19.0)
    assert node_noise_integers(5, 2, 100.0, 1.0, 19.0).shape == (5,)  # of more weight, more noise


# --- residues and bytes ---------------------------------------------------------------------


@settings(deadline=None)
@given(bits=BITS, data=st.data())
def test_round_trip(bits, data):
    in_range = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = np.array(data.draw(st.lists(in_range, max_size=9)), dtype=np.int64)
    residues = to_modulus(values, bits)
    assert residues.dtype == np.uint64
    assert residues.tolist() == [int(value) % 2**bits for value in values]
    packed = pack(residues, bits)
    assert packed.dtype == np.uint8 and packed.size == len(values) * bits // 8
    little = b"".join(int(r).to_bytes(bits // 8, "little") for r in residues)
    assert packed.tobytes() == little
    for form in (packed, packed.tobytes()):
        assert np.array_equal(unpack(form, bits, len(values)), residues)
    assert np.array_equal(from_modulus(residues, bits), values)


@settings(deadline=None)
@given(bits=BITS, data=st.data())
def test_sums_modulo_are_sums_of_integers(bits, data):
    """Whatever wraps on the way: masks that cancel, and sums that come back into range."""
    whole = st.integers(-(2**62), 2**62)
    values = data.draw(st.lists(whole, min_size=1, max_size=20))
    total = sum(values)
    target = data.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    rows = [to_modulus(np.array([value]), bits) for value in values]
    rows.append(np.array([(target - total) % 2**bits], dtype=np.uint64))
    summed = np.add.reduce(rows)  # modulo 2^64
    assert from_modulus(summed, bits).tolist() == [target]


def test_decode():
    plan = IntegerPlan(0.5, 1024.0, 2048.0, 16, 2)
    assert decode(to_modulus(np.array([1024, -512]), 16), plan).tolist() == [0.5, -0.25]


def test_bad_bytes():
    residues = np.array([1, 2**16], dtype=np.uint64)
    with pytest.raises(ValueError, match="65536 does not fit bits = 16"):
        pack(residues, 16)
    with pytest.raises(ValueError, match=r"5 bytes .* length = 2"):
        unpack(bytes(5), 16, 2)
    for call in (to_modulus, from_modulus, pack):
        with pytest.raises(ValueError, match="bits = 9"):
            call(residues, 9)
