//! The PVRDMA device function.
