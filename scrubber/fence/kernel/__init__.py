"""What speaks to the kernel: the program that counts or refuses who opens a device, its maps, and its attempts."""
