//! Records of a channel whose payloads are fetched, and those behind them.

use std::collections::{BTreeMap, VecDeque};

use device_model::direct::Piece;
use verbs::{Qpn, Segment, Segments};

/// A record that is not carried out yet.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    record: Vec<u8>,
    stage: Stage,
}

/// How far the oldest record of a queue pair is.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// It is to be looked at.
    Due,
    /// There was no room to fetch its payload.
    Starved,
    /// Its payload is on its way to there.
    Flying(Segments),
    /// Its payload is there.
    Landed(Segments),
}

/// What became of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was carried out, or dropped.
    Done,
    /// Its payload is being fetched to there.
    Fetching(Segments),
    /// Its payload has to be fetched, and there is no room.
    Starved,
}

/// Records in the order they came, for each queue pair: only the oldest is looked at, so that none is carried out before
/// one that came earlier. How many there are is bounded by the channel.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: BTreeMap<Qpn, VecDeque<Entry>>,
    /// Whose payloads are being fetched, in the order they are.
    flying: VecDeque<Qpn>,
    /// Whose oldest record is to be looked at.
    due: VecDeque<Qpn>,
    /// Whose oldest record found no room.
    starved: VecDeque<Qpn>,
}

impl Waiting {
    /// Whether a queue pair's next record has to wait.
    pub(super) fn is_busy(&self, qpn: Qpn) -> bool {
        self.queues.contains_key(&qpn)
    }

    /// Whether any payload is being fetched.
    pub(super) fn is_fetching(&self) -> bool {
        !self.flying.is_empty()
    }

    /// Adds a record.
    pub(super) fn push(&mut self, qpn: Qpn, record: &[u8]) {
        let queue = self.queues.entry(qpn).or_default();
        queue.push_back(Entry { record: record.to_vec(), stage: Stage::Due });
        if queue.len() == 1 {
            self.due.push_back(qpn);
        }
    }

    /// The payload that is fetched longest is there.
    pub(super) fn landed(&mut self) {
        let Some(qpn) = self.flying.pop_front() else { return };
        if let Some(front) = self.front(qpn)
            && let Stage::Flying(to) = &mut front.stage
        {
            front.stage = Stage::Landed(std::mem::take(to));
            self.due.push_back(qpn);
        }
        // It left room.
        self.due.append(&mut self.starved);
    }

    /// The next record to be looked at, and where its payload is if that is there. It has to be followed by
    /// [`Waiting::judge`].
    pub(super) fn next(&mut self) -> Option<(Qpn, Vec<u8>, Option<Segments>)> {
        let qpn = self.due.pop_front()?;
        let front = self.front(qpn)?;
        let there = match &mut front.stage {
            Stage::Landed(to) => Some(std::mem::take(to)),
            Stage::Due | Stage::Starved | Stage::Flying(_) => None,
        };
        Some((qpn, std::mem::take(&mut front.record), there))
    }

    /// Says what became of the record that [`Waiting::next`] gave.
    pub(super) fn judge(&mut self, qpn: Qpn, record: Vec<u8>, verdict: Verdict) {
        let stage = match verdict {
            Verdict::Done => return self.remove(qpn),
            Verdict::Fetching(to) => {
                self.flying.push_back(qpn);
                Stage::Flying(to)
            }
            Verdict::Starved => {
                self.starved.push_back(qpn);
                Stage::Starved
            }
        };
        if let Some(front) = self.front(qpn) {
            *front = Entry { record, stage };
        }
    }

    fn remove(&mut self, qpn: Qpn) {
        let Some(queue) = self.queues.get_mut(&qpn) else { return };
        queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&qpn);
        } else {
            self.due.push_back(qpn);
        }
    }

    fn front(&mut self, qpn: Qpn) -> Option<&mut Entry> {
        self.queues.get_mut(&qpn)?.front_mut()
    }
}

/// What lies in `runs` of the peer's memory and belongs to `to`, in pieces that are one run on either side. `None` when
/// there is less of one than of the other.
pub(super) fn pieces(runs: &[Segment], to: &[Segment]) -> Option<Vec<Piece>> {
    let mut out = Vec::new();
    let mut runs = runs.iter().copied();
    let mut from = Segment { gpa: 0, len: 0 };
    for segment in to {
        let Segment { mut gpa, mut len } = *segment;
        while len > 0 {
            if from.len == 0 {
                from = runs.next()?;
                continue;
            }
            let take = len.min(from.len);
            out.push(Piece { from: from.gpa, to: gpa, len: take });
            (gpa, len) = (gpa.checked_add(u64::from(take))?, len - take);
            from = Segment { gpa: from.gpa.checked_add(u64::from(take))?, len: from.len - take };
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Qpn = Qpn(5);
    const B: Qpn = Qpn(6);

    fn place(gpa: u64) -> Segments {
        Segments::from_slice(&[Segment { gpa, len: 4096 }])
    }

    fn next(waiting: &mut Waiting) -> Option<(Qpn, u8, Option<Segments>)> {
        let (qpn, record, there) = waiting.next()?;
        let first = record[0];
        waiting.judge(qpn, record, Verdict::Fetching(place(u64::from(first))));
        Some((qpn, first, there))
    }

    #[test]
    fn queue_pair_has_one_record_looked_at_at_a_time_and_others_go_on() {
        let mut waiting = Waiting::default();
        for (qpn, record) in [(A, 1), (A, 2), (B, 3)] {
            waiting.push(qpn, &[record]);
        }
        assert_eq!(next(&mut waiting), Some((A, 1, None)));
        assert_eq!(next(&mut waiting), Some((B, 3, None)));
        assert_eq!(next(&mut waiting), None);
        assert!(waiting.is_fetching());
        waiting.landed();
        let (qpn, record, there) = waiting.next().unwrap();
        assert_eq!((qpn, &record[..], there), (A, &[1][..], Some(place(1))));
        waiting.judge(A, record, Verdict::Done);
        assert_eq!(next(&mut waiting), Some((A, 2, None)));
        assert!(waiting.is_busy(A) && waiting.is_busy(B));
    }

    #[test]
    fn record_that_found_no_room_is_looked_at_again_when_there_is_some() {
        let mut waiting = Waiting::default();
        waiting.push(A, &[1]);
        waiting.push(B, &[2]);
        assert_eq!(next(&mut waiting), Some((A, 1, None)));
        let (qpn, record, _) = waiting.next().unwrap();
        waiting.judge(qpn, record, Verdict::Starved);
        assert_eq!(waiting.next(), None);
        waiting.landed();
        let (qpn, record, _) = waiting.next().unwrap();
        waiting.judge(qpn, record, Verdict::Done);
        assert_eq!(next(&mut waiting), Some((B, 2, None)));
        assert!(!waiting.is_busy(A));
    }

    #[test]
    fn pieces_end_where_a_run_of_either_side_does() {
        let run = |gpa, len| Segment { gpa, len };
        let piece = |from, to, len| Piece { from, to, len };
        let made = pieces(&[run(0x1000, 4096), run(0x9000, 904)], &[run(0x40, 100), run(0x3000, 4900)]);
        let expected =
            vec![piece(0x1000, 0x40, 100), piece(0x1064, 0x3000, 3996), piece(0x9000, 0x3f9c, 904)];
        assert_eq!(made, Some(expected));
        assert_eq!(pieces(&[run(0, 10)], &[run(0, 11)]), None);
        assert_eq!(pieces(&[run(u64::MAX, 10)], &[run(0, 10)]), None);
    }
}
