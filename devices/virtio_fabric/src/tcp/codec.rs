//! Messages on a stream of bytes: with frames and checksums, or without.

use std::io::{self, Read};

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};

use crate::wire::{FRAME_HEADER, FrameFlags, FrameHeader, FrameType, HEADER};
use crate::{Framing, Message};

/// Bytes of a checksum.
const DIGEST: usize = 4;
/// Bytes up to which a body is sent from the same buffer as its header.
const SMALL: usize = 1024;

/// A message that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub message: Message,
    /// Whether the checksum of its body is right, if it has one.
    pub intact: bool,
}

/// Takes messages out of a stream, however it is cut.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    framing: Option<Framing>,
    /// Header part, as far as it is there.
    head: Vec<u8>,
    /// How many bytes follow it, once that is known.
    rest: Option<usize>,
    /// What follows it, as far as it is there.
    body: Vec<u8>,
}

impl Decoder {
    /// From the next message on there are frames.
    pub fn expect_frames(&mut self, framing: Framing) {
        self.framing = Some(framing);
    }

    /// Reads until a message is whole. `body_bytes` says how many bytes follow a message's header, or `None` if it must
    /// not be there.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] when more has to arrive first, [`io::ErrorKind::InvalidData`] when the stream cannot
    /// be understood, [`io::ErrorKind::UnexpectedEof`] at its end, and errors of the source.
    pub fn read(
        &mut self,
        from: &mut impl Read,
        body_bytes: impl FnOnce(&[u8; HEADER]) -> Option<u64>,
    ) -> io::Result<Received> {
        let head = self.head_bytes();
        fill(from, &mut self.head, head)?;
        let rest = match self.rest {
            Some(rest) => rest,
            None => {
                let rest = self.rest_bytes(body_bytes).ok_or(io::ErrorKind::InvalidData)?;
                self.body.reserve_exact(rest);
                *self.rest.insert(rest)
            }
        };
        fill(from, &mut self.body, rest)?;
        Ok(self.take())
    }

    fn digests(&self) -> bool {
        self.framing.is_some_and(|framing| framing.digests)
    }

    fn head_bytes(&self) -> usize {
        let frame = if self.framing.is_some() { FRAME_HEADER } else { 0 };
        frame + HEADER + if self.digests() { DIGEST } else { 0 }
    }

    fn header(&self) -> &[u8; HEADER] {
        let at = if self.framing.is_some() { FRAME_HEADER } else { 0 };
        self.head[at..].first_chunk().expect("the head is whole")
    }

    /// How many bytes follow the head; `None` if it is wrong.
    fn rest_bytes(&self, body_bytes: impl FnOnce(&[u8; HEADER]) -> Option<u64>) -> Option<usize> {
        let body = usize::try_from(body_bytes(self.header())?).ok()?;
        let Some(framing) = self.framing else { return Some(body) };
        let frame = FrameHeader::parse(&self.head, framing.max_xfer).ok()?;
        let expected = digest_flags(self.digests(), body);
        let same = frame.flags == expected
            && frame.header_part() == FRAME_HEADER + HEADER
            && frame.length as usize == frame.header_part() + frame.digests() + body;
        if !same || (self.digests() && !self.head_is_intact()) {
            return None;
        }
        Some(body + if expected.contains(FrameFlags::DATA_DIGEST) { DIGEST } else { 0 })
    }

    fn head_is_intact(&self) -> bool {
        let (head, digest) = self.head.split_at(FRAME_HEADER + HEADER);
        digest == crc32c(head).to_le_bytes()
    }

    /// The message that is whole.
    fn take(&mut self) -> Received {
        let header = *self.header();
        let mut body = Bytes::from(std::mem::take(&mut self.body));
        let mut intact = true;
        if self.digests() && !body.is_empty() {
            let digest = body.split_off(body.len() - DIGEST);
            intact = digest == crc32c(&body).to_le_bytes()[..];
        }
        self.head.clear();
        self.rest = None;
        Received { message: Message { header, body }, intact }
    }
}

