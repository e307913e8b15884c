//! How devices are driven: threads that wait for events, bells that wake them, and the clock they are told.

mod bell;
mod clock;
mod thread;

pub use bell::EventBell;
pub use clock::Clock;
pub use thread::{IoThread, Parked, Subscriber};
