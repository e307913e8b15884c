//! Packets as the direct carrier takes them: transport headers, and where in the sender's memory the payload lies.
//!
//! A record in a channel is one of two things, told apart by its first byte.
//!
//! | kind | what follows |
//! |---|---|
//! | [`FRAME`] | 3 bytes of zero, then a frame as it would be on the wire; for datagrams |
//! | [`MESSAGE`] | the rest of [`RawMessage`], base and extension transport headers as on the wire, then a [`RawRun`] for each run of memory that the payload lies in; or, without runs, the payload |
//!
//! Numbers of this format are little-endian, those of the transport headers big-endian. A message is a packet of a
//! connection; its payload may be as long as [`MAX_CHUNK`] and then takes the sequence numbers of as many packets as the
//! path MTU would make of it.

use std::ops::Range;

use verbs::{Gid, Segment, Segments};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bth::{BTH, RawBth};
use super::pdu::Writer;
use super::{Packet, Path, Pdu, ext};

/// Longest payload of a message in bytes; a multiple of every path MTU.
pub const MAX_CHUNK: u32 = 256 << 10;
/// Longest payload that is sent by value: to copy it twice costs less than to look it up.
pub const MAX_VALUE: u32 = 256;
/// Most runs of memory: those of a chunk of scattered pages and of a scatter/gather list whose elements all end inside one.
pub const MAX_RUNS: usize = 128;

/// First byte of a record that holds a frame.
pub const FRAME: u8 = 1;
/// First byte of a record that holds a message.
pub const MESSAGE: u8 = 2;
/// Bytes before the frame in a record that holds one.
pub const FRAME_AT: usize = 4;

/// The start of a message.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMessage {
    kind: u8,
    runs: u8,
    reserved: [u8; 2],
    len: U32,
    src: [u8; 16],
    dst: [u8; 16],
}

/// A run of the sender's memory.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRun {
    gpa: U64,
    len: U32,
}

/// Most bytes of a message before its runs or payload.
const MAX_START: usize = size_of::<RawMessage>() + BTH + ext::LONGEST;
/// Longest message in bytes.
pub const MAX_MESSAGE: usize = MAX_START + MAX_RUNS * size_of::<RawRun>();

/// Why a record is not a message for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Record is malformed")]
pub struct BadRecord;

/// Where a payload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the record.
    Value(Range<usize>),
    /// In the sender's memory, in order.
    Runs(Segments),
}

/// A well-formed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Sender.
    pub src: Gid,
    /// Receiver.
    pub dst: Gid,
    /// Transport headers, of a connection.
    pub packet: Packet,
    /// Bytes of payload.
    pub len: u32,
    /// Where they are.
    pub payload: Location,
}

/// Writes all of a message but a payload by value, for which it leaves room; returns where the message ends. Without `runs`
/// the payload is by value. `None` when there are too many runs.
pub fn encode(
    out: &mut [u8; MAX_MESSAGE],
    path: &Path,
    packet: &Packet,
    len: u32,
    runs: &[Segment],
) -> Option<usize> {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
        at += bytes.len();
        Some(())
    };
    let count = u8::try_from(runs.len()).ok().filter(|count| usize::from(*count) <= MAX_RUNS)?;
    let (src, dst) = (path.src.0, path.dst.0);
    let start = RawMessage { kind: MESSAGE, runs: count, reserved: [0; 2], len: U32::new(len), src, dst };
    put(start.as_bytes())?;
    put(packet.raw(0).as_bytes())?;
    let mut ext = Writer::new();
    packet.pdu.emit(&mut ext);
    put(ext.bytes())?;
    for run in runs {
        put(RawRun { gpa: U64::new(run.gpa), len: U32::new(run.len) }.as_bytes())?;
    }
    if runs.is_empty() {
        at += len as usize;
    }
    (at <= MAX_MESSAGE).then_some(at)
}

