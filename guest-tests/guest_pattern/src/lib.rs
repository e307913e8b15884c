//! Content of messages: a stream of bytes that follows from the sender and the number of the message.
//!
//! Whoever receives a message makes its content anew and compares: one that is lost, doubled, misplaced or damaged is
//! found at its first byte.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// Who made a message; the two sides never make the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    /// The side that listened.
    pub const SERVER: Self = Self(0x5356_5200);
    /// The side that connected.
    pub const CLIENT: Self = Self(0x434c_4900);

    /// One of many sides, which agree on their numbers.
    pub const fn of(number: u64) -> Self {
        Self(number)
    }
}

/// A mixing step of SplitMix64: every bit of the input moves about half of the output's bits.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn words(origin: Origin, sequence: u64) -> impl Iterator<Item = [u8; 8]> {
    words_from(origin, sequence, 0)
}

fn words_from(origin: Origin, sequence: u64, first: u64) -> impl Iterator<Item = [u8; 8]> {
    let start = mix(origin.0 ^ mix(sequence));
    (first..).map(move |i| mix(start.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes())
}

/// Fills `bytes` with the content of a message.
pub fn fill(origin: Origin, sequence: u64, bytes: &mut [u8]) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words(origin, sequence)) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Where `bytes` first differ from the content of a message.
pub fn first_difference(origin: Origin, sequence: u64, bytes: &[u8]) -> Option<usize> {
    let bad = bytes
        .chunks(8)
        .zip(words(origin, sequence))
        .position(|(chunk, word)| chunk != &word[..chunk.len()])?;
    let word = words(origin, sequence).nth(bad)?;
    let within = bytes[8 * bad..].iter().zip(word).position(|(got, want)| *got != want)?;
    Some(8 * bad + within)
}

/// Whether `bytes` are those of a message from word `first` on; a word has 8 bytes.
pub fn is_part(origin: Origin, sequence: u64, first: u64, bytes: &[u8]) -> bool {
    let words = words_from(origin, sequence, first);
    bytes.chunks(8).zip(words).all(|(chunk, word)| chunk == &word[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_follows_from_origin_and_number_and_nothing_else() {
        let make = |origin, sequence| {
            let mut bytes = [0; 37];
            fill(origin, sequence, &mut bytes);
            bytes
        };
        assert_eq!(make(Origin::SERVER, 5), make(Origin::SERVER, 5));
        assert_ne!(make(Origin::SERVER, 5), make(Origin::CLIENT, 5));
        assert_ne!(make(Origin::SERVER, 5), make(Origin::SERVER, 6));
    }

    #[test]
    fn any_single_wrong_byte_is_found_where_it_is() {
        let mut bytes = [0; 37];
        fill(Origin::CLIENT, 9, &mut bytes);
        assert_eq!(first_difference(Origin::CLIENT, 9, &bytes), None);
        for position in 0..bytes.len() {
            bytes[position] ^= 0x10;
            assert_eq!(first_difference(Origin::CLIENT, 9, &bytes), Some(position));
            bytes[position] ^= 0x10;
        }
    }

    #[test]
    fn pieces_of_one_message_do_not_repeat() {
        let mut bytes = [0; 4096];
        fill(Origin::CLIENT, 1, &mut bytes);
        let mut words: Vec<&[u8]> = bytes.chunks(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 512);
    }

    #[test]
    fn part_of_a_message_is_known_by_where_it_starts() {
        let mut bytes = [0; 64];
        fill(Origin::of(7), 3, &mut bytes);
        assert!(is_part(Origin::of(7), 3, 2, &bytes[16..45]));
        assert!(!is_part(Origin::of(7), 3, 1, &bytes[16..45]));
    }
}
