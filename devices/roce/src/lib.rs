//! A userspace RoCE v2 engine.
