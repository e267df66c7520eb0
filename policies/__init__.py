"""What an operator decides: the policy model, how it is read, and which rule a device falls under.

Nothing here touches a device, and nothing here knows the scrubber.
"""
