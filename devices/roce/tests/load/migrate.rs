//! Loads whose devices move while they are at work: state as bytes, memory as the pages that were marked dirty.

use std::sync::Arc;
use std::time::Duration;

use device_model::ram::{GuestRam, Ram};
use device_model::save::Record;
use device_model::time::Instant;
use roce::engine::Config;
use roce::provider::{RoceConfig, RoceProvider};
use verbs::Provider;
use vm_memory::{GuestAddress, GuestMemoryBackend};

use crate::common::Rng;
use crate::common::node::RAM;
use crate::load::Load;
use crate::plan::{Plan, Wire};
use crate::planted::{Struck, caught};

const PAGE: u64 = 4096;
/// Longest time that nobody answers for a device that moves.
const BLACKOUT: Duration = Duration::from_micros(300);
const ROUGH: Wire = Wire { loss: 1, duplication: 1, reordering: 1, ..Wire::GOOD };

/// What goes wrong on the way.
#[derive(Clone, Debug, Default)]
pub enum Slip {
    #[default]
    Nothing,
    /// Memory that was written is left behind now and then.
    SkippedPages(Struck),
    /// The state is that of some steps before, the memory is not.
    OldState(Struck),
}

/// Moves devices at random.
pub struct Mover {
    rng: Rng,
    /// Moves in a thousand steps.
    often: u64,
    /// The memory each device moves to: a copy but for pages that are dirty where it is now.
    spares: [Arc<Ram>; 2],
    /// States of a while ago, to be mistaken for later ones.
    old: Option<(usize, u64, Record)>,
    steps: u64,
    slip: Slip,
    pub moves: u64,
    /// Most bytes a state took.
    pub largest: usize,
}

impl Mover {
    pub fn new(load: &Load, often: u64, slip: Slip) -> Self {
        let spares = [0, 1].map(|n| copy(&load.world.nodes[n].ram));
        let rng = Rng::new(load.plan.seed ^ 0x0051_de57);
        Self { rng, often, spares, old: None, steps: 0, slip, moves: 0, largest: 0 }
    }

    /// One more step was made: may move a device.
    pub fn step(&mut self, load: &mut Load) {
        self.steps += 1;
        if let Slip::OldState(struck) = self.slip.clone() {
            self.move_late(load, &struck);
        } else if self.rng.below(1000) < self.often {
            let n = self.rng.below(2) as usize;
            let record = load.world.nodes[n].provider.save(load.world.now).unwrap();
            self.move_to(load, n, &record);
        }
    }

    /// Moves a device with a state that it has left behind.
    fn move_late(&mut self, load: &mut Load, struck: &Struck) {
        match self.old.take() {
            Some((n, due, record)) if due <= self.steps => {
                let now = load.world.nodes[n].provider.save(load.world.now).unwrap();
                if now.len() != record.len() {
                    struck.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                self.move_to(load, n, &record);
            }
            None if self.rng.below(1000) < self.often => {
                let n = self.rng.below(2) as usize;
                let record = load.world.nodes[n].provider.save(load.world.now).unwrap();
                self.old = Some((n, self.steps + 40, record));
            }
            waiting => self.old = waiting,
        }
    }

    fn move_to(&mut self, load: &mut Load, n: usize, record: &Record) {
        self.moves += 1;
        self.largest = self.largest.max(record.len());
        let node = &mut load.world.nodes[n];
        self.move_memory(&node.ram, n);
        std::mem::swap(&mut node.ram, &mut self.spares[n]);
        let engine = Config { secret: self.rng.next(), ..load.plan.config.clone() };
        let config = RoceConfig { mac: node.mac, engine };
        node.provider = RoceProvider::new(config, node.ram.clone(), node.link.clone()).unwrap();
        load.areas[n].move_to(&node.ram);
        let blackout = Duration::from_nanos(self.rng.below(BLACKOUT.as_nanos() as u64));
        let until: Instant = load.world.now + blackout;
        load.world.miss(n, until);
        load.world.nodes[n].provider.restore(load.world.now, record).unwrap();
    }

    /// Copies what is dirty.
    fn move_memory(&mut self, from: &Ram, n: usize) {
        let to: &dyn GuestRam = &*self.spares[n];
        let dirty = take_dirty(from);
        let skipped = match &self.slip {
            Slip::SkippedPages(struck) if !dirty.is_empty() => {
                struck.store(true, std::sync::atomic::Ordering::Relaxed);
                dirty[self.rng.below(dirty.len() as u64) as usize]
            }
            _ => u64::MAX,
        };
        let mut bytes = [0; PAGE as usize];
        for page in dirty.into_iter().filter(|page| *page != skipped) {
            (from as &dyn GuestRam).read(page, &mut bytes).unwrap();
            to.write(page, &bytes).unwrap();
        }
        take_dirty(&self.spares[n]);
    }
}

/// Addresses of the pages that were written since the last call.
fn take_dirty(ram: &Ram) -> Vec<u64> {
    let region = ram.iter().next().unwrap();
    let words = (**region).bitmap().get_and_reset();
    let pages = words.iter().enumerate().flat_map(|(i, word)| {
        (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| (i as u64 * 64 + bit) * PAGE)
    });
    pages.collect()
}

/// Another memory with the same bytes. Nothing is dirty in either.
fn copy(ram: &Ram) -> Arc<Ram> {
    let copy = Ram::from_ranges(&[(GuestAddress(0), RAM as usize)]).unwrap();
    let mut bytes = [0; PAGE as usize];
    for page in take_dirty(ram) {
        (ram as &dyn GuestRam).read(page, &mut bytes).unwrap();
        (&copy as &dyn GuestRam).write(page, &bytes).unwrap();
    }
    take_dirty(&copy);
    Arc::new(copy)
}

fn moving(seed: u64, wire: Wire) -> Load {
    let mut load = Load::new(Plan::new(seed, wire));
    load.mover = Some(Mover::new(&load, 60, Slip::Nothing));
    load
}

#[test]
fn devices_that_move_a_thousand_times_lose_and_double_nothing() {
    let (mut moves, mut completions, mut seed) = (0, 0, 0);
    while moves < 1000 {
        let mut load = moving(seed, ROUGH);
        let outcome = load.run_all().unwrap_or_else(|why| panic!("seed {seed}: {why}\n{:?}", load.plan));
        moves += load.mover.map_or(0, |mover| mover.moves);
        completions += outcome.completions;
        seed += 1;
    }
    assert!(completions > 5_000, "{completions}");
}

#[test]
fn page_that_is_left_behind_is_caught() {
    caught(ROUGH, "", |load, struck| load.mover = Some(Mover::new(load, 60, Slip::SkippedPages(struck))));
}

#[test]
fn state_older_than_memory_is_caught() {
    caught(ROUGH, "", |load, struck| load.mover = Some(Mover::new(load, 60, Slip::OldState(struck))));
}
