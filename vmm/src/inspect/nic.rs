//! Network interfaces in words.

use vmm_api::{Nic, NicTraffic, Slot};
use vmxnet3::{Stats, Traffic};

use super::SlotView;

/// A slot and its network interface.
pub(super) fn describe(slot: &SlotView) -> Slot {
    let stats = slot.nic.stats();
    Slot {
        id: slot.name.clone(),
        address: slot.address.to_string(),
        link: slot.link.clone(),
        mtu: slot.mtu,
        rdma: slot.rdma.is_some(),
        nic: Nic {
            mac: slot.nic.mac().to_string(),
            link_up: slot.nic.is_link_up(),
            interface_up: slot.nic.is_active(),
            sent: sent(&stats),
            received: received(&stats),
        },
    }
}

fn sent(stats: &Stats) -> NicTraffic {
    stats
        .tx
        .iter()
        .fold(NicTraffic::default(), |sum, queue| add(sum, &queue.sent, queue.errors, queue.discarded))
}

fn received(stats: &Stats) -> NicTraffic {
    let unwanted = NicTraffic { dropped: stats.rx_unwanted, ..NicTraffic::default() };
    stats.rx.iter().fold(unwanted, |sum, queue| add(sum, &queue.received, queue.errors, queue.out_of_buffers))
}

fn add(sum: NicTraffic, queue: &Traffic, errors: u64, dropped: u64) -> NicTraffic {
    NicTraffic {
        frames: sum.frames + queue.unicast_frames + queue.multicast_frames + queue.broadcast_frames,
        bytes: sum.bytes + queue.unicast_bytes + queue.multicast_bytes + queue.broadcast_bytes,
        errors: sum.errors + errors,
        dropped: sum.dropped + dropped,
    }
}
