//! Which received frames the driver wants, and how it wants them.

use device_model::net::{ETHERNET_HEADER, MacAddr};
use device_model::ram::GuestRam;

use crate::packet::headers::{IpPacket, IpVersion, TAG_LEN, TCP, UDP, ethertype, link_header_len};
use crate::rx::Packet;
use crate::spec::desc::RxVerdict;
use crate::spec::shared::RxFilterConf;
use crate::spec::{Features, RxMode};
use crate::tx::destination;

/// Bytes of an Ethernet address.
const ADDRESS_LEN: usize = 6;
const VLAN_ID_MASK: u16 = 0x0fff;

/// The driver's wishes. Plain data.
#[derive(Clone, Debug)]
pub(crate) struct RxPolicy {
    /// Current address of the interface.
    pub(crate) mac: MacAddr,
    pub(crate) mode: RxMode,
    /// Sorted.
    pub(crate) multicast: Vec<MacAddr>,
    pub(crate) vlans: [u32; 128],
    pub(crate) features: Features,
    /// Longest IP packet the driver takes, in bytes.
    pub(crate) mtu: u32,
    /// Receive queues to choose from; none while the device is not active.
    pub(crate) queues: u8,
}

/// A frame on its way to the guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arrival<'a> {
    /// The whole frame.
    pub(crate) frame: &'a [u8],
    /// Its tag, if the guest gets it beside the frame and not in it.
    pub(crate) tag: Option<u16>,
    /// What is known of its checksums; `None` to report nothing.
    pub(crate) verdict: Option<RxVerdict>,
    /// Receive queue.
    pub(crate) queue: u8,
    /// Where the headers are of a correct TCP segment, if the guest takes merged ones.
    pub(crate) segment: Option<IpPacket>,
}

impl<'a> Arrival<'a> {
    /// The frame as the guest gets it, unless it is merged with others.
    pub(crate) fn packet(&self) -> Packet<'a> {
        let parts = self.without_tag(self.frame).into_iter().collect();
        Packet { parts, tag: self.tag, verdict: self.verdict }
    }

    /// The frame's first bytes, in two runs so that a tag between them can be left out.
    pub(crate) fn without_tag<'b>(&self, start: &'b [u8]) -> [&'b [u8]; 2] {
        let Some((addresses, typed)) = start.split_at_checked(ETHERNET_HEADER - 2) else {
            return [start, &[]];
        };
        let left_out = if self.tag.is_some() { TAG_LEN } else { 0 };
        [addresses, typed.get(left_out..).unwrap_or_default()]
    }
}

/// What to do with a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<'a> {
    /// Give it to the guest.
    Deliver(Arrival<'a>),
    /// The guest does not want it.
    Unwanted,
    /// The guest would want it if it were well-formed.
    Malformed,
}

impl RxPolicy {
    /// Nothing is wanted.
    pub(crate) fn inactive(mac: MacAddr) -> Self {
        Self {
            mac,
            mode: RxMode::empty(),
            multicast: Vec::new(),
            vlans: [0; 128],
            features: Features::empty(),
            mtu: 0,
            queues: 0,
        }
    }

    /// Loads the multicast table. Bytes beyond the last whole address are ignored, as is a table that is not RAM.
    pub(crate) fn load_multicast(&mut self, ram: &dyn GuestRam, conf: &RxFilterConf) {
        let count = usize::from(conf.multicast_len.get()) / ADDRESS_LEN;
        let mut table = vec![0; count * ADDRESS_LEN];
        self.multicast.clear();
        if ram.read(conf.multicast_table.get(), &mut table).is_ok() {
            self.multicast.extend(table.as_chunks().0.iter().copied().map(MacAddr));
            self.multicast.sort_unstable();
        }
    }

    pub(crate) fn load_vlans(&mut self, conf: &RxFilterConf) {
        self.vlans = conf.vlans.map(|word| word.get());
    }

