//! Frames on a byte stream that may lose bytes.
//!
//! A frame is its fields and a CRC-32 over them, byte-stuffed (COBS) so that a zero byte only ever ends a frame.
//! After any damage the receiver is in step again at the next zero.

/// Longest payload of one frame, in bytes.
pub const MAX_PAYLOAD: usize = 1024;

const HEADER: usize = 9;
const CHECKSUM: usize = 4;
/// Longest frame before stuffing.
const MAX_PLAIN: usize = HEADER + MAX_PAYLOAD + CHECKSUM;
/// Byte stuffing adds one byte per 254 and one more.
const MAX_STUFFED: usize = MAX_PLAIN + MAX_PLAIN / 254 + 1;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Carries a piece of a message; `sequence` numbers it.
    Data,
    /// The last piece of a message.
    End,
    /// Carries nothing; `sequence` is the next number the sender of this frame expects.
    Ack,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is for.
    pub kind: Kind,
    /// Which life of the agent it belongs to; a restarted guest uses another number.
    pub session: u32,
    /// Position in the sender's stream, or what an [`Kind::Ack`] expects next.
    pub sequence: u32,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Appends the frame as it goes over the line, its closing zero included.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut plain = Vec::with_capacity(HEADER + self.payload.len() + CHECKSUM);
        plain.push(self.kind as u8);
        plain.extend_from_slice(&self.session.to_le_bytes());
        plain.extend_from_slice(&self.sequence.to_le_bytes());
        plain.extend_from_slice(&self.payload);
        plain.extend_from_slice(&crc32fast::hash(&plain).to_le_bytes());
        out.extend_from_slice(&cobs::encode_vec(&plain));
        out.push(0);
    }

    fn decode(stuffed: &[u8]) -> Option<Frame> {
        let plain = cobs::decode_vec(stuffed).ok()?;
        let (body, checksum) = plain.split_last_chunk::<CHECKSUM>()?;
        if u32::from_le_bytes(*checksum) != crc32fast::hash(body) {
            return None;
        }
        let (&kind, rest) = body.split_first()?;
        let (session, rest) = rest.split_first_chunk::<4>()?;
        let (sequence, payload) = rest.split_first_chunk::<4>()?;
        let kind = match kind {
            k if k == Kind::Data as u8 => Kind::Data,
            k if k == Kind::End as u8 => Kind::End,
            k if k == Kind::Ack as u8 => Kind::Ack,
            _ => return None,
        };
        Some(Frame {
            kind,
            session: u32::from_le_bytes(*session),
            sequence: u32::from_le_bytes(*sequence),
            payload: payload.to_vec(),
        })
    }
}

/// Finds frames in the bytes of a line. Damaged ones are counted and dropped.
#[derive(Debug, Default)]
pub struct Decoder {
    partial: Vec<u8>,
    overlong: bool,
    damaged: u64,
}

impl Decoder {
    /// Takes bytes off the line and calls `each` with every whole frame in them.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(Frame)) {
        for &byte in bytes {
            if byte != 0 {
                self.overlong |= self.partial.len() >= MAX_STUFFED;
                if !self.overlong {
                    self.partial.push(byte);
                }
                continue;
            }
            let whole = !std::mem::take(&mut self.overlong);
            match Frame::decode(&self.partial) {
                Some(frame) if whole => each(frame),
                _ if self.partial.is_empty() => {}
                _ => self.damaged += 1,
            }
            self.partial.clear();
        }
    }

    /// How many frames were dropped because they did not check.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(sequence: u32, payload: &[u8]) -> Frame {
        Frame { kind: Kind::Data, session: 7, sequence, payload: payload.to_vec() }
    }

    fn decode_all(bytes: &[u8]) -> (Vec<Frame>, u64) {
        let mut decoder = Decoder::default();
        let mut frames = Vec::new();
        decoder.push(bytes, |f| frames.push(f));
        (frames, decoder.damaged())
    }

    #[test]
    fn damaged_frame_is_dropped_and_the_next_one_is_found() {
        let mut bytes = Vec::new();
        frame(1, b"first").encode(&mut bytes);
        let second = bytes.len();
        frame(2, b"second").encode(&mut bytes);
        frame(3, b"third").encode(&mut bytes);
        bytes.remove(second + 3);
        assert_eq!(decode_all(&bytes), (vec![frame(1, b"first"), frame(3, b"third")], 1));
    }

    #[test]
    fn endless_noise_without_a_zero_takes_bounded_memory() {
        let mut decoder = Decoder::default();
        for _ in 0..100 {
            decoder.push(&[0xaa; 1000], |_| panic!("Noise is not a frame"));
        }
        assert!(decoder.partial.capacity() <= 2 * MAX_STUFFED);
        let mut bytes = vec![0];
        frame(9, &[0; MAX_PAYLOAD]).encode(&mut bytes);
        let mut found = Vec::new();
        decoder.push(&bytes, |f| found.push(f));
        assert_eq!(found, [frame(9, &[0; MAX_PAYLOAD])]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            decode_all(&bytes);
        }

        #[test]
        fn any_payload_survives(payload in proptest::collection::vec(any::<u8>(), 0..=MAX_PAYLOAD), n: u32) {
            let mut bytes = Vec::new();
            frame(n, &payload).encode(&mut bytes);
            prop_assert_eq!(decode_all(&bytes), (vec![frame(n, &payload)], 0));
        }
    }
}
