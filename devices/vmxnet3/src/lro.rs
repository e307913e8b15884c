//! Large receive offload: TCP segments that arrive one after another are given to the guest as one packet.
//!
//! A packet costs the guest about the same whatever its length, so this decides what bulk transfers cost it. It happens
//! behind the link: on the wire and in captures there are segments of the usual size.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use crate::packet::checksum::Sum;
use crate::packet::fields::{bytes, put, put_u16};
use crate::packet::headers::{ACK, IpPacket, IpVersion, PSH};
use crate::policy::Arrival;
use crate::rx::Packet;

/// Largest length an IP header can state.
const MAX_IP_LENGTH: usize = u16::MAX as usize;

/// Headers of a frame, from Ethernet to TCP.
pub(crate) type Headers = SmallVec<[u8; 96]>;

/// Frames that came one after another and together are one packet.
pub(crate) struct Run<'a> {
    /// Never empty.
    arrivals: SmallVec<[Arrival<'a>; 4]>,
    /// The packet they make; `None` if the first is no segment that can be continued.
    merged: Option<Merged>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(first: Arrival<'a>) -> Self {
        let merged = Segment::of(&first).map(|segment| Merged::new(&segment));
        Self { arrivals: smallvec![first], merged }
    }

    /// Takes one more frame, or gives it back if it does not continue the run.
    pub(crate) fn push(&mut self, next: Arrival<'a>) -> Result<(), Arrival<'a>> {
        match (&mut self.merged, Segment::of(&next)) {
            (Some(merged), Some(segment)) if merged.is_continued_by(&segment) => merged.add(&segment),
            _ => return Err(next),
        }
        self.arrivals.push(next);
        Ok(())
    }

    /// The frames as they came.
    pub(crate) fn arrivals(&self) -> &[Arrival<'a>] {
        &self.arrivals
    }

    /// Headers of the packet that the frames make, if there are several.
    pub(crate) fn headers(&self) -> Option<Headers> {
        let [first, _, ..] = &self.arrivals[..] else { return None };
        Some(self.merged.as_ref()?.headers(&Segment::of(first)?))
    }

    /// The packet that the frames make, under its [`Run::headers`].
    pub(crate) fn packet<'b>(&'b self, headers: &'b [u8]) -> Option<Packet<'b>> {
        let first = self.arrivals.first()?;
        let data = self.arrivals.iter().filter_map(Segment::of).map(|segment| segment.data());
        let parts = first.without_tag(headers).into_iter().chain(data).collect();
        Some(Packet { parts, tag: first.tag, verdict: first.verdict })
    }
}

/// A TCP segment that may be part of a run: one with data, and without anything the guest has to see by itself.
struct Segment<'a> {
    frame: &'a [u8],
    packet: &'a IpPacket,
    /// Place of its data, which its headers are right before.
    data: Range<usize>,
    flags: u8,
}

impl<'a> Segment<'a> {
    fn of(arrival: &'a Arrival<'_>) -> Option<Self> {
        let (frame, packet) = (arrival.frame, arrival.segment.as_ref()?);
        let tcp = packet.payload.start;
        let [data_offset, flags] = bytes(frame, tcp + 12);
        let data = tcp + usize::from(data_offset >> 4) * 4..packet.payload.end;
        let plain = packet.header.end == tcp && flags & !PSH == ACK;
        (plain && !data.is_empty()).then_some(Self { frame, packet, data, flags })
    }

    fn data(&self) -> &'a [u8] {
        self.frame.get(self.data.clone()).unwrap_or_default()
    }

    fn headers(&self) -> Headers {
        self.frame.get(..self.data.start).unwrap_or_default().into()
    }

    fn sequence(&self) -> u32 {
        u32::from_be_bytes(bytes(self.frame, self.packet.payload.start + 4))
    }

    /// The headers without what differs between segments of one run.
    fn identity(&self) -> Headers {
        let mut headers = self.headers();
        let (ip, tcp) = (self.packet.header.start, self.packet.payload.start);
        match self.packet.version {
            // Length and identification, checksum.
            IpVersion::V4 => {
                put(&mut headers, ip + 2, &[0; 4]);
                put(&mut headers, ip + 10, &[0; 2]);
            }
            IpVersion::V6 => put(&mut headers, ip + 4, &[0; 2]),
        }
        // Sequence number, flags, checksum.
        put(&mut headers, tcp + 4, &[0; 4]);
        put(&mut headers, tcp + 13, &[0]);
        put(&mut headers, tcp + 16, &[0; 2]);
        headers
    }

    /// Sum of the data, out of that of the headers: the checksum was found to be right, which makes the sum of both zero.
    fn data_sum(&self) -> u16 {
        let Self { frame, packet, data, .. } = self;
        let tcp_header = frame.get(packet.payload.start..data.start).unwrap_or_default();
        packet.pseudo_header(frame, packet.payload.len()).add(tcp_header).finish()
    }
}

/// A packet made of segments.
struct Merged {
    /// That of each segment.
    identity: Headers,
    /// Sequence number after the last one.
    next_sequence: u32,
    /// The flags of all.
    flags: u8,
    data_len: usize,
    data_sum: Sum,
}

impl Merged {
    fn new(first: &Segment<'_>) -> Self {
        let mut merged = Self {
            identity: first.identity(),
            next_sequence: first.sequence(),
            flags: 0,
            data_len: 0,
            data_sum: Sum::default(),
        };
        merged.add(first);
        merged
    }

    fn is_continued_by(&self, segment: &Segment<'_>) -> bool {
        let ip_len = segment.data.end - segment.packet.header.start + self.data_len;
        ip_len <= MAX_IP_LENGTH
            && segment.sequence() == self.next_sequence
            && segment.identity() == self.identity
    }

    fn add(&mut self, segment: &Segment<'_>) {
        let sum = segment.data_sum();
        // At an odd offset bytes change places in their words (RFC 1071, section 2 B).
        let sum = if self.data_len.is_multiple_of(2) { sum } else { sum.swap_bytes() };
        self.data_sum = self.data_sum.add_u16(sum);
        self.data_len += segment.data.len();
        self.next_sequence = self.next_sequence.wrapping_add(u32::try_from(segment.data.len()).unwrap_or(0));
        self.flags |= segment.flags;
    }

    /// The headers of the whole.
    fn headers(&self, first: &Segment<'_>) -> Headers {
        let mut headers = first.headers();
        let (ip, tcp) = (&first.packet.header, first.packet.payload.start);
        let end = headers.len() + self.data_len;
        match first.packet.version {
            IpVersion::V4 => {
                put_u16(&mut headers, ip.start + 2, end - ip.start);
                put_u16(&mut headers, ip.start + 10, 0);
                let sum = Sum::default().add(headers.get(ip.clone()).unwrap_or_default());
                put_u16(&mut headers, ip.start + 10, usize::from(sum.finish()));
            }
            IpVersion::V6 => put_u16(&mut headers, ip.start + 4, end - ip.end),
        }
        put(&mut headers, tcp + 13, &[self.flags]);
        put_u16(&mut headers, tcp + 16, 0);
        let tcp_header = headers.get(tcp..).unwrap_or_default();
        let sum = first.packet.pseudo_header(&headers, end - tcp).add(tcp_header);
        let sum = sum.add_u16(!self.data_sum.finish());
        put_u16(&mut headers, tcp + 16, usize::from(sum.finish()));
        headers
    }
}
