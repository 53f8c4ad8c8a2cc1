"""What several tests share about votes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

nasty = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 3e38, -3e38, 1e-40, np.nan, np.inf, -np.inf])


calm = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 3e38, 1e-40])
