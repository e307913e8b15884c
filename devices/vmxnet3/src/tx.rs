//! A transmit queue: descriptors in, frames out, completions back.

use std::io::IoSlice;

use device_model::guest_warn;
use device_model::net::{ETHERNET_HEADER, Link, MAX_FRAME, MacAddr};
use device_model::ram::{GuestRam, RamError};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U32;

use crate::packet::headers::{ETHERTYPE_VLAN, TAG_LEN, link_header_len};
use crate::packet::offload::{OffloadError, Segmentation, finish_checksum};
use crate::ring::{Cursor, RingArea};
use crate::spec::QueueError;
use crate::spec::desc::{
    CompletionTail, OFFLOAD_CHECKSUM, OFFLOAD_NONE, OFFLOAD_TSO, TX_BUFFER_MAX, TxBuffer, TxCompletion,
    TxDesc, TxOptions,
};
use crate::stats::TxStats;

/// Descriptors one packet may have. Drivers use up to 24 (Linux) or 32 (FreeBSD).
const MAX_PACKET_DESCS: usize = 32;
/// Packets one call to [`TxQueue::process`] takes from the ring.
const BATCH_PACKETS: usize = 64;
/// Frames after which it takes no further packet, since segmentation makes many frames of one packet.
const BATCH_FRAMES: usize = 256;

/// An active transmit queue. Plain data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TxQueue {
    pub(crate) ring: RingArea,
    pub(crate) completions: RingArea,
    /// Vector to raise after completions.
    pub(crate) vector: u8,
    pub(crate) next: Cursor,
    pub(crate) next_completion: Cursor,
    /// Set once the ring cannot be understood any more; only a new activation helps.
    pub(crate) stopped: Option<QueueError>,
}

/// What a call to [`TxQueue::process`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TxProgress {
    /// The driver has completions to look at.
    pub(crate) completed: bool,
    /// The batch ended before the ring did.
    pub(crate) more: bool,
    /// The queue stopped just now.
    pub(crate) failed: bool,
}

/// Where a queue's frames go.
pub(crate) struct Outlet<'a> {
    link: &'a dyn Link,
    link_up: bool,
    stats: &'a mut TxStats,
    /// Frames so far.
    frames: usize,
}

/// Room for one packet, in which it is gathered and its offloads are carried out.
#[derive(Debug)]
pub(crate) struct Scratch(Box<[u8]>);

impl Default for Scratch {
    fn default() -> Self {
        Self(vec![0; MAX_FRAME].into_boxed_slice())
    }
}

/// A packet's descriptors, read.
struct Packet {
    /// Bytes of it in the scratch buffer.
    len: usize,
    first: (TxBuffer, TxOptions),
    last: TxOptions,
    last_index: u32,
    /// Why it cannot be sent although its descriptors are in order.
    defect: Option<Defect>,
}

