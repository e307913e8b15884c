//! What a machine reports to whoever runs it.

use std::sync::mpsc::Sender;

/// Something that ends or restarts a machine, or wants to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest entered S5.
    PowerOff,
    /// The machine was saved, and is to end.
    Saved,
    /// The machine runs elsewhere.
    Moved,
    /// The guest asked for a reset.
    Reset,
    /// The guest cannot go on; the text is the cause.
    Crashed(String),
    /// The machine failed; the text is the cause.
    Failed(String),
    /// The operator pressed the exit key.
    ExitKey,
    /// A signal arrived.
    Signal(i32),
}

impl Event {
    /// Whether it comes from outside the machine.
    pub fn is_from_operator(&self) -> bool {
        matches!(self, Self::ExitKey | Self::Signal(_))
    }
}

/// Sends events; may be cloned into every thread.
#[derive(Clone, Debug)]
pub struct Events(Sender<Event>);

impl Events {
    /// Events for `receiver`'s end of the channel.
    pub fn new(sender: Sender<Event>) -> Self {
        Self(sender)
    }

    /// Reports an event. Nobody listening means that the run is over already.
    pub fn send(&self, event: Event) {
        let _ = self.0.send(event);
    }
}
