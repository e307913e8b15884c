//! The device against a driver that does what the Linux driver does, over real guest memory.

mod control;
mod driver;
mod frames;
mod hostile;
mod lro;
mod machine;
mod receive;
mod save;
mod soak;
mod threads;
mod transmit;
