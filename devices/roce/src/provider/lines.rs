//! The channels to other machines.

use device_model::direct::{Channel, MAX_RECORD};
use device_model::net::MacAddr;

use super::waiting::Waiting;

/// Records that are taken from one channel before the others have their turn.
const BURST: usize = 64;

/// A channel and what is known of it.
pub(super) struct Line {
    pub(super) peer: MacAddr,
    pub(super) channel: Box<dyn Channel>,
    /// A record that found no room.
    held: Option<Box<[u8]>>,
    /// Records that name memory may still be in the channel.
    refers: bool,
    /// Records that were received and wait for their payloads.
    pub(super) waiting: Waiting,
}

impl Line {
    pub(super) fn new(peer: MacAddr, channel: Box<dyn Channel>) -> Self {
        Self { peer, channel, held: None, refers: false, waiting: Waiting::default() }
    }

    /// Sends a record, or holds it until there is room and returns `false`.
    pub(super) fn send(&mut self, record: &[u8], refers: bool) -> bool {
        self.refers |= refers;
        if self.channel.send(record) {
            return true;
        }
        self.held = Some(record.into());
        false
    }

    /// Sends a record unless there is no room.
    pub(super) fn try_send(&mut self, record: &[u8]) -> bool {
        self.held.is_none() && self.channel.send(record)
    }

    /// Tries a held record again. Returns `true` when that has ended a wait for room.
    pub(super) fn retry(&mut self) -> bool {
        let Some(record) = self.held.take() else { return false };
        let sent = self.channel.send(&record);
        if !sent {
            self.held = Some(record);
        }
        sent
    }

    /// Whether no memory is named by what is in the channel.
    pub(super) fn is_settled(&mut self) -> bool {
        self.refers = self.refers && (self.held.is_some() || !self.channel.is_settled());
        !self.refers
    }

    /// Takes records, a bounded number, and gives them to `take`. Returns whether there may be more.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8; MAX_RECORD],
        mut take: impl FnMut(&mut Self, &[u8]),
    ) -> bool {
        for _ in 0..BURST {
            let Some(len) = self.channel.recv(buffer) else { return false };
            take(self, buffer.get(..len).unwrap_or_default());
        }
        true
    }

    /// Notes whose payloads have come.
    pub(super) fn take_fetched(&mut self) {
        let Some(fetcher) = self.channel.fetcher() else { return };
        while self.waiting.is_fetching() && fetcher.fetched() {
            self.waiting.landed();
        }
    }

    /// Waits until no payload is on its way. Returns `false` when that has taken too long.
    pub(super) fn finish_fetches(&mut self) -> bool {
        loop {
            self.take_fetched();
            if !self.waiting.is_fetching() {
                return true;
            }
            if !self.channel.wait() {
                return false;
            }
        }
    }
}
