"""Users' vectors as integers, so that sums modulo 2^bits are exact."""
