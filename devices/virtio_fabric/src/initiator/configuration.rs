//! The device's configuration as a whole: read in one command if the target can, otherwise in pieces.

use std::time::Duration;

use super::control::Op;
use super::{Initiator, Output, Phase};
use crate::wire::{Features, MAX_CONFIG, Status};

/// What is known of the configuration.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// What was told last.
    known: Option<Vec<u8>>,
    /// What is read so far, all of this generation.
    pieces: Vec<u8>,
    generation: u32,
}

impl Initiator {
    /// The command that begins to read the configuration.
    pub(super) fn config_op(&self) -> Op {
        match self.features().contains(Features::BULK_CONFIG) {
            true => Op::WholeConfig,
            false => Op::PartConfig { offset: 0, bytes: 8 },
        }
    }

    /// The configuration may be another: reads it, unless that is about to be done.
    pub(super) fn config_changed(&mut self, now: Duration) {
        let op = self.config_op();
        if !self.ops.contains(&op) {
            self.ops.push_back(op);
            self.next_op(now);
        }
    }

    /// A piece arrived. The end of the configuration is where not even a byte can be read.
    pub(super) fn config_piece(
        &mut self,
        (offset, bytes): (u16, u8),
        status: Status,
        (generation, value): (u32, u64),
        now: Duration,
    ) -> Result<(), ()> {
        let snapshot = &mut self.snapshot;
        if offset == 0 && snapshot.pieces.is_empty() {
            snapshot.generation = generation;
        }
        let next = match status {
            Status::Success if generation != snapshot.generation => {
                snapshot.pieces.clear();
                Some((0, 8))
            }
            Status::Success => {
                snapshot.pieces.extend_from_slice(&value.to_le_bytes()[..usize::from(bytes)]);
                let at = snapshot.pieces.len();
                (at + usize::from(bytes) <= MAX_CONFIG).then_some((at as u16, bytes))
            }
            Status::ConfigOffset if bytes > 1 => Some((offset, bytes / 2)),
            Status::ConfigOffset => None,
            _ => return Err(()),
        };
        match next {
            Some((offset, bytes)) => self.issue(Op::PartConfig { offset, bytes }, &[], now),
            None => {
                let pieces = std::mem::take(&mut self.snapshot.pieces);
                self.configured(pieces, now);
            }
        }
        Ok(())
    }

    /// The configuration is known.
    pub(super) fn configured(&mut self, config: Vec<u8>, now: Duration) {
        if self.snapshot.known.as_ref() != Some(&config) {
            self.snapshot.known = Some(config.clone());
            self.outputs.push_back(Output::Config(config));
        }
        if self.phase == Phase::Setup {
            self.live(now);
        }
    }

    /// Connections are lost: what is read so far is of no use.
    pub(super) fn config_lost(&mut self) {
        self.snapshot.pieces.clear();
    }
}
