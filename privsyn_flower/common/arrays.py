"""Arrays by the type of their entries; their shapes stand in docstrings and comments."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
F16 = NDArray[np.float16]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
U64 = NDArray[np.uint64]
U16 = NDArray[np.uint16]
U8 = NDArray[np.uint8]
Ints = NDArray[np.intp]  # places in another array, classes
Bools = NDArray[np.bool_]
