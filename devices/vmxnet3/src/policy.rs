//! Which received frames the driver wants, and how it wants them.

use device_model::net::{ETHERNET_HEADER, MacAddr};
use device_model::ram::GuestRam;

use crate::packet::headers::{ETHERTYPE_VLAN, IpPacket, IpVersion, TAG_LEN, TCP, UDP, ethertype};
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
    /// The frame's bytes, in two runs so that a tag between them can be left out.
    pub(crate) parts: [&'a [u8]; 2],
    /// The tag that was left out.
    pub(crate) tag: Option<u16>,
    /// What is known of its checksums; `None` to report nothing.
    pub(crate) verdict: Option<RxVerdict>,
    /// Receive queue.
    pub(crate) queue: u8,
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
        let Some((addresses, typed)) = frame.split_at_checked(ETHERNET_HEADER - 2) else {
            return Admission::Malformed;
        };
        let Some((tag, untagged)) = split_tag(typed) else { return Admission::Malformed };
        if tag.is_some_and(|tag| !self.wants_vlan(tag & VLAN_ID_MASK)) {
            return Admission::Unwanted;
        }
        if untagged.len().saturating_sub(2) > self.mtu as usize {
            return Admission::Malformed;
        }
        let stripped = tag.filter(|_| self.features.contains(Features::RX_VLAN));
        let parts = if stripped.is_some() { [addresses, untagged] } else { [frame, &[]] };
        let packet = IpPacket::parse(frame);
        Admission::Deliver(Arrival {
            parts,
            tag: stripped,
            // With a tag left in, drivers would take a full-sized TCP packet for a merged one: its length, which
            // includes the tag, exceeds the MTU. So nothing is said of those.
            verdict: (self.features.contains(Features::RX_CHECKSUM) && tag == stripped)
                .then(|| verdict(packet.as_ref(), frame)),
            queue: self.queue_for(packet.as_ref(), frame),
        })
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

/// Splits what follows the addresses into a tag, if there is one, and the rest from the EtherType on.
fn split_tag(typed: &[u8]) -> Option<(Option<u16>, &[u8])> {
    match ethertype(typed, 0)? {
        ETHERTYPE_VLAN => {
            let (tag, rest) = typed.split_at_checked(TAG_LEN)?;
            ethertype(rest, 0)?;
            Some((ethertype(tag, 2), rest))
        }
        _ => Some((None, typed)),
    }
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
