"""The rounds of every method: who is asked, how answers are summed, who adds the noise."""