/// Reads into `to` until it has `want` bytes, without touching them first.
fn fill(from: &mut impl Read, to: &mut Vec<u8>, want: usize) -> io::Result<()> {
    while to.len() < want {
        let missing = (want - to.len()) as u64;
        if from.take(missing).read_to_end(to)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn digest_flags(digests: bool, body: usize) -> FrameFlags {
    match (digests, body) {
        (false, _) => FrameFlags::empty(),
        (true, 0) => FrameFlags::HEADER_DIGEST,
        (true, _) => FrameFlags::HEADER_DIGEST | FrameFlags::DATA_DIGEST,
    }
}

/// The bytes of a message, in pieces that are to be sent one after the other.
pub(super) fn encode(message: Message, framing: Option<Framing>, kind: FrameType) -> Vec<Bytes> {
    let Message { header, body } = message;
    let mut head =
        Vec::with_capacity(FRAME_HEADER + HEADER + DIGEST + if body.len() <= SMALL { body.len() } else { 0 });
    let mut end = Vec::new();
    match framing {
        None => head.extend_from_slice(&header),
        Some(framing) => {
            let flags = digest_flags(framing.digests, body.len());
            let header_words = ((FRAME_HEADER + HEADER) / 4) as u8;
            let mut frame = FrameHeader { length: 0, kind, flags, header_words };
            frame.length = (frame.header_part() + frame.digests() + body.len()) as u32;
            let first = frame.emit();
            head.extend_from_slice(&first);
            head.extend_from_slice(&header);
            if flags.contains(FrameFlags::HEADER_DIGEST) {
                head.extend_from_slice(&crc32c_append(crc32c(&first), &header).to_le_bytes());
            }
            if flags.contains(FrameFlags::DATA_DIGEST) {
                end.extend_from_slice(&crc32c(&body).to_le_bytes());
            }
        }
    }
    let mut pieces = Vec::with_capacity(3);
    if body.len() <= SMALL {
        head.extend_from_slice(&body);
        head.extend_from_slice(&end);
        pieces.push(Bytes::from(head));
    } else {
        pieces.extend([Bytes::from(head), body]);
        if !end.is_empty() {
            pieces.push(Bytes::from(end));
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Option<Framing> = Some(Framing { digests: true, max_xfer: 1 << 20 });
    const FRAMES: Option<Framing> = Some(Framing { digests: false, max_xfer: 1 << 20 });

    /// A source that has nothing more for now.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { self.0.read(buf) }
        }
    }

    fn message(n: u8, body: usize) -> Message {
        let mut header = [n; HEADER];
        header[8..12].copy_from_slice(&(body as u32).to_le_bytes());
        Message { header, body: vec![n; body].into() }
    }

    fn bytes(message: &Message, framing: Option<Framing>) -> Vec<u8> {
        encode(message.clone(), framing, FrameType::Command).concat()
    }

    fn body_bytes(header: &[u8; HEADER]) -> Option<u64> {
        let bytes = u32::from_le_bytes(*header[8..].first_chunk().unwrap());
        Some(bytes.into()).filter(|bytes| *bytes < 5000)
    }

    fn decoder(framing: Option<Framing>) -> Decoder {
        Decoder { framing, ..Decoder::default() }
    }

    #[test]
    fn messages_come_out_however_the_stream_is_cut() {
        for framing in [None, FRAMES, BOTH] {
            let messages: Vec<_> =
                [0, 1, 7, 1024, 1025, 4999, 0].map(|body| message(body as u8, body)).into();
            let stream: Vec<u8> = messages.iter().flat_map(|it| bytes(it, framing)).collect();
            for cut in [1, 3, 16, 100, stream.len()] {
                let mut decoder = decoder(framing);
                let mut found = Vec::new();
                for piece in stream.chunks(cut) {
                    let mut drip = Drip(piece);
                    while let Ok(received) = decoder.read(&mut drip, body_bytes) {
                        assert!(received.intact);
                        found.push(received.message);
                    }
                }
                assert_eq!(found, messages);
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let stream = bytes(&message(9, 40), BOTH);
        for bit in 0..stream.len() * 8 {
            let mut stream = stream.clone();
            stream[bit / 8] ^= 1 << (bit % 8);
            match decoder(BOTH).read(&mut Drip(&stream), body_bytes) {
                Ok(received) => assert!(!received.intact && bit / 8 >= FRAME_HEADER + HEADER + DIGEST),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::InvalidData, "Bit {bit}"),
            }
        }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused_before_memory_is_taken() {
        for body in [5000, u32::MAX as usize] {
            let mut header = [1; HEADER];
            header[8..12].copy_from_slice(&(body as u32).to_le_bytes());
            let mut decoder = decoder(None);
            let error = decoder.read(&mut Drip(&header), body_bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert_eq!(decoder.body.capacity(), 0);
        }
        for wrong in [0_u32, 23, 25, 31, 33, 2_000_000, u32::MAX] {
            let mut stream = bytes(&message(1, 8), FRAMES);
            stream[..4].copy_from_slice(&wrong.to_le_bytes());
            let error = decoder(FRAMES).read(&mut Drip(&stream), body_bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{wrong}");
        }
    }

    #[test]
    fn digests_are_as_agreed_on() {
        for (sent, expected) in [(BOTH, FRAMES), (FRAMES, BOTH)] {
            let stream = bytes(&message(1, 64), sent);
            let error = decoder(expected).read(&mut Drip(&stream), body_bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn the_end_of_the_stream_is_an_error() {
        let stream = bytes(&message(1, 64), None);
        for length in [0, 5, 16, 70] {
            let error = decoder(None).read(&mut &stream[..length], body_bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
