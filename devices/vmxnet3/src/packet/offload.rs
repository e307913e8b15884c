//! Transmit offloads in software: checksums and TCP segmentation.

use super::checksum::Sum;
use super::fields::{bytes, put, put_u16};
use super::headers::{CWR, FIN, IpPacket, IpVersion, PSH, TCP};

/// Segments one packet may become; a guest that asks for more gets none.
const MAX_SEGMENTS: usize = 2048;
const TCP_HEADER: usize = 20;

/// Why an offload the guest asked for cannot be carried out. The packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OffloadError {
    #[error("Checksum field or first byte to sum up lies outside the packet")]
    ChecksumOutside,
    #[error("Segmentation asked for a packet that is not TCP over IP")]
    NotTcp,
    #[error("Header length for segmentation disagrees with the packet's headers")]
    HeaderLength,
    #[error("Segment size 0, or so small that the packet makes too many segments")]
    SegmentSize,
}

/// Sums up `frame[start..]` and stores the checksum at `field`, which holds the pseudo-header's sum so far.
pub(crate) fn finish_checksum(frame: &mut [u8], start: usize, field: usize) -> Result<(), OffloadError> {
    let summed = frame.get(start..).ok_or(OffloadError::ChecksumOutside)?;
    if field < start {
        return Err(OffloadError::ChecksumOutside);
    }
    let checksum = match Sum::default().add(summed).finish() {
        // In UDP a zero means "no checksum", and both zeros are equal (RFC 768).
        0 => 0xffff,
        other => other,
    };
    frame
        .get_mut(field..field + 2)
        .ok_or(OffloadError::ChecksumOutside)?
        .copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// A TCP packet to be cut into segments.
pub(crate) struct Segmentation<'a> {
    packet: IpPacket,
    header: &'a mut [u8],
    payload: &'a [u8],
    mss: usize,
}

impl<'a> Segmentation<'a> {
    /// Checks a packet whose first `header_len` bytes are its Ethernet, IP and TCP headers.
    pub(crate) fn new(frame: &'a mut [u8], header_len: usize, mss: usize) -> Result<Self, OffloadError> {
        patch_total_length(frame);
        let packet = IpPacket::parse(frame).ok_or(OffloadError::NotTcp)?;
        if packet.protocol != TCP || packet.fragment || packet.payload.len() < TCP_HEADER {
            return Err(OffloadError::NotTcp);
        }
        let (header, payload) = frame.split_at_mut_checked(header_len).ok_or(OffloadError::HeaderLength)?;
        let data_offset = header.get(packet.payload.start + 12).ok_or(OffloadError::HeaderLength)? >> 4;
        if packet.payload.start + usize::from(data_offset) * 4 != header_len
            || usize::from(data_offset) * 4 < TCP_HEADER
        {
            return Err(OffloadError::HeaderLength);
        }
        if mss == 0 || payload.len().div_ceil(mss) > MAX_SEGMENTS {
            return Err(OffloadError::SegmentSize);
        }
        Ok(Self { packet, header, payload, mss })
    }

    /// Hands each segment's headers and payload to `send`, in order.
    pub(crate) fn for_each(self, mut send: impl FnMut(&[u8], &[u8])) {
        let Self { packet, header, payload, mss } = self;
        let original = SegmentFields::read(&packet, header);
        let count = payload.len().div_ceil(mss).max(1);
        // A packet without payload is one segment.
        let empty = std::iter::once(payload).filter(|payload| payload.is_empty());
        for (index, data) in payload.chunks(mss).chain(empty).enumerate() {
            original.write(
                &packet,
                header,
                Segment { index, offset: index * mss, last: index + 1 == count, data },
            );
            send(header, data);
        }
    }
}

/// A packet of 64 KiB and more cannot state its length; drivers put 0. Segmentation needs ranges, not the number.
fn patch_total_length(frame: &mut [u8]) {
    let start = super::headers::link_header_len(frame);
    let len = frame.len();
    let field = match frame.get(start).map(|first| first >> 4) {
        Some(4) => Some((start + 2, len - start)),
        Some(6) => Some((start + 4, len.saturating_sub(start + 40))),
        _ => None,
    };
    if let Some((offset, value)) = field
        && let Some(bytes) = frame.get_mut(offset..offset + 2)
    {
        bytes.copy_from_slice(&u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes());
    }
}

/// One piece of the payload.
struct Segment<'a> {
    index: usize,
    offset: usize,
    last: bool,
    data: &'a [u8],
}

/// The original packet's fields that differ between segments.
struct SegmentFields {
    identification: u16,
    sequence: u32,
    flags: u8,
}

impl SegmentFields {
    fn read(packet: &IpPacket, header: &[u8]) -> Self {
        let (ip, tcp) = (packet.header.start, packet.payload.start);
        let [b0, b1, b2, b3] = bytes(header, tcp + 4);
        let [_, flags] = bytes(header, tcp + 12);
        Self {
            identification: u16::from_be_bytes(bytes(header, ip + 4)),
            sequence: u32::from_be_bytes([b0, b1, b2, b3]),
            flags,
        }
    }

    fn write(&self, packet: &IpPacket, header: &mut [u8], segment: Segment<'_>) {
        let (ip, tcp) = (packet.header.start, packet.payload.start);
        let l4_len = header.len() - tcp + segment.data.len();
        match packet.version {
            IpVersion::V4 => {
                put_u16(header, ip + 2, header.len() - ip + segment.data.len());
                put_u16(
                    header,
                    ip + 4,
                    usize::from(self.identification).wrapping_add(segment.index) & 0xffff,
                );
                put_u16(header, ip + 10, 0);
                let checksum = Sum::default().add(&header[packet.header.clone()]).finish();
                put_u16(header, ip + 10, usize::from(checksum));
            }
            IpVersion::V6 => put_u16(header, ip + 4, header.len() - packet.header.end + segment.data.len()),
        }
        let sequence = self.sequence.wrapping_add(u32::try_from(segment.offset).unwrap_or(0));
        put(header, tcp + 4, &sequence.to_be_bytes());
        let mut flags = self.flags;
        if !segment.last {
            flags &= !(FIN | PSH);
        }
        if segment.index > 0 {
            flags &= !CWR;
        }
        put(header, tcp + 13, &[flags]);
        put_u16(header, tcp + 16, 0);
        // The TCP header is a multiple of four bytes, so the payload starts at an even offset of the sum.
        let sum = packet.pseudo_header(header, l4_len).add(&header[tcp..]).add(segment.data);
        put_u16(header, tcp + 16, usize::from(sum.finish()));
    }
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
