//! The vmxnet3 network interface.
