"""What people read of records and events: the views of a device, sentences, advice. Decides nothing."""
