//! Counters, as the guest and the operator see them.

use device_model::net::MacAddr;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U64;

use crate::spec::shared::{RxStatsBlock, TxStatsBlock};
use crate::spec::{MAX_RX_QUEUES, MAX_TX_QUEUES};

/// Frames and bytes by destination address, without the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames to one station.
    pub unicast_frames: u64,
    /// Their bytes.
    pub unicast_bytes: u64,
    /// Frames to a group.
    pub multicast_frames: u64,
    /// Their bytes.
    pub multicast_bytes: u64,
    /// Frames to everyone.
    pub broadcast_frames: u64,
    /// Their bytes.
    pub broadcast_bytes: u64,
}

impl Traffic {
    pub(crate) fn count(&mut self, destination: MacAddr, len: usize) {
        let (frames, bytes) = if destination == MacAddr::BROADCAST {
            (&mut self.broadcast_frames, &mut self.broadcast_bytes)
        } else if destination.is_multicast() {
            (&mut self.multicast_frames, &mut self.multicast_bytes)
        } else {
            (&mut self.unicast_frames, &mut self.unicast_bytes)
        };
        *frames += 1;
        *bytes += len as u64;
    }

    fn block(&self) -> [u64; 6] {
        let Self {
            unicast_frames,
            unicast_bytes,
            multicast_frames,
            multicast_bytes,
            broadcast_frames,
            broadcast_bytes,
        } = *self;
        [unicast_frames, unicast_bytes, multicast_frames, multicast_bytes, broadcast_frames, broadcast_bytes]
    }
}

/// What a transmit queue did since power-on (`UPT1_TxStats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxStats {
    /// Frames made by segmentation; also part of `sent`.
    pub tso_frames: u64,
    /// Their bytes.
    pub tso_bytes: u64,
    /// Frames the link took.
    pub sent: Traffic,
    /// Packets dropped because the guest described them wrongly.
    pub errors: u64,
    /// Frames dropped because the link is down, full, or carries no frame of this size.
    pub discarded: u64,
}

impl TxStats {
    /// The block as the driver reads it.
    pub(crate) fn block(&self) -> TxStatsBlock {
        let Self { tso_frames, tso_bytes, sent, errors, discarded } = self;
        let [u, ub, m, mb, b, bb] = sent.block();
        [*tso_frames, *tso_bytes, u, ub, m, mb, b, bb, *errors, *discarded].map(U64::new)
    }
}

/// What a receive queue did since power-on (`UPT1_RxStats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxStats {
    /// Frames that were merged with others; also part of `received`.
    pub merged_frames: u64,
    /// Their bytes.
    pub merged_bytes: u64,
    /// Frames given to the guest.
    pub received: Traffic,
    /// Frames dropped because the guest had no buffers posted.
    pub out_of_buffers: u64,
    /// Frames dropped because they are malformed or longer than the guest's MTU allows.
    pub errors: u64,
}

impl RxStats {
    /// The block as the driver reads it.
    pub(crate) fn block(&self) -> RxStatsBlock {
        let Self { merged_frames, merged_bytes, received, out_of_buffers, errors } = self;
        let [u, ub, m, mb, b, bb] = received.block();
        [*merged_frames, *merged_bytes, u, ub, m, mb, b, bb, *out_of_buffers, *errors].map(U64::new)
    }
}

/// All counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// By transmit queue.
    pub tx: [TxStats; MAX_TX_QUEUES as usize],
    /// By receive queue.
    pub rx: [RxStats; MAX_RX_QUEUES as usize],
    /// Frames that arrived while the guest was not receiving, or that its filters did not want.
    pub rx_unwanted: u64,
}
