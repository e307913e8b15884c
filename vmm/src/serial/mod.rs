//! Serial ports and what they are connected to on the host.
//!
//! A [`Console`] is the host side of one port: it lives as long as the run, across resets of the machine. A [`Uart`] is
//! the guest side and belongs to one machine. Between them lies an [`OutputQueue`]: vCPUs put bytes in and go on, one
//! console thread carries them out.

mod console;
mod endpoint;
mod escape;
mod output;
mod terminal;
mod uart;

pub use console::{Console, Consoles};
pub use escape::{Action, EscapeFilter};
pub use output::OutputQueue;
pub use terminal::RawTerminal;
pub use uart::Uart;
