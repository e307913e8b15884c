//! The Verbena virtual machine monitor.
