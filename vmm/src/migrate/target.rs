//! The target's side of a migration, as states and what leads from one to another. No I/O, no clock.

use vmm_api::Side;

use super::wire::{Instance, Message, Session};

/// Where a machine that comes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is received.
    Receiving,
    /// It could run.
    Prepared,
    /// It runs.
    Running,
    /// It never will.
    GivenUp,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The source, or someone who says so, said something.
    Heard(Message),
    /// The machine is complete, and nothing in it is wrong.
    Restored,
    /// It is not.
    Failed,
    /// The connection is lost. `certain`: the kernel would have delivered a commit that was sent before.
    Lost { certain: bool },
    /// The operator decides.
    Resolve(Side),
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Say this.
    Say(Message),
    /// Say that the machine runs, and let it. A source on this host that cannot be told any more and still lives has taken
    /// it back.
    Run,
    /// End without the machine.
    GiveUp,
    /// Wait for the source to come again.
    Wait,
}

/// A migration, seen from the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    session: Session,
    instance: Instance,
    state: State,
}

impl Target {
    /// One that has just begun.
    pub(super) const fn new(session: Session, instance: Instance) -> Self {
        Self { session, instance, state: State::Receiving }
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
        let ours = |session: &Session| *session == self.session;
        let (next, action) = match (self.state, event) {
            // A question about another machine changes nothing.
            (state, Event::Heard(Message::Commit(session))) if !ours(&session) => {
                (state, A::Say(Message::Unknown(self.instance)))
            }
            (S::Running, Event::Heard(Message::Commit(_))) => (S::Running, A::Say(Message::Committed)),
            (S::Running, _) => (S::Running, A::Wait),
            (S::GivenUp, Event::Heard(Message::Commit(_))) => {
                (S::GivenUp, A::Say(Message::Unknown(self.instance)))
            }
            (S::GivenUp, _) => (S::GivenUp, A::Wait),
            (S::Receiving, Event::Restored) => (S::Prepared, A::Say(Message::Prepared)),
            (S::Receiving, _) => (S::GivenUp, A::GiveUp),
            (S::Prepared, Event::Heard(Message::Commit(_)) | Event::Resolve(Side::Target)) => {
                (S::Running, A::Run)
            }
            (S::Prepared, Event::Heard(Message::Abort) | Event::Resolve(Side::Source) | Event::Failed) => {
                (S::GivenUp, A::GiveUp)
            }
            (S::Prepared, Event::Lost { certain: true }) => (S::GivenUp, A::GiveUp),
            (S::Prepared, Event::Lost { certain: false } | Event::Heard(_) | Event::Restored) => {
                (S::Prepared, A::Wait)
            }
        };
        self.state = next;
        action
    }
}
