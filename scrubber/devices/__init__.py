"""Hardware behind interfaces: a ``Backend`` lists devices and reads their state; a ``Gpu`` changes one device.

The backends are independent of each other, store nothing and decide nothing.
"""
