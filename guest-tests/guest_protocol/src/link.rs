//! A reliable stream of messages over frames that may be lost, in either direction.
//!
//! Cumulative acknowledgements and a small window. What timed out is sent again one frame at a time, each when the
//! one before is acknowledged: a line that is only slow must not be filled with repetitions. The state machine does no input or output and reads no clock: the
//! owner hands it the bytes of the line ([`Link::receive`]) and the time ([`Link::transmit`]). Times are durations
//! since any fixed moment.
//!
//! The agent chooses a session number at its start. The harness follows: a first frame of a new session makes it
//! forget the old one and report [`Event::Restarted`], which is how a reboot of the guest shows.

use std::collections::VecDeque;
use std::time::Duration;

use crate::frame::{Decoder, Frame, Kind, MAX_PAYLOAD};

/// Frames in flight.
const WINDOW: usize = 8;
/// How long the sender waits for any acknowledgement before it sends its oldest frame again.
const RETRANSMIT: Duration = Duration::from_secs(3);
/// Longest message; a longer one from the peer is dropped as damage would be.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// What the line brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has started anew; whatever was under way in it is lost.
    Restarted,
    /// One message, whole and in order.
    Message(Vec<u8>),
}

/// One end of the line.
#[derive(Debug)]
pub struct Link {
    session: Option<u32>,
    follows: bool,
    decoder: Decoder,
    /// Whether a zero has ended whatever an earlier life left on the line in the middle of a frame.
    in_step: bool,
    queued: VecDeque<Frame>,
    in_flight: VecDeque<Frame>,
    next_sequence: u32,
    /// When the oldest frame in flight was last sent.
    sent_at: Duration,
    data_went_out: bool,
    /// While some frame was sent again: the first sequence number that was not sent before that.
    recovering: Option<u32>,
    resend_oldest: bool,
    expected: u32,
    ack_due: bool,
    assembling: Vec<u8>,
    events: VecDeque<Event>,
}

impl Link {
    /// The agent's end. `session` must differ from that of the agent's earlier lives.
    pub fn agent(session: u32) -> Self {
        Self::new(Some(session), false)
    }

    /// The harness's end: it learns the session from the agent and sends nothing before that.
    pub fn harness() -> Self {
        Self::new(None, true)
    }

