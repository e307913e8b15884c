//! Both ends against each other: whatever is lost, and whoever dies, whenever, the machine never runs at both, and until the
//! commit it never stops being at the source.

use vmm_api::Side;

use super::source::{self, Owner, Source};
use super::target::{self, Target};
use super::wire::{Instance, Message, Session};

const SESSION: Session = Session([1; 16]);
const INSTANCE: Instance = Instance([2; 16]);

/// Where the connection breaks: before this many messages have arrived.
#[derive(Clone, Copy, Debug)]
struct Fault {
    after: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A network: the message is lost, and the source comes again.
    RemoteCut,
    /// The target's process dies, on another host.
    TargetDies,
    /// The same on this host.
    LocalTargetDies,
    /// Something fails at the target.
    TargetFails,
    /// The operator gives it up, or something fails here.
    SourceFails,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    source: source::State,
    target: Option<target::State>,
    source_runs: bool,
    target_runs: bool,
    committed: bool,
}

/// The messages of a migration without faults, one after the other.
struct World {
    source: Source,
    target: Option<Target>,
    source_runs: bool,
    target_runs: bool,
    committed: bool,
    arrived: usize,
}

impl World {
    fn new(hand_over: bool) -> Self {
        Self {
            source: Source::new(SESSION, hand_over),
            target: Some(Target::new(SESSION, INSTANCE)),
            source_runs: true,
            target_runs: false,
            committed: false,
            arrived: 0,
        }
    }

    /// Does what the source is told until it waits for the target; gives what it then says.
    fn source(&mut self, mut event: source::Event) -> Option<Message> {
        let mut rounds = 0;
        loop {
            event = match self.source.on(event) {
                source::Action::Copy => {
                    rounds += 1;
                    source::Event::RoundOver { enough: rounds == 2 }
                }
                source::Action::Stop => {
                    self.source_runs = false;
                    source::Event::Stopped
                }
                source::Action::SendRest => return Some(Message::Records(Default::default())),
                source::Action::Commit(session) | source::Action::AskAgain(session) => {
                    assert!(!self.source_runs, "a machine that runs is not given away");
                    self.committed = true;
                    return Some(Message::Commit(session));
                }
                source::Action::GoOn => {
                    self.source_runs = true;
                    return Some(Message::Abort);
                }
                source::Action::Leave | source::Action::Wait => return None,
            }
        }
    }

    fn target(&mut self, event: target::Event) -> Option<Message> {
        match self.target.as_mut()?.on(event) {
            target::Action::Say(message) => Some(message),
            target::Action::Run => {
                self.target_runs = true;
                Some(Message::Committed)
            }
            target::Action::GiveUp | target::Action::Wait => None,
        }
    }

    /// Whether the fault comes now.
    fn is_due(&mut self, fault: Option<Fault>) -> Option<Kind> {
        self.arrived += 1;
        fault.filter(|fault| fault.after + 1 == self.arrived).map(|fault| fault.kind)
    }

    /// Lets messages go to and fro until there are no more.
    fn play(mut self, fault: Option<Fault>) -> Outcome {
        let mut to_source = Some(Message::Welcome(INSTANCE));
        loop {
            self.check();
            let Some(message) = to_source.take() else { break };
            let said = match self.is_due(fault) {
                None => self.source(source::Event::Heard(message)),
                Some(kind) => {
                    self.fail_towards_source(kind, message);
                    break;
                }
            };
            self.check();
            let Some(message) = said else { break };
            to_source = match self.is_due(fault) {
                None => self.hear(message),
                Some(kind) => {
                    self.fail_towards_target(kind, message);
                    break;
                }
            };
        }
        self.check();
        Outcome {
            source: self.source.state(),
            target: self.target.map(|target| target.state()),
            source_runs: self.source_runs,
            target_runs: self.target_runs,
            committed: self.committed,
        }
    }

