"""What people read of decisions and events: the views of a device, sentences, advice. Decides nothing."""
