//! What every device model shares: guest memory, interrupts, doorbells, network links, time.