    fn hear(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::Records(_) => self.target(target::Event::Restored),
            message => self.target(target::Event::Heard(message)),
        }
    }

    /// The fault comes while the target's `message` is on its way.
    fn fail_towards_source(&mut self, kind: Kind, message: Message) {
        match kind {
            // It is in the source's queue, and then comes the end.
            Kind::LocalTargetDies => {
                self.kill_target();
                self.source(source::Event::Heard(message));
                self.notice_death();
            }
            Kind::RemoteCut => self.come_again(),
            Kind::TargetDies => {
                self.kill_target();
                self.source(self.lost());
            }
            Kind::TargetFails => {
                self.target(target::Event::Failed);
                self.come_again();
            }
            Kind::SourceFails => {
                let said = self.source(source::Event::Failed);
                if let Some(message) = said {
                    self.hear(message);
                }
            }
        }
    }

    /// The fault comes while the source's `message` is on its way.
    fn fail_towards_target(&mut self, kind: Kind, message: Message) {
        match kind {
            Kind::LocalTargetDies => {
                self.kill_target();
                self.notice_death();
            }
            _ => self.fail_towards_source(kind, message),
        }
    }

    /// The source reads the end of its connection to a process of this host.
    fn notice_death(&mut self) {
        match self.source.state() {
            source::State::Ended(_) => {}
            source::State::Committing(_) => drop(self.source(source::Event::Died)),
            _ => drop(self.source(source::Event::Failed)),
        }
    }

    fn lost(&self) -> source::Event {
        match self.source.state() {
            source::State::Committing(_) => source::Event::Lost,
            _ => source::Event::Failed,
        }
    }

    /// A message was lost with the connection; a source that is in doubt connects again until it knows.
    fn come_again(&mut self) {
        let before =
            matches!(self.source.state(), source::State::Preparing(_) | source::State::Committing(_));
        if before || self.target.as_ref().is_some_and(|target| target.state() == target::State::Prepared) {
            self.target(target::Event::Lost { certain: false });
        } else {
            self.target(target::Event::Lost { certain: true });
        }
        let mut said = self.source(self.lost());
        while let (source::State::Committing(_), Some(message)) = (self.source.state(), said) {
            let Some(answer) = self.hear(message) else { break };
            said = self.source(source::Event::Heard(answer));
        }
    }

    fn kill_target(&mut self) {
        self.target = None;
        self.target_runs = false;
    }

    fn check(&self) {
        assert!(!(self.source_runs && self.target_runs), "it runs at both");
    }
}

const KINDS: [Kind; 5] =
    [Kind::RemoteCut, Kind::TargetDies, Kind::LocalTargetDies, Kind::TargetFails, Kind::SourceFails];

#[test]
fn without_faults_the_machine_moves() {
    for hand_over in [false, true] {
        let outcome = World::new(hand_over).play(None);
        assert_eq!(outcome.source, source::State::Ended(Owner::Target));
        assert_eq!(outcome.target, Some(target::State::Running));
        assert!(outcome.target_runs && !outcome.source_runs);
    }
}

#[test]
fn one_end_has_the_machine_whatever_happens_and_whenever() {
    for hand_over in [false, true] {
        for kind in KINDS {
            for after in 0..6 {
                let outcome = World::new(hand_over).play(Some(Fault { after, kind }));
                let what = format!("{kind:?} after {after}: {outcome:?}");
                if !outcome.committed {
                    assert!(outcome.source_runs, "{what}");
                } else if kind != Kind::TargetDies
                    && kind != Kind::LocalTargetDies
                    && kind != Kind::SourceFails
                {
                    assert!(outcome.source_runs || outcome.target_runs, "{what}");
                }
            }
        }
    }
}

#[test]
fn source_waits_in_the_window_until_it_knows() {
    let mut source = Source::new(SESSION, true);
    source.on(source::Event::Heard(Message::Welcome(INSTANCE)));
    source.on(source::Event::Stopped);
    let commit = source.on(source::Event::Heard(Message::Prepared));
    assert_eq!(commit, source::Action::Commit(SESSION));
    let other = Message::Unknown(Instance([3; 16]));
    for event in [
        source::Event::Lost,
        source::Event::Failed,
        source::Event::Heard(other),
        source::Event::Heard(Message::Prepared),
        source::Event::Heard(Message::Refused(String::new())),
    ] {
        assert_eq!(source.on(event), source::Action::AskAgain(SESSION));
    }
    for (event, action) in [
        (source::Event::Heard(Message::Committed), source::Action::Leave),
        (source::Event::Heard(Message::Unknown(INSTANCE)), source::Action::GoOn),
        (source::Event::Died, source::Action::GoOn),
        (source::Event::Resolve(Side::Source), source::Action::GoOn),
        (source::Event::Resolve(Side::Target), source::Action::Leave),
    ] {
        let mut source = source;
        assert_eq!(source.on(event), action);
        assert_eq!(source.on(source::Event::Lost), source::Action::Wait, "it is over");
    }
}

#[test]
fn target_that_gave_up_never_runs_the_machine() {
    let commit = || target::Event::Heard(Message::Commit(SESSION));
    for end in
        [target::Event::Failed, target::Event::Heard(Message::Abort), target::Event::Resolve(Side::Source)]
    {
        let mut target = Target::new(SESSION, INSTANCE);
        target.on(target::Event::Restored);
        assert_eq!(target.on(end), target::Action::GiveUp);
        assert_eq!(target.on(commit()), target::Action::Say(Message::Unknown(INSTANCE)));
        assert_eq!(target.on(target::Event::Resolve(Side::Target)), target::Action::Wait);
    }
    let mut target = Target::new(SESSION, INSTANCE);
    assert_eq!(target.on(commit()), target::Action::GiveUp, "a machine that is not complete does not run");
    let mut target = Target::new(SESSION, INSTANCE);
    target.on(target::Event::Restored);
    let stranger = target::Event::Heard(Message::Commit(Session([9; 16])));
    assert_eq!(target.on(stranger), target::Action::Say(Message::Unknown(INSTANCE)));
    assert_eq!(target.on(commit()), target::Action::Run);
    assert_eq!(target.on(commit()), target::Action::Say(Message::Committed), "it is asked again");
}
