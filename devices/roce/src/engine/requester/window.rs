//! How many packets may be on their way.

use verbs::Mtu;

use crate::engine::Config;

/// Smallest window: enough that a lost packet is noticed by the ones after it.
const MIN: u32 = 16;
/// Bytes on their way to a peer that copies them itself, in full packets: enough to keep it busy.
const DIRECT_BYTES: u32 = 4 << 20;

/// A window of packets that halves at a loss and grows back with what gets through.
///
/// The specification knows no such thing; but the links here drop what they cannot hold, and a go-back-N sender that
/// always fills its largest window would send most packets in vain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    packets: u16,
    max: u16,
}

impl Window {
    pub(super) fn new(config: &Config, mtu: Mtu) -> Self {
        let max = (config.window_bytes / mtu.bytes()).min(config.window_packets).max(MIN);
        let max = u16::try_from(max).unwrap_or(u16::MAX);
        Self { packets: max, max }
    }

    /// The size as it is saved.
    pub(super) const fn size(self) -> u16 {
        self.packets
    }

    /// Takes a saved size over, as far as the own limits allow.
    pub(super) fn resize(&mut self, packets: u16) {
        self.packets = packets.clamp(1, self.max);
    }

    pub(super) const fn packets(self) -> u32 {
        self.packets as u32
    }

    /// The same where the peer copies the bytes itself. No packet is lost there, so only what is worth having on its way
    /// bounds it; but when the peer does not answer, nothing is sent in vain.
    pub(super) const fn direct_packets(self, mtu: Mtu) -> u32 {
        if self.packets == 1 { 1 } else { DIRECT_BYTES / mtu.bytes() }
    }

    /// After how many packets of one message an acknowledgement is asked for.
    pub(super) const fn ack_interval(self) -> u32 {
        self.packets() / 4 + 1
    }

    pub(super) fn on_loss(&mut self) {
        self.packets = (self.packets / 2).max(MIN as u16);
    }

    /// The network is getting full.
    pub(super) fn on_congestion(&mut self) {
        self.packets = (self.packets / 2).max(MIN as u16).min(self.packets);
    }

    /// Nothing is known about what is on its way.
    pub(super) const fn collapse(&mut self) {
        self.packets = 1;
    }

    /// `packets` got through: about eight packets more per round trip.
    pub(super) fn on_progress(&mut self, packets: u32) {
        let growth = (packets * 8).div_ceil(self.packets().max(1));
        let grown = self.packets().saturating_add(growth).min(u32::from(self.max));
        self.packets = u16::try_from(grown).unwrap_or(self.max);
    }
}
