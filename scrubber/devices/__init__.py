"""Hardware behind interfaces. A ``Backend`` lists the devices and reads their state; a ``Gpu`` changes one device.

The backends are independent of each other, store nothing and decide nothing.
"""
