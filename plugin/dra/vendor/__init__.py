"""In front of another vendor's DRA driver, which runs unchanged: its claims pass the scrub service first."""
