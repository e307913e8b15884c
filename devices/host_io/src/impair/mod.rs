//! A bad network on purpose: loss, delay, duplication, reordering, corruption and congestion marks.
//!
//! [`Impairment`] is what a user asks for, [`Channel`] does it under whatever clock it is given, and [`Impair`] puts one
//! channel in each direction of a link. The same impairment and seed treat the same sequence of frames in the same way.

mod channel;
mod link;
mod mark;
mod random;
mod spec;

pub use channel::{Channel, ChannelCounters};
pub use link::Impair;
pub use spec::{Impairment, ParseImpairmentError, Ratio};