    /// Decides about a frame.
    pub(crate) fn admit<'a>(&self, frame: &'a [u8]) -> Admission<'a> {
        if self.queues == 0 || !self.wants_address(destination(frame)) {
            return Admission::Unwanted;
        }
        let Some((tag, payload_len)) = split_tag(frame) else { return Admission::Malformed };
        if tag.is_some_and(|tag| !self.wants_vlan(tag & VLAN_ID_MASK)) {
            return Admission::Unwanted;
        }
        if payload_len > self.mtu as usize {
            return Admission::Malformed;
        }
        let stripped = tag.filter(|_| self.features.contains(Features::RX_VLAN));
        let packet = IpPacket::parse(frame);
        let queue = self.queue_for(packet.as_ref(), frame);
        // With a tag left in, drivers would take a full-sized TCP packet for a merged one: its length, which includes
        // the tag, exceeds the MTU. So nothing is said of those.
        let verdict = (self.features.contains(Features::RX_CHECKSUM) && tag == stripped)
            .then(|| verdict(packet.as_ref(), frame));
        let segment = packet.filter(|_| self.features.contains(Features::LRO) && is_correct_tcp(verdict));
        Admission::Deliver(Arrival { frame, tag: stripped, verdict, queue, segment })
    }

    fn wants_address(&self, address: MacAddr) -> bool {
        if self.mode.contains(RxMode::PROMISCUOUS) {
            true
        } else if address == MacAddr::BROADCAST {
            self.mode.contains(RxMode::BROADCAST)
        } else if address.is_multicast() {
            self.mode.contains(RxMode::ALL_MULTICAST)
                || self.mode.contains(RxMode::MULTICAST) && self.multicast.binary_search(&address).is_ok()
        } else {
            self.mode.contains(RxMode::UNICAST) && address == self.mac
        }
    }

    /// The Linux driver clears the table when it turns promiscuous, and then wants every VLAN.
    fn wants_vlan(&self, id: u16) -> bool {
        let word = self.vlans.get(usize::from(id / 32)).copied().unwrap_or(0);
        self.mode.contains(RxMode::PROMISCUOUS) || word & (1 << (id % 32)) != 0
    }

    /// Spreads flows over the queues. The guest's own indirection table is not used and no hash type is reported.
    fn queue_for(&self, packet: Option<&IpPacket>, frame: &[u8]) -> u8 {
        let flow = packet.filter(|_| self.queues > 1).map_or(0, |packet| packet.flow(frame));
        u8::try_from(flow % u16::from(self.queues.max(1))).unwrap_or(0)
    }
}

/// A frame's tag, if there is one, and the number of bytes behind the EtherType; `None` if the frame ends before that.
fn split_tag(frame: &[u8]) -> Option<(Option<u16>, usize)> {
    let header_len = link_header_len(frame);
    let tag = if header_len == ETHERNET_HEADER { None } else { Some(ethertype(frame, ETHERNET_HEADER)?) };
    Some((tag, frame.len().checked_sub(header_len)?))
}

/// Whether a packet was found to be TCP with all its checksums right.
fn is_correct_tcp(verdict: Option<RxVerdict>) -> bool {
    verdict.is_some_and(|found| {
        found.tcp() && found.l4_checksum_ok() && (found.ipv6() || found.ip_checksum_ok())
    })
}

/// What was found of the frame's checksums by computing them.
fn verdict(packet: Option<&IpPacket>, frame: &[u8]) -> RxVerdict {
    let verdict = RxVerdict::new();
    let Some(packet) = packet else { return verdict };
    let whole = !packet.fragment;
    verdict
        .with_ipv4(packet.version == IpVersion::V4)
        .with_ipv6(packet.version == IpVersion::V6)
        .with_fragment(packet.fragment)
        .with_tcp(whole && packet.protocol == TCP)
        .with_udp(whole && packet.protocol == UDP)
        .with_ip_checksum_ok(packet.version == IpVersion::V4 && packet.header_checksum_ok(frame))
        .with_l4_checksum_ok(packet.l4_checksum_ok(frame))
}