/// Why a packet is dropped; counted as an error.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Defect {
    #[error(transparent)]
    Memory(#[from] RamError),
    #[error("Packet longer than {MAX_FRAME} bytes")]
    TooLong,
    #[error("Packet shorter than an Ethernet header")]
    TooShort,
    #[error("Offload mode {0} is not one of device revision 1")]
    Mode(u8),
    #[error(transparent)]
    Offload(#[from] OffloadError),
}

impl TxQueue {
    pub(crate) fn new(ring: RingArea, completions: RingArea, vector: u8) -> Self {
        Self { ring, completions, vector, next: Cursor::START, next_completion: Cursor::START, stopped: None }
    }

    /// Sends up to a batch of packets.
    pub(crate) fn process(
        &mut self,
        ram: &dyn GuestRam,
        scratch: &mut Scratch,
        outlet: &mut Outlet<'_>,
    ) -> TxProgress {
        let mut progress = TxProgress::default();
        if self.stopped.is_some() {
            return progress;
        }
        for _ in 0..BATCH_PACKETS {
            if outlet.frames >= BATCH_FRAMES {
                break;
            }
            match self.process_one(ram, scratch, outlet) {
                Ok(Some(completed)) => progress.completed |= completed,
                Ok(None) => return progress,
                Err(error) => {
                    guest_warn!(?error, "Transmit queue stopped; the driver has to reset the device");
                    self.stopped = Some(error);
                    progress.failed = true;
                    return progress;
                }
            }
        }
        progress.more = true;
        progress
    }

    /// Sends one packet; tells whether it was completed, or `None` if there is none.
    fn process_one(
        &mut self,
        ram: &dyn GuestRam,
        scratch: &mut Scratch,
        outlet: &mut Outlet<'_>,
    ) -> Result<Option<bool>, QueueError> {
        let Some(packet) = self.gather(ram, scratch)? else { return Ok(None) };
        let sent = match packet.defect {
            Some(defect) => Err(defect),
            None => send(scratch.0.get_mut(..packet.len).unwrap_or_default(), &packet, outlet),
        };
        if let Err(defect) = sent {
            guest_warn!(%defect, "Dropped a packet the guest sent");
            outlet.stats.errors += 1;
        }
        if packet.last.completion() {
            self.complete(ram, packet.last_index)?;
        }
        Ok(Some(packet.last.completion()))
    }

    /// Reads the next packet's descriptors and copies its bytes into the scratch buffer.
    fn gather(&mut self, ram: &dyn GuestRam, scratch: &mut Scratch) -> Result<Option<Packet>, QueueError> {
        let mut cursor = self.next;
        let mut first = None;
        let mut len = 0;
        let mut defect = None;
        for _ in 0..MAX_PACKET_DESCS {
            let desc: Option<TxDesc> = self
                .ring
                .take(ram, cursor, |word| TxBuffer::from_bits(word).generation())
                .map_err(|_| QueueError::DescriptorNotSupported)?;
            let Some(desc) = desc else {
                return if first.is_none() { Ok(None) } else { Err(QueueError::NoEndOfPacket) };
            };
            let buffer = TxBuffer::from_bits(desc.buffer.get());
            let options = TxOptions::from_bits(desc.options.get());
            let first = *first.get_or_insert((buffer, options));
            match copy_in(ram, desc.address.get(), buffer, scratch.0.get_mut(len..).unwrap_or_default()) {
                Ok(copied) => len += copied,
                Err(why) => defect = defect.or(Some(why)),
            }
            let last_index = cursor.index;
            cursor.advance(self.ring.size);
            if options.end_of_packet() {
                self.next = cursor;
                return Ok(Some(Packet { len, first, last: options, last_index, defect }));
            }
        }
        Err(QueueError::BigPacket)
    }

    fn complete(&mut self, ram: &dyn GuestRam, index: u32) -> Result<(), QueueError> {
        let tail = CompletionTail::new().with_generation(self.next_completion.generation);
        let completion = TxCompletion {
            index: U32::new(index),
            reserved: [U32::ZERO; 2],
            tail: U32::new(tail.into_bits()),
        };
        self.completions
            .complete(ram, self.next_completion, &completion)
            .map_err(|_| QueueError::DescriptorNotSupported)?;
        self.next_completion.advance(self.completions.size);
        Ok(())
    }
}

/// Copies one descriptor's bytes to the start of `room`.
fn copy_in(ram: &dyn GuestRam, address: u64, buffer: TxBuffer, room: &mut [u8]) -> Result<usize, Defect> {
    let len = match buffer.length() {
        0 => TX_BUFFER_MAX as usize,
        len => usize::from(len),
    };
    ram.read(address, room.get_mut(..len).ok_or(Defect::TooLong)?)?;
    Ok(len)
}

/// Carries out the packet's offloads and sends what comes out.
fn send(frame: &mut [u8], packet: &Packet, outlet: &mut Outlet<'_>) -> Result<(), Defect> {
    if frame.len() < ETHERNET_HEADER {
        return Err(Defect::TooShort);
    }
    let (buffer, options) = packet.first;
    let tag = options.insert_tag().then_some(options.tag());
    let header_len = usize::from(options.header_len());
    let mss_or_offset = usize::from(buffer.mss_or_checksum_offset());
    match options.offload() {
        OFFLOAD_NONE => {
            outlet.send(tag, frame, &[]);
        }
        OFFLOAD_CHECKSUM => {
            finish_checksum(frame, header_len, mss_or_offset)?;
            outlet.send(tag, frame, &[]);
        }
        OFFLOAD_TSO => Segmentation::new(frame, header_len, mss_or_offset)?.for_each(|header, payload| {
            if outlet.send(tag, header, payload) {
                outlet.stats.tso_frames += 1;
                outlet.stats.tso_bytes += (header.len() + payload.len()) as u64;
            }
        }),
        mode => return Err(Defect::Mode(mode)),
    }
    Ok(())
}

impl<'a> Outlet<'a> {
    pub(crate) fn new(link: &'a dyn Link, link_up: bool, stats: &'a mut TxStats) -> Self {
        Self { link, link_up, stats, frames: 0 }
    }

    /// Sends one frame, which starts in `head` with a whole Ethernet header; tells whether the link took it.
    fn send(&mut self, tag: Option<u16>, head: &[u8], rest: &[u8]) -> bool {
        self.frames += 1;
        let packet_len = (head.len() + rest.len()).saturating_sub(link_header_len(head));
        let sent = self.link_up && packet_len <= usize::from(self.link.mtu()) && self.pass(tag, head, rest);
        if sent {
            self.stats.sent.count(destination(head), head.len() + rest.len());
        } else {
            self.stats.discarded += 1;
        }
        sent
    }

    fn pass(&self, tag: Option<u16>, head: &[u8], rest: &[u8]) -> bool {
        let Some(tag) = tag else {
            return self.link.send(&[IoSlice::new(head), IoSlice::new(rest)]).is_ok();
        };
        let [[t0, t1], [c0, c1]] = [ETHERTYPE_VLAN.to_be_bytes(), tag.to_be_bytes()];
        let tag: [u8; TAG_LEN] = [t0, t1, c0, c1];
        // The tag goes between the addresses and the EtherType.
        let (addresses, head) = head.split_at_checked(ETHERNET_HEADER - 2).unwrap_or((head, &[]));
        self.link
            .send(&[IoSlice::new(addresses), IoSlice::new(&tag), IoSlice::new(head), IoSlice::new(rest)])
            .is_ok()
    }
}

/// Destination address of a frame; zeros if it is too short to have one.
pub(crate) fn destination(frame: &[u8]) -> MacAddr {
    MacAddr(frame.first_chunk().copied().unwrap_or_default())
}
