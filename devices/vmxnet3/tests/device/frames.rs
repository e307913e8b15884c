//! Frames for tests, with checksums by the slow definition.

use std::ops::Range;

use device_model::net::MacAddr;

use crate::machine::{MAC, PEER};

/// Bytes that are not all alike.
pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

/// An Ethernet frame of a local experimental EtherType, `len` bytes in all.
pub fn raw(destination: MacAddr, source: MacAddr, len: usize) -> Vec<u8> {
    let mut frame = [destination.0, source.0].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(payload(len.saturating_sub(frame.len())));
    frame
}

/// A frame from the peer to the interface.
pub fn inbound(len: usize) -> Vec<u8> {
    raw(MAC, PEER, len)
}

/// A frame from the interface to the peer.
pub fn outbound(len: usize) -> Vec<u8> {
    raw(PEER, MAC, len)
}

/// Inserts a VLAN tag.
pub fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tci.to_be_bytes(), &frame[12..]].concat()
}

/// Internet checksum, by definition.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Bytes of Ethernet, IPv4 and TCP headers of [`tcp`].
pub const TCP_HEADERS: usize = 14 + 20 + 20;
/// Offset of the TCP header in [`tcp`].
pub const TCP_OFFSET: usize = 34;

/// TCP over IPv4 with both checksums right.
pub fn tcp(destination: MacAddr, source: MacAddr, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(40 + payload.len()).unwrap().to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum = checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    let mut segment = vec![0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0];
    segment.extend(payload);
    let sum = checksum(&[pseudo_header(&ip, segment.len()), segment.clone()].concat()).to_be_bytes();
    segment[16..18].copy_from_slice(&sum);
    [&destination.0[..], &source.0, &[8, 0], &ip, &segment].concat()
}

/// [`tcp`] as a driver hands it over for checksum offload: the field holds the pseudo-header's sum.
pub fn tcp_partial(payload: &[u8]) -> Vec<u8> {
    let mut frame = tcp(PEER, MAC, payload);
    let pseudo = !checksum(&pseudo_header(&frame[14..34], 20 + payload.len()));
    frame[TCP_OFFSET + 16..TCP_OFFSET + 18].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

fn pseudo_header(ip: &[u8], len: usize) -> Vec<u8> {
    [&ip[12..20], &[0, ip[9]], &u16::try_from(len).unwrap().to_be_bytes()].concat()
}

/// A segment at `offset` of a connection's data.
pub fn segment(offset: usize, data: &[u8]) -> Vec<u8> {
    changed(tcp(MAC, PEER, data), |frame| {
        let sequence = 1u32.wrapping_add(u32::try_from(offset).unwrap());
        frame[TCP_OFFSET + 4..][..4].copy_from_slice(&sequence.to_be_bytes());
    })
}

/// A frame of TCP over IPv4 after a change, with its checksums right again.
pub fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut frame);
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..TCP_OFFSET]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    with_tcp_checksum(frame, 26..TCP_OFFSET, TCP_OFFSET)
}

/// Sets the checksum of the TCP header at `tcp`.
pub fn with_tcp_checksum(mut frame: Vec<u8>, addresses: Range<usize>, tcp: usize) -> Vec<u8> {
    frame[tcp + 16..][..2].fill(0);
    let len = u16::try_from(frame.len() - tcp).unwrap().to_be_bytes();
    let sum = checksum(&[&frame[addresses], &[0, 6], &len, &frame[tcp..]].concat());
    frame[tcp + 16..][..2].copy_from_slice(&sum.to_be_bytes());
    frame
}
