"""What the programs say to each other: the messages of the scrub service, its clients, and the limits of a request."""