    fn new(session: Option<u32>, follows: bool) -> Self {
        Self {
            session,
            follows,
            decoder: Decoder::default(),
            in_step: false,
            queued: VecDeque::new(),
            in_flight: VecDeque::new(),
            next_sequence: 0,
            sent_at: Duration::ZERO,
            data_went_out: false,
            recovering: None,
            resend_oldest: false,
            expected: 0,
            ack_due: false,
            assembling: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// Queues a message for the peer.
    pub fn send(&mut self, message: &[u8]) {
        let mut rest = message;
        loop {
            let (piece, tail) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            let kind = if tail.is_empty() { Kind::End } else { Kind::Data };
            self.queued.push_back(Frame {
                kind,
                session: 0,
                sequence: self.next_sequence,
                payload: piece.to_vec(),
            });
            self.next_sequence = self.next_sequence.wrapping_add(1);
            rest = tail;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Frames that the peer has not acknowledged yet, sent or not. A sender with much to say waits for this to fall.
    pub fn backlog(&self) -> usize {
        self.queued.len() + self.in_flight.len()
    }

    /// Frames that came damaged since the start.
    pub fn damaged(&self) -> u64 {
        self.decoder.damaged()
    }

    /// Takes bytes off the line.
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut frames = Vec::new();
        self.decoder.push(bytes, |frame| frames.push(frame));
        for frame in frames {
            self.handle(frame);
        }
    }

    /// The next thing the line brought, if any.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Appends to `out` what has to go over the line at time `now`.
    pub fn transmit(&mut self, now: Duration, out: &mut Vec<u8>) {
        let Some(session) = self.session else { return };
        if !std::mem::replace(&mut self.in_step, true) {
            out.push(0);
        }
        if let Some(oldest) = self.in_flight.front() {
            let late = now.saturating_sub(self.sent_at) >= RETRANSMIT;
            if late || self.resend_oldest {
                oldest.encode(out);
                self.recovering.get_or_insert(oldest.sequence.wrapping_add(self.in_flight.len() as u32));
                self.sent_at = now;
                self.data_went_out = true;
            }
        }
        self.resend_oldest = false;
        while self.in_flight.len() < WINDOW && self.recovering.is_none() {
            let Some(mut frame) = self.queued.pop_front() else { break };
            if self.in_flight.is_empty() {
                self.sent_at = now;
            }
            frame.session = session;
            frame.encode(out);
            self.data_went_out = true;
            self.in_flight.push_back(frame);
        }
        if std::mem::take(&mut self.ack_due) {
            let ack = Frame { kind: Kind::Ack, session, sequence: self.expected, payload: Vec::new() };
            ack.encode(out);
        }
    }

    /// When [`Link::transmit`] has to be called again although nothing came, if ever.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.in_flight.is_empty()).then(|| self.sent_at + RETRANSMIT)
    }

    /// Tells the link that what [`Link::transmit`] gave has left at `now`; a slow line shall not count as a lost frame.
    pub fn transmitted(&mut self, now: Duration) {
        if std::mem::take(&mut self.data_went_out) {
            self.sent_at = now;
        }
    }

    fn handle(&mut self, frame: Frame) {
        if self.session != Some(frame.session) && !self.adopt(&frame) {
            return;
        }
        match frame.kind {
            Kind::Ack => self.handle_ack(frame.sequence),
            Kind::Data | Kind::End => self.handle_data(frame),
        }
    }

    /// Follows the agent into a new session. Only a session's first frame starts one: a late frame of an old
    /// session must not bring it back.
    fn adopt(&mut self, frame: &Frame) -> bool {
        if !self.follows || frame.kind == Kind::Ack || frame.sequence != 0 {
            return false;
        }
        let decoder = std::mem::take(&mut self.decoder);
        let events = std::mem::take(&mut self.events);
        *self = Self { decoder, events, ..Self::new(Some(frame.session), true) };
        self.events.push_back(Event::Restarted);
        true
    }

    fn handle_ack(&mut self, expected: u32) {
        let Some(oldest) = self.in_flight.front() else { return };
        let acknowledged = expected.wrapping_sub(oldest.sequence) as usize;
        if acknowledged > self.in_flight.len() {
            return;
        }
        self.in_flight.drain(..acknowledged);
        if acknowledged > 0 {
            self.recover_from(expected);
        }
    }

    /// Goes on with what was in flight when a frame timed out, or ends the recovery.
    fn recover_from(&mut self, expected: u32) {
        let Some(end) = self.recovering else { return };
        let left = end.wrapping_sub(expected);
        self.resend_oldest = (1..=WINDOW as u32).contains(&left);
        if !self.resend_oldest {
            self.recovering = None;
        }
    }

    fn handle_data(&mut self, frame: Frame) {
        self.ack_due = true;
        if frame.sequence != self.expected {
            return;
        }
        self.expected = self.expected.wrapping_add(1);
        if self.assembling.len() + frame.payload.len() <= MAX_MESSAGE {
            self.assembling.extend_from_slice(&frame.payload);
        }
        if frame.kind == Kind::End {
            self.events.push_back(Event::Message(std::mem::take(&mut self.assembling)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Moves what `from` has to say to `to`, with the bytes at the given positions lost.
    fn carry(from: &mut Link, to: &mut Link, now: Duration, lost: impl Fn(usize) -> bool) -> usize {
        let mut line = Vec::new();
        from.transmit(now, &mut line);
        let arrived: Vec<u8> = line.iter().enumerate().filter(|(i, _)| !lost(*i)).map(|(_, b)| *b).collect();
        to.receive(&arrived);
        line.len()
    }

    fn messages(link: &mut Link) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| link.next_event())
            .filter_map(|event| match event {
                Event::Message(bytes) => Some(bytes),
                Event::Restarted => None,
            })
            .collect()
    }

    #[test]
    fn harness_is_silent_until_the_agent_speaks() {
        let (mut agent, mut harness) = (Link::agent(1), Link::harness());
        harness.send(b"early");
        let mut line = Vec::new();
        harness.transmit(Duration::ZERO, &mut line);
        assert!(line.is_empty());
        agent.send(b"ready");
        carry(&mut agent, &mut harness, Duration::ZERO, |_| false);
        assert_eq!(harness.next_event(), Some(Event::Restarted));
        assert_eq!(harness.next_event(), Some(Event::Message(b"ready".to_vec())));
    }

    #[test]
    fn restart_of_the_agent_is_reported_and_its_past_is_forgotten() {
        let (mut first, mut harness) = (Link::agent(1), Link::harness());
        first.send(b"ready");
        first.send(&[5; 3000]);
        let mut line = Vec::new();
        first.transmit(Duration::ZERO, &mut line);
        harness.receive(&line[..line.len() / 2]);
        harness.send(b"for the first life");
        let mut second = Link::agent(2);
        second.send(b"ready again");
        carry(&mut second, &mut harness, Duration::ZERO, |_| false);
        carry(&mut harness, &mut second, Duration::ZERO, |_| false);
        let events: Vec<_> = std::iter::from_fn(|| harness.next_event()).collect();
        let message = |text: &[u8]| Event::Message(text.to_vec());
        assert_eq!(events, [Event::Restarted, message(b"ready"), Event::Restarted, message(b"ready again")]);
        assert_eq!(second.next_event(), None);
        assert_eq!(second.backlog(), 0);
    }

    #[test]
    fn acknowledged_frames_are_not_sent_again() {
        let (mut agent, mut harness) = (Link::agent(1), Link::harness());
        agent.send(b"one");
        carry(&mut agent, &mut harness, Duration::ZERO, |_| false);
        carry(&mut harness, &mut agent, Duration::ZERO, |_| false);
        assert_eq!(agent.deadline(), None);
        assert_eq!(carry(&mut agent, &mut harness, Duration::from_secs(60), |_| false), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever bytes the line loses now and then, both ends get every message once and in order.
        #[test]
        fn messages_survive_a_line_that_loses_bytes(
            sizes in proptest::collection::vec(0usize..5000, 1..20),
            stride in 2500usize..9000,
        ) {
            let (mut agent, mut harness) = (Link::agent(3), Link::harness());
            let sent: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, n)| vec![i as u8; *n]).collect();
            sent.iter().for_each(|m| agent.send(m));
            let (mut there, mut back) = (Vec::new(), Vec::new());
            let mut replied = false;
            let mut now = Duration::ZERO;
            let mut position = 0;
            for _ in 0..400 {
                let start = position;
                position += carry(&mut agent, &mut harness, now, |i| (start + i) % stride == stride - 1);
                there.extend(messages(&mut harness));
                if !there.is_empty() && !std::mem::replace(&mut replied, true) {
                    sent.iter().for_each(|m| harness.send(m));
                }
                let start = position;
                position += carry(&mut harness, &mut agent, now, |i| (start + i) % stride == stride - 1);
                back.extend(messages(&mut agent));
                now += Duration::from_secs(1);
            }
            prop_assert_eq!(&there, &sent);
            prop_assert_eq!(&back, &sent);
            prop_assert_eq!(agent.backlog() + harness.backlog(), 0);
        }
    }
}
