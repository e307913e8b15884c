//! One direction of a bad network. Sans-IO: time is an argument and frames leave through a callback.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use device_model::time::Instant;

use super::mark::mark;
use super::random::Random;
use super::spec::{Impairment, Ratio};

/// How long a frame waits for others to overtake it when none comes.
const REORDER_TIME: Duration = Duration::from_millis(5);
/// Frames that overtake a reordered one, at most.
const REORDER_DISTANCE: u64 = 3;
/// Bytes of frames that are on their way, at most; later ones are lost as in a full router.
const CAPACITY: usize = 64 << 20;
/// What a frame under way costs beside its bytes.
const OVERHEAD: usize = 64;

/// What a channel has done so far, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Put in.
    pub offered: u64,
    /// Come out, duplicates included.
    pub delivered: u64,
    /// Vanished as asked.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Held back to be overtaken.
    pub reordered: u64,
    /// Changed by one bit.
    pub corrupted: u64,
    /// Marked as by a congested router.
    pub marked: u64,
    /// Vanished because too many were on their way.
    pub overflowed: u64,
}

/// A frame held back until others have overtaken it.
#[derive(Debug)]
struct Held {
    frame: Box<[u8]>,
    overtakers_left: u64,
    until: Instant,
}

/// A frame on its way.
#[derive(Debug)]
struct Delayed {
    frame: Box<[u8]>,
    due: Instant,
}

/// One direction of an impaired link: frames go in by [`Channel::offer`] and come out of it and of [`Channel::release`].
#[derive(Debug)]
pub struct Channel {
    impairment: Impairment,
    random: Random,
    held: Vec<Held>,
    /// In order of arrival, which is that of sending.
    delayed: VecDeque<Delayed>,
    bytes: usize,
    counters: ChannelCounters,
}

impl Channel {
    /// An empty channel. Two of the same link should differ in their seeds.
    pub fn new(impairment: Impairment) -> Self {
        Self {
            impairment,
            random: Random::new(impairment.seed),
            held: Vec::new(),
            delayed: VecDeque::new(),
            bytes: 0,
            counters: ChannelCounters::default(),
        }
    }

    /// What has happened so far.
    pub const fn counters(&self) -> ChannelCounters {
        self.counters
    }