impl Message {
    /// Parses and checks a record of the kind [`MESSAGE`].
    ///
    /// # Errors
    ///
    /// [`BadRecord`] when it is shorter or longer than it says, its runs do not make up its payload, or its headers are not
    /// those of a connection.
    pub fn parse(record: &[u8]) -> Result<Self, BadRecord> {
        let (start, rest) = RawMessage::read_from_prefix(record).map_err(|_| BadRecord)?;
        let (bth, rest) = RawBth::read_from_prefix(rest).map_err(|_| BadRecord)?;
        let (pdu, rest) = Pdu::parse(bth.opcode(), rest).ok_or(BadRecord)?;
        let len = start.len.get();
        let form = start.kind == MESSAGE && bth.version() == 0 && bth.pad() == 0;
        if !form || len > MAX_CHUNK || matches!(pdu, Pdu::Datagram { .. }) {
            return Err(BadRecord);
        }
        let payload = match usize::from(start.runs) {
            0 if rest.len() == len as usize && len <= MAX_VALUE => {
                Location::Value(record.len() - rest.len()..record.len())
            }
            0 => return Err(BadRecord),
            count => Location::Runs(runs(rest, count, len)?),
        };
        Ok(Self { src: Gid(start.src), dst: Gid(start.dst), packet: bth.packet(pdu), len, payload })
    }
}

/// Reads runs that together have `len` bytes.
fn runs(bytes: &[u8], count: usize, len: u32) -> Result<Segments, BadRecord> {
    let raw = <[RawRun]>::ref_from_bytes(bytes).map_err(|_| BadRecord)?;
    let segments: Segments =
        raw.iter().map(|run| Segment { gpa: run.gpa.get(), len: run.len.get() }).collect();
    let total: u64 = segments.iter().map(|run| u64::from(run.len)).sum();
    if raw.len() == count && count <= MAX_RUNS && total == u64::from(len) {
        Ok(segments)
    } else {
        Err(BadRecord)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use verbs::Qpn;

    use super::*;
    use crate::psn::Psn;
    use crate::wire::{Position, Reth};

    fn written(len: u32, runs: &[Segment]) -> Vec<u8> {
        let reth = Reth { va: 1 << 40, rkey: 7, len };
        let pdu = Pdu::Write { at: Position::Only, reth: Some(reth), imm: None };
        let path = Path { src: Gid([1; 16]), dst: Gid([2; 16]), ..Path::default() };
        let mut out = [0; MAX_MESSAGE];
        let end = encode(&mut out, &path, &Packet::new(Qpn(5), Psn::new(9), pdu), len, runs).unwrap();
        out[..end].to_vec()
    }

    #[test]
    fn message_is_read_as_it_was_written() {
        let runs = [Segment { gpa: 0x1000, len: 4096 }, Segment { gpa: 0x9000, len: 904 }];
        let record = written(5000, &runs);
        let message = Message::parse(&record).unwrap();
        assert_eq!((message.src, message.dst, message.len), (Gid([1; 16]), Gid([2; 16]), 5000));
        assert_eq!(message.packet.psn, Psn::new(9));
        assert_eq!(message.payload, Location::Runs(Segments::from_slice(&runs)));
        let record = written(8, &[]);
        let value = Location::Value(record.len() - 8..record.len());
        assert_eq!(Message::parse(&record).unwrap().payload, value);
    }

    #[test]
    fn runs_that_do_not_make_up_the_payload_are_refused() {
        let run = Segment { gpa: 0x1000, len: 4096 };
        for (len, runs) in [(4095, &[run][..]), (4097, &[run]), (0, &[run]), (MAX_CHUNK + 1, &[run; 65])] {
            assert_eq!(Message::parse(&written(len, runs)), Err(BadRecord), "{len}");
        }
        let all = [Segment { gpa: 0, len: u32::MAX }; 2];
        assert_eq!(Message::parse(&written(u32::MAX - 1, &all)), Err(BadRecord));
        let mut short = written(4096, &[run]);
        short.pop();
        assert_eq!(Message::parse(&short), Err(BadRecord));
    }

    #[test]
    fn more_runs_than_a_record_holds_are_not_written() {
        let runs = [Segment { gpa: 0, len: 1 }; MAX_RUNS + 1];
        let packet = Packet::new(Qpn(1), Psn::new(0), Pdu::Cnp);
        assert_eq!(encode(&mut [0; MAX_MESSAGE], &Path::default(), &packet, 129, &runs), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_misread(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), opcode in 0u8..25) {
            if let Some(kind) = bytes.first_mut() {
                *kind = MESSAGE;
            }
            if let Some(place) = bytes.get_mut(size_of::<RawMessage>()) {
                *place = opcode;
            }
            if let Ok(message) = Message::parse(&bytes) {
                let total = match message.payload {
                    Location::Value(range) => bytes[range].len(),
                    Location::Runs(runs) => runs.iter().map(|run| run.len as usize).sum(),
                };
                prop_assert_eq!(total, message.len as usize);
            }
        }
    }
}
