//! The Internet checksum (RFC 1071).

/// A ones' complement sum over bytes that start at an even offset of what is being summed up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds `bytes`. An odd length counts as padded with a zero, so only the last run may have one.
    pub(crate) fn add(self, bytes: &[u8]) -> Self {
        // The sum does not depend on byte order (RFC 1071, section 2 B): add little-endian words, swap once at the end.
        let (words, tail) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for word in words {
            sum += u64::from(u32::from_le_bytes(*word));
        }
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(tail) {
            *to = *from;
        }
        Self(fold_to_32(sum + u64::from(u32::from_le_bytes(last))))
    }

    /// Adds one 16-bit number.
    pub(crate) fn add_u16(self, value: u16) -> Self {
        self.add(&value.to_be_bytes())
    }

    /// The checksum field's value: the complement of the sum.
    pub(crate) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        let [a, b, ..] = (!sum).to_le_bytes();
        u16::from_be_bytes([a, b])
    }

    /// Whether a sum over data *including* its checksum field is right.
    pub(crate) fn is_valid(self) -> bool {
        self.finish() == 0
    }
}

/// Keeps the running sum far from overflow, whatever is added next.
fn fold_to_32(sum: u64) -> u64 {
    (sum >> 32) + (sum & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Straight from the RFC's definition: 16-bit words, end-around carry.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn example_of_rfc_1071() {
        assert_eq!(Sum::default().add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).finish(), !0xddf2);
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 0usize..1500) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let sum = Sum::default().add(&bytes[..cut]).add(&bytes[cut..]);
            prop_assert_eq!(sum.finish(), reference(&bytes));
        }

        #[test]
        fn data_with_its_checksum_is_valid(mut bytes in proptest::collection::vec(any::<u8>(), 2..200)) {
            bytes[..2].fill(0);
            let checksum = Sum::default().add(&bytes).finish();
            bytes[..2].copy_from_slice(&checksum.to_be_bytes());
            prop_assert!(Sum::default().add(&bytes).is_valid());
        }
    }
}