    /// Puts a frame in at `now`. What arrives at once, this frame or one it frees, is given to `out`.
    pub fn offer(&mut self, now: Instant, parts: &[IoSlice<'_>], out: &mut dyn FnMut(&[IoSlice<'_>])) {
        self.counters.offered += 1;
        let Impairment { loss, duplicate, corrupt, mark, .. } = self.impairment;
        if self.hits(loss) {
            self.counters.lost += 1;
            return;
        }
        let marked = if self.hits(mark) { self.marked(parts) } else { None };
        let marked = marked.as_deref().map(IoSlice::new);
        let parts = marked.as_ref().map_or(parts, std::slice::from_ref);
        let changed = self.hits(corrupt).then(|| self.corrupted(parts));
        let changed = changed.as_deref().map(IoSlice::new);
        let parts = changed.as_ref().map_or(parts, std::slice::from_ref);
        self.pass(now, parts, out);
        if self.hits(duplicate) {
            self.counters.duplicated += 1;
            self.pass(now, parts, out);
        }
    }

    /// Gives to `out` what has become due by `now`.
    pub fn release(&mut self, now: Instant, out: &mut dyn FnMut(&[IoSlice<'_>])) {
        self.free_held(now, |held| held.until <= now, out);
        while self.delayed.front().is_some_and(|next| next.due <= now) {
            if let Some(next) = self.delayed.pop_front() {
                self.bytes -= next.frame.len() + OVERHEAD;
                self.deliver(&[IoSlice::new(&next.frame)], out);
            }
        }
    }

    /// When [`Channel::release`] next has something to do.
    pub fn next_due(&self) -> Option<Instant> {
        let held = self.held.iter().map(|held| held.until);
        held.chain(self.delayed.front().map(|next| next.due)).min()
    }

    fn hits(&mut self, ratio: Ratio) -> bool {
        // No draw for what is off: switching one impairment on leaves the pattern of a lone other one as it was.
        ratio != Ratio::default() && self.random.below(1_000_000) < u64::from(ratio.as_per_million())
    }

    fn corrupted(&mut self, parts: &[IoSlice<'_>]) -> Vec<u8> {
        let mut frame = gather(parts);
        let bit = self.random.below(frame.len() as u64 * 8);
        if let Some(byte) = frame.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
        }
        frame
    }

    /// A marked copy of a frame that may be marked.
    fn marked(&mut self, parts: &[IoSlice<'_>]) -> Option<Vec<u8>> {
        let mut frame = gather(parts);
        let marked = mark(&mut frame);
        self.counters.marked += u64::from(marked);
        marked.then_some(frame)
    }

    /// Lets one frame overtake the held ones, or holds it back itself.
    fn pass(&mut self, now: Instant, parts: &[IoSlice<'_>], out: &mut dyn FnMut(&[IoSlice<'_>])) {
        if self.hits(self.impairment.reorder) {
            self.counters.reordered += 1;
            let overtakers_left = 1 + self.random.below(REORDER_DISTANCE);
            if let Some(frame) = self.keep(parts) {
                self.held.push(Held { frame, overtakers_left, until: now + REORDER_TIME });
            }
            return;
        }
        self.send(now, parts, out);
        self.held.iter_mut().for_each(|held| held.overtakers_left = held.overtakers_left.saturating_sub(1));
        self.free_held(now, |held| held.overtakers_left == 0, out);
    }

    fn free_held(&mut self, now: Instant, free: impl Fn(&Held) -> bool, out: &mut dyn FnMut(&[IoSlice<'_>])) {
        let (freed, kept) = std::mem::take(&mut self.held).into_iter().partition(free);
        self.held = kept;
        for Held { frame, .. } in freed {
            self.bytes -= frame.len() + OVERHEAD;
            self.send(now, &[IoSlice::new(&frame)], out);
        }
    }

    /// Delivers at once or after the delay.
    fn send(&mut self, now: Instant, parts: &[IoSlice<'_>], out: &mut dyn FnMut(&[IoSlice<'_>])) {
        let Impairment { delay, jitter, .. } = self.impairment;
        if delay.is_zero() && jitter.is_zero() {
            return self.deliver(parts, out);
        }
        let spread = self.random.below(u64::try_from(2 * jitter.as_nanos() + 1).unwrap_or(u64::MAX));
        let delay = (delay + Duration::from_nanos(spread)).saturating_sub(jitter);
        let due = self.delayed.back().map_or(now + delay, |last| last.due.max(now + delay));
        if let Some(frame) = self.keep(parts) {
            self.delayed.push_back(Delayed { frame, due });
        }
    }

    fn deliver(&mut self, parts: &[IoSlice<'_>], out: &mut dyn FnMut(&[IoSlice<'_>])) {
        self.counters.delivered += 1;
        out(parts);
    }

    /// A copy to be delivered later, if there is room for it.
    fn keep(&mut self, parts: &[IoSlice<'_>]) -> Option<Box<[u8]>> {
        let cost = parts.iter().map(|part| part.len()).sum::<usize>() + OVERHEAD;
        if self.bytes + cost > CAPACITY {
            self.counters.overflowed += 1;
            return None;
        }
        self.bytes += cost;
        Some(gather(parts).into_boxed_slice())
    }
}

fn gather(parts: &[IoSlice<'_>]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FRAMES: u32 = 100_000;

    /// Sends numbered frames a microsecond apart through a channel; what came out and when.
    fn run(impairment: &str, frames: u32) -> (Vec<(u32, Instant)>, Channel) {
        let mut channel = Channel::new(impairment.parse().unwrap());
        let mut arrived = Vec::new();
        let mut now = Instant::ZERO;
        for n in 0..frames {
            now = Instant::from_nanos(u64::from(n) * 1000);
            let (low, high) = (n.to_le_bytes(), [0; 60]);
            let mut out = |parts: &[IoSlice<'_>]| arrived.push((number(parts), now));
            channel.release(now, &mut out);
            channel.offer(now, &[IoSlice::new(&low), IoSlice::new(&high)], &mut out);
        }
        while let Some(due) = channel.next_due() {
            now = now.max(due);
            channel.release(now, &mut |parts| arrived.push((number(parts), now)));
        }
        (arrived, channel)
    }

    fn number(parts: &[IoSlice<'_>]) -> u32 {
        let frame = gather(parts);
        assert_eq!(frame.len(), 64);
        u32::from_le_bytes(*frame.first_chunk().unwrap())
    }

    fn numbers(arrived: &[(u32, Instant)]) -> Vec<u32> {
        arrived.iter().map(|(n, _)| *n).collect()
    }

    /// Six standard deviations of a count of hits around its mean.
    fn is_plausible(hits: u64, trials: u32, share: f64) -> bool {
        let (n, hits) = (f64::from(trials), hits as f64);
        (hits - n * share).abs() <= 6.0 * (n * share * (1.0 - share)).sqrt()
    }

    #[test]
    fn channel_without_impairment_changes_nothing() {
        let (arrived, channel) = run("seed:1", 1000);
        assert_eq!(numbers(&arrived), (0..1000).collect::<Vec<_>>());
        assert_eq!(
            channel.counters(),
            ChannelCounters { offered: 1000, delivered: 1000, ..Default::default() }
        );
    }

    #[test]
    fn loss_takes_its_share_and_keeps_the_order() {
        let (arrived, channel) = run("loss:10%/seed:7", FRAMES);
        let lost = channel.counters().lost;
        assert!(is_plausible(lost, FRAMES, 0.1), "{lost}");
        assert_eq!(arrived.len() as u64 + lost, u64::from(FRAMES));
        assert!(arrived.is_sorted());
    }

    #[test]
    fn duplicates_arrive_beside_their_originals() {
        let (arrived, channel) = run("duplicate:2.5%/seed:7", FRAMES);
        let duplicated = channel.counters().duplicated;
        assert!(is_plausible(duplicated, FRAMES, 0.025), "{duplicated}");
        assert_eq!(arrived.len() as u64, u64::from(FRAMES) + duplicated);
        assert!(numbers(&arrived).is_sorted());
    }

    #[test]
    fn reordered_frames_arrive_at_most_three_places_late() {
        let (arrived, channel) = run("reorder:5%/seed:7", FRAMES);
        assert!(is_plausible(channel.counters().reordered, FRAMES, 0.05));
        let late = numbers(&arrived).windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!(late > 1000, "{late}");
        let mut all = numbers(&arrived);
        for (place, n) in (0..).zip(&all) {
            // Each held frame may itself be behind others that are held.
            assert!(n.abs_diff(place) <= 20, "{n} at {place}");
        }
        all.sort_unstable();
        assert_eq!(all, (0..FRAMES).collect::<Vec<_>>());
    }

    #[test]
    fn lone_reordered_frame_is_not_held_for_ever() {
        let (arrived, _) = run("reorder:100%", 1);
        assert_eq!(arrived, [(0, Instant::ZERO + REORDER_TIME)]);
    }

    #[test]
    fn corruption_changes_one_bit() {
        let mut channel = Channel::new("corrupt:100%/seed:3".parse().unwrap());
        let sent = [0x55_u8; 100];
        for _ in 0..1000 {
            channel.offer(Instant::ZERO, &[IoSlice::new(&sent)], &mut |parts| {
                let differing: u32 = gather(parts).iter().zip(&sent).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert_eq!(differing, 1);
            });
        }
        assert_eq!(channel.counters().corrupted, 1000);
    }

    #[test]
    fn marks_take_their_share_of_what_may_be_marked() {
        let mut channel = Channel::new("mark:10%/seed:3".parse().unwrap());
        let (mut capable, mut frame) = ([0; 60], [0; 60]);
        capable[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0x20]);
        frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0x00]);
        let mut marks = 0;
        for _ in 0..FRAMES {
            channel
                .offer(Instant::ZERO, &[IoSlice::new(&frame)], &mut |parts| assert_eq!(gather(parts), frame));
            channel.offer(Instant::ZERO, &[IoSlice::new(&capable)], &mut |parts| {
                marks += u64::from(gather(parts)[15] == 0x30);
            });
        }
        assert!(is_plausible(marks, FRAMES, 0.1), "{marks}");
        assert_eq!(channel.counters().marked, marks);
    }

    #[test]
    fn delay_and_jitter_move_arrival_within_their_bounds_and_keep_the_order() {
        let (arrived, _) = run("delay:10ms/jitter:2ms/seed:9", 10_000);
        assert!(numbers(&arrived).is_sorted() && arrived.len() == 10_000);
        for (n, at) in arrived {
            let late = at.saturating_since(Instant::from_nanos(u64::from(n) * 1000));
            // `run` looks once a microsecond, and a frame may wait for one sent before it.
            assert!((8_000..=12_001).contains(&late.as_micros()), "{n}: {late:?}");
        }
    }

    #[test]
    fn frames_beyond_the_capacity_are_lost_and_counted() {
        let mut channel = Channel::new("delay:1s".parse().unwrap());
        let frame = vec![0; 65_536];
        for _ in 0..2000 {
            channel.offer(Instant::ZERO, &[IoSlice::new(&frame)], &mut |_| panic!("not due"));
        }
        let mut delivered = 0;
        channel.release(Instant::ZERO + Duration::from_secs(1), &mut |_| delivered += 1);
        assert_eq!(delivered, CAPACITY / (frame.len() + OVERHEAD));
        assert_eq!(channel.counters().overflowed, 2000 - delivered as u64);
        assert_eq!((channel.bytes, channel.next_due()), (0, None));
    }

    proptest! {
        #[test]
        fn same_seed_gives_the_same_run_and_every_frame_is_accounted_for(seed: u64, percent in 0_u32..60) {
            let text = format!("loss:{percent}%/duplicate:{percent}%/reorder:{percent}%/jitter:50us/seed:{seed}");
            let (arrived, channel) = run(&text, 300);
            prop_assert_eq!(run(&text, 300).0, arrived);
            let c = channel.counters();
            prop_assert_eq!(c.offered + c.duplicated, c.delivered + c.lost);
            prop_assert_eq!(channel.bytes, 0);
        }
    }
}
