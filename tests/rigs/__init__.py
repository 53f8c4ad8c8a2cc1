"""Stand-ins and small worlds that several test modules share."""
