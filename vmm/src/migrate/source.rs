//! The source's side of a migration, as states and what leads from one to another. No I/O, no clock.
//!
//! Up to the commit every failure lets the machine go on here. Once the target may have heard the commit, only four things
//! end the wait: that it runs there, that it never will, that its process is gone without having run it, or the operator.

use vmm_api::Side;

use super::wire::{Instance, Message, Session};

/// Where a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The target has been asked.
    Greeting,
    /// Memory is copied while the machine runs.
    Copying(Instance),
    /// The machine stops.
    Stopping(Instance),
    /// What is left is sent; the target gets ready.
    Preparing(Instance),
    /// The target was told to run the machine.
    Committing(Instance),
    /// It is over.
    Ended(Owner),
}

/// Whose the machine is in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Source,
    Target,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The target said something.
    Heard(Message),
    /// A round is over, and what is left is little enough or not.
    RoundOver { enough: bool },
    /// The machine stands still.
    Stopped,
    /// Something failed here, took too long, or the operator wants no more.
    Failed,
    /// The connection is lost.
    Lost,
    /// The target's process is gone, and had not said that it runs the machine.
    Died,
    /// The operator decides.
    Resolve(Side),
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Copy what has changed.
    Copy,
    /// Stop the machine.
    Stop,
    /// Send what is left.
    SendRest,
    /// Give the machine away.
    Commit(Session),
    /// Find the target, and give it the machine once more.
    AskAgain(Session),
    /// Let the machine go on.
    GoOn,
    /// End here: it runs there.
    Leave,
    /// Nothing.
    Wait,
}

/// A migration, seen from the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    session: Session,
    /// Memory is not copied.
    hand_over: bool,
    state: State,
}

impl Source {
    /// One whose target has just been asked.
    pub(super) const fn new(session: Session, hand_over: bool) -> Self {
        Self { session, hand_over, state: State::Greeting }
    }

    /// Where it is.
    #[cfg(test)]
    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Takes what has happened.
    pub(super) fn on(&mut self, event: Event) -> Action {
        use Action as A;
        use State as S;
        let (next, action) = match (self.state, event) {
            (S::Ended(_), _) => return A::Wait,
            (S::Committing(_), Event::Heard(Message::Committed)) => (S::Ended(Owner::Target), A::Leave),
            (S::Committing(_), Event::Resolve(Side::Target)) => (S::Ended(Owner::Target), A::Leave),
            (S::Committing(_), Event::Resolve(Side::Source) | Event::Died) => {
                (S::Ended(Owner::Source), A::GoOn)
            }
            // Only the process that was told can say that it will never run it.
            (S::Committing(asked), Event::Heard(Message::Unknown(instance))) if instance == asked => {
                (S::Ended(Owner::Source), A::GoOn)
            }
            (state @ S::Committing(_), _) => (state, A::AskAgain(self.session)),
            (S::Greeting, Event::Heard(Message::Welcome(target))) if self.hand_over => {
                (S::Stopping(target), A::Stop)
            }
            (S::Greeting, Event::Heard(Message::Welcome(target))) => (S::Copying(target), A::Copy),
            (S::Copying(target), Event::RoundOver { enough: false }) => (S::Copying(target), A::Copy),
            (S::Copying(target), Event::RoundOver { enough: true }) => (S::Stopping(target), A::Stop),
            (S::Stopping(target), Event::Stopped) => (S::Preparing(target), A::SendRest),
            (S::Preparing(target), Event::Heard(Message::Prepared)) => {
                (S::Committing(target), A::Commit(self.session))
            }
            _ => (S::Ended(Owner::Source), A::GoOn),
        };
        self.state = next;
        action
    }
}
