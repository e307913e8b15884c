//! Keeps a network interface out of the UDP port that the RDMA device beside it owns.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};

use device_model::net::Link;
use etherparse::LaxSlicedPacket;

use crate::forward::forward_to_inner;
use crate::frame;
use crate::headers::{HEAD, is_hidden, udp_destination};

/// UDP destination port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// Drops RoCE v2 frames that a guest sends from its network interface.
///
/// Where an RDMA device shares the port, only that device speaks RoCE; a guest could otherwise forge packets of its own
/// queue pairs under the device, with any sequence number. A guest that wants a RoCE stack in software uses an interface
/// without an RDMA device. Put it between the interface and the port; the RDMA device uses the port directly.
#[derive(Debug)]
pub struct RdmaFilter<L> {
    inner: L,
    dropped: AtomicU64,
}

impl<L: Link> RdmaFilter<L> {
    /// Filters what is sent over `inner`.
    pub fn new(inner: L) -> Self {
        Self { inner, dropped: AtomicU64::new(0) }
    }

    /// Frames dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Whether a frame, given by its first bytes, is a RoCE v2 packet, starts one, or hides what it is.
fn may_be_roce(head: &[u8]) -> bool {
    LaxSlicedPacket::from_ethernet(head)
        .is_ok_and(|packet| is_hidden(&packet) || udp_destination(&packet) == Some(ROCE_PORT))
}

impl<L: Link> Link for RdmaFilter<L> {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut head = [0; HEAD];
        let len = frame::peek(parts, &mut head);
        if may_be_roce(head.get(..len).unwrap_or_default()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            device_model::guest_warn!(
                "Guest sent RoCE from an interface whose port belongs to its RDMA device"
            );
            return Ok(());
        }
        self.inner.send(parts)
    }

    forward_to_inner!(recv, readable_fd, mtu, is_up);
}

#[cfg(test)]
mod tests {
    use etherparse::{
        IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header,
    };
    use etherparse::{PacketBuilder, PacketBuilderStep};

    use super::*;
    use crate::pair::pair;
    use crate::testing::{is_silent, recv, send};

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn udp(ip: PacketBuilderStep<IpHeaders>, port: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        ip.udp(0xc000, port).write(&mut frame, &[0; 32]).unwrap();
        frame
    }

    /// A fragment at `offset` units of eight bytes whose payload looks like a UDP header.
    fn fragment(v6: bool, offset: u16) -> Vec<u8> {
        let offset = IpFragOffset::try_new(offset).unwrap();
        let payload = [0xc0, 0, 0x12, 0xb7, 0, 40, 0, 0];
        let ip = if v6 {
            let fragment = Ipv6FragmentHeader::new(IpNumber::UDP, offset, true, 1);
            let header = Ipv6Header { next_header: IpNumber::UDP, hop_limit: 64, ..Default::default() };
            IpHeaders::Ipv6(header, Ipv6Extensions { fragment: Some(fragment), ..Default::default() })
        } else {
            let mut header = Ipv4Header::new(8, 64, IpNumber::UDP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
            header.more_fragments = true;
            header.fragment_offset = offset;
            IpHeaders::Ipv4(header, Default::default())
        };
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(A, B).ip(ip).write(&mut frame, IpNumber::UDP, &payload).unwrap();
        frame
    }

    #[test]
    fn roce_is_dropped_and_everything_else_passes() {
        let (near, far) = pair(9000).unwrap();
        let filter = RdmaFilter::new(near);
        let v4 = || PacketBuilder::ethernet2(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let v6 = || PacketBuilder::ethernet2(A, B).ipv6([1; 16], [2; 16], 64);
        let tagged = PacketBuilder::ethernet2(A, B).double_vlan(1.try_into().unwrap(), 2.try_into().unwrap());
        let mut hidden = udp(v6(), 53);
        // Extension headers that do not end within the packet's first bytes.
        hidden[20] = 60;
        hidden[54..56].copy_from_slice(&[60, 255]);
        let dropped = [
            udp(v4(), ROCE_PORT),
            udp(v6(), ROCE_PORT),
            udp(tagged.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64), ROCE_PORT),
            fragment(false, 0),
            fragment(true, 0),
            hidden,
        ];
        dropped.iter().for_each(|frame| send(&filter, frame));
        assert!(is_silent(&far));
        assert_eq!(filter.dropped(), dropped.len() as u64);
        let passed = [
            udp(v4(), 4790),
            udp(v6(), 53),
            fragment(false, 1),
            fragment(true, 1),
            crate::testing::frame(crate::testing::mac(2), crate::testing::mac(1), 60, 0),
            vec![0x12; 14],
        ];
        for frame in passed {
            send(&filter, &frame);
            assert_eq!(recv(&far), frame);
        }
    }
}
