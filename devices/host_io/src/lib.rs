//! Host side of devices: network ports, switch, capture, shared memory.
