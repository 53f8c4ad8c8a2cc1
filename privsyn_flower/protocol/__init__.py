"""What the two sides say to each other: typed questions and answers <-> Flower's records."""
